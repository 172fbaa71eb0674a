//! Chart of allowed and denied calls: allowed above a zero line, denied below it, so that they are
//! distinct without colours.

use super::canvas::{Canvas, Rect, TextAnchor};
use super::scale::Scale;
use crate::text::format::number;

/// Calls in each of a series of equal spans, oldest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateChart<'a> {
    /// Allowed: drawn above the line.
    pub passed: &'a [u64],
    /// Denied: drawn below it.
    pub denied: &'a [u64],
    /// Allowed, but a shadow limit would have denied: drawn as a separate line.
    pub would_deny: &'a [u64],
}

/// Hidden from screen readers: the page has the numbers as text.
const HIDDEN: &str = "aria-hidden=\"true\" focusable=\"false\"";
/// The minimum height of a count above 0.
const MIN_HEIGHT: f64 = 1.2;

impl RateChart<'_> {
    /// A chart with a scale and labels below it. A label has its position in thousandths of the
    /// width.
    pub(crate) fn chart(&self, labels: &[(u32, &str)]) -> String {
        const WIDTH: f64 = 960.0;
        const HEIGHT: f64 = 210.0;
        let area = Rect { x: 58.0, y: 10.0, width: WIDTH - 62.0, height: HEIGHT - 36.0 };
        let (above, below) = (Scale::holding(most(self.passed)), Scale::holding(most(self.denied)));
        let below_top = if most(self.denied) == 0 { 0 } else { below.top };
        let line = ZeroLine::between(area, above.top, below_top);
        let mut canvas = Canvas::default();
        for mark in above.marks() {
            let y = line.y - line.height(mark);
            canvas.line("grid", (area.x, y), (area.right(), y));
            canvas.text(area.x - 8.0, y + 4.0, TextAnchor::End, "small muted", &number(mark));
        }
        // Below the line one number is enough, if it fits.
        if line.height(below_top) > 13.0 {
            let y = line.y + line.height(below_top);
            canvas.line("grid", (area.x, y), (area.right(), y));
            let class = "small denied-mark";
            canvas.text(area.x - 8.0, y + 4.0, TextAnchor::End, class, &number(below_top));
        }
        for (thousandths, label) in labels {
            let share = f64::from(*thousandths) / 1_000.0;
            let x = area.x + share * area.width;
            let anchor = match thousandths {
                0 => TextAnchor::Start,
                1_000 => TextAnchor::End,
                _ => TextAnchor::Middle,
            };
            canvas.line("grid", (x, area.y), (x, area.bottom()));
            canvas.text(x, HEIGHT - 6.0, anchor, "small muted", label);
        }
        self.draw(&mut canvas, line, area);
        canvas.into_svg((WIDTH, HEIGHT), &format!("class=\"plot flow\" {HIDDEN}"), "")
    }

    /// A sparkline: a small chart without labels that is as wide as its container.
    pub(crate) fn spark(&self) -> String {
        const WIDTH: f64 = 300.0;
        const HEIGHT: f64 = 56.0;
        let area = Rect { x: 0.0, y: 1.0, width: WIDTH, height: HEIGHT - 2.0 };
        let line = ZeroLine::between(area, most(self.passed).max(1), most(self.denied));
        let mut canvas = Canvas::default();
        self.draw(&mut canvas, line, area);
        let attributes = format!("class=\"plot flow spark\" preserveAspectRatio=\"none\" {HIDDEN}");
        canvas.into_svg((WIDTH, HEIGHT), &attributes, "")
    }

    fn draw(&self, canvas: &mut Canvas, line: ZeroLine, area: Rect) {
        let above = Rect { height: line.y - area.y, ..area };
        let height =
            |count: &u64| line.height(*count).max(if *count > 0 { MIN_HEIGHT } else { 0.0 });
        canvas.filled_steps("passed", above, self.passed.iter().map(height));
        if most(self.would_deny) > 0 {
            canvas.steps("would", above, self.would_deny.iter().map(height));
        }
        if most(self.denied) > 0 {
            // The area ends at the line; negative heights go down from it.
            canvas.filled_steps("denied", above, self.denied.iter().map(|count| -height(count)));
        }
        canvas.line("base", (area.x, line.y), (area.right(), line.y));
    }
}

/// The line between allowed and denied calls, and the height of one call, the same on both sides.
#[derive(Clone, Copy)]
struct ZeroLine {
    y: f64,
    one: f64,
}

impl ZeroLine {
    fn between(area: Rect, above: u64, below: u64) -> Self {
        let one = area.height / (above as f64 + below as f64).max(1.0);
        Self { y: area.y + above as f64 * one, one }
    }

    fn height(self, count: u64) -> f64 {
        count as f64 * self.one
    }
}

fn most(series: &[u64]) -> u64 {
    series.iter().copied().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_calls_are_drawn_below_the_line() {
        let chart = RateChart { passed: &[2, 0, 2], denied: &[0, 2, 0], would_deny: &[] };
        let spark = chart.spark();
        assert!(
            spark.contains(
                "<path class=\"passed\" d=\"M0.0 28.0L0.0 1.0H100.0V28.0H200.0V1.0H300.0V28.0Z\"/>"
            ),
            "{spark}"
        );
        assert!(spark.contains("<path class=\"denied\" d=\"M0.0 28.0L0.0 28.0H100.0V55.0H200.0V28.0H300.0V28.0Z\"/>"), "{spark}");
        assert!(!spark.contains("style"), "{spark}");
    }

    #[test]
    fn zero_counts_draw_nothing_and_small_counts_stay_visible() {
        let none = RateChart { passed: &[0; 4], denied: &[0; 4], would_deny: &[0; 4] };
        let spark = none.spark();
        assert!(!spark.contains("denied") && !spark.contains("would"), "{spark}");
        assert!(
            RateChart { passed: &[], denied: &[], would_deny: &[] }.chart(&[]).contains("base")
        );
        let little = RateChart { passed: &[1_000_000, 0], denied: &[0, 1], would_deny: &[0, 0] };
        assert!(little.spark().contains("V56.2"), "{}", little.spark());
    }
}
