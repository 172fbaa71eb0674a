//! What has passed and what has not, second by second, for a page: one above a line and the other below it, so that
//! nobody needs colours to tell them apart.

use super::canvas::{Anchor, Area, Canvas};
use super::scale::Scale;
use super::words::number;

/// How many there were in each of some equal spans, oldest first.
#[derive(Clone, Copy, Debug)]
pub struct Flow<'a> {
    /// Above the line.
    pub passed: &'a [u64],
    /// Below it.
    pub denied: &'a [u64],
    /// Drawn as a line of its own: passed, though something that only looks on would have denied it.
    pub would_deny: &'a [u64],
}

/// The least height of anything that is there at all.
const LEAST: f64 = 1.2;

impl Flow<'_> {
    /// A chart with a scale, and words at its ends and in between: each with how far on it lies, in thousandths.
    pub fn chart(&self, words: &[(u32, &str)]) -> String {
        const WIDTH: f64 = 960.0;
        const HEIGHT: f64 = 210.0;
        let area = Area { x: 58.0, y: 10.0, width: WIDTH - 62.0, height: HEIGHT - 36.0 };
        let (above, below) = (Scale::holding(most(self.passed)), Scale::holding(most(self.denied)));
        let below_top = if most(self.denied) == 0 { 0 } else { below.top };
        let line = Line::between(area, above.top, below_top);
        let mut canvas = Canvas::default();
        for mark in above.marks() {
            let y = line.y - line.height(mark);
            canvas.line("grid", (area.x, y), (area.right(), y));
            canvas.text(area.x - 8.0, y + 4.0, Anchor::End, "small muted", &number(mark));
        }
        // One number is enough, where there is room for it: the two below are seldom far apart.
        if line.height(below_top) > 13.0 {
            let y = line.y + line.height(below_top);
            canvas.line("grid", (area.x, y), (area.right(), y));
            canvas.text(
                area.x - 8.0,
                y + 4.0,
                Anchor::End,
                "small denied-mark",
                &number(below_top),
            );
        }
        for (thousandths, word) in words {
            let share = f64::from(*thousandths) / 1_000.0;
            let x = area.x + share * area.width;
            let anchor = match thousandths {
                0 => Anchor::Start,
                1_000 => Anchor::End,
                _ => Anchor::Middle,
            };
            canvas.line("grid", (x, area.y), (x, area.bottom()));
            canvas.text(x, HEIGHT - 6.0, anchor, "small muted", word);
        }
        self.draw(&mut canvas, line, area);
        picture("plot flow", WIDTH, HEIGHT, "", canvas)
    }

    /// A little chart without words. It is as wide as there is room.
    pub fn spark(&self) -> String {
        const WIDTH: f64 = 300.0;
        const HEIGHT: f64 = 56.0;
        let area = Area { x: 0.0, y: 1.0, width: WIDTH, height: HEIGHT - 2.0 };
        let line = Line::between(area, most(self.passed).max(1), most(self.denied));
        let mut canvas = Canvas::default();
        self.draw(&mut canvas, line, area);
        picture("plot flow spark", WIDTH, HEIGHT, " preserveAspectRatio=\"none\"", canvas)
    }

    fn draw(&self, canvas: &mut Canvas, line: Line, area: Area) {
        let above = Area { height: line.y - area.y, ..area };
        let seen = |count: &u64| line.height(*count).max(if *count > 0 { LEAST } else { 0.0 });
        canvas.filled_steps("passed", above, self.passed.iter().map(seen));
        if most(self.would_deny) > 0 {
            canvas.steps("would", above, self.would_deny.iter().map(seen));
        }
        if most(self.denied) > 0 {
            // Its bottom is the line as well, and what rises from it goes down.
            canvas.filled_steps("denied", above, self.denied.iter().map(|count| -seen(count)));
        }
        canvas.line("base", (area.x, line.y), (area.right(), line.y));
    }
}

/// The line between what has passed and what has not, and how high one of either is: both alike.
#[derive(Clone, Copy)]
struct Line {
    y: f64,
    one: f64,
}

impl Line {
    fn between(area: Area, above: u64, below: u64) -> Self {
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

/// Whoever shows it says in words what it shows.
fn picture(class: &str, width: f64, height: f64, attributes: &str, canvas: Canvas) -> String {
    let body = canvas.finish();
    format!(
        "<svg class=\"{class}\" viewBox=\"0 0 {width:.0} {height:.0}\"{attributes} aria-hidden=\"true\" \
         focusable=\"false\">{body}</svg>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_denied_hangs_below_the_line() {
        let flow = Flow { passed: &[2, 0, 2], denied: &[0, 2, 0], would_deny: &[] };
        let spark = flow.spark();
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
    fn nothing_is_drawn_as_nothing_and_little_is_seen() {
        let none = Flow { passed: &[0; 4], denied: &[0; 4], would_deny: &[0; 4] };
        let spark = none.spark();
        assert!(!spark.contains("denied") && !spark.contains("would"), "{spark}");
        assert!(Flow { passed: &[], denied: &[], would_deny: &[] }.chart(&[]).contains("base"));
        let little = Flow { passed: &[1_000_000, 0], denied: &[0, 1], would_deny: &[0, 0] };
        assert!(little.spark().contains("V56.2"), "{}", little.spark());
    }
}
