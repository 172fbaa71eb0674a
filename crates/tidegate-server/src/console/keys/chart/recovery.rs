//! The recovery chart: remaining permits over time without further requests.

use tidegate::Micros;
use tidegate::simulate::TimeAxis;

use super::key_chart::KeyChart;
use super::shape::RecoveryShape;
use crate::chart::canvas::{self, Canvas, Rect, TextAnchor};
use crate::chart::scale::{Scale, instants};
use crate::text::format::number;

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 210.0;
const AREA: Rect = Rect { x: 58.0, y: 30.0, width: 446.0, height: 142.0 };

/// Time and remaining permits, or their position in pixels.
type Point = (f64, f64);

/// Draws the recovery; `None` if there is nothing to recover.
pub(crate) fn recovery(chart: &KeyChart<'_>) -> Option<String> {
    let mut canvas = Canvas::default();
    draw(&mut canvas, chart)?;
    let title = canvas::title(&chart.recovery_title());
    Some(canvas.into_svg((WIDTH, HEIGHT), "class=\"plot recovery\" role=\"img\"", &title))
}

fn draw(canvas: &mut Canvas, chart: &KeyChart<'_>) -> Option<()> {
    let (last, _) = chart.last().filter(|(after, _)| *after > Micros::ZERO)?;
    // Some time after the recovery, to show that the level stays.
    let shown = Micros::new(last.get().saturating_add(last.get() / 12).max(1));
    let scale = Scale::holding(chart.capacity);
    let x = |after: f64| AREA.x + (after / shown.get() as f64).min(1.0) * AREA.width;
    let y = |left: f64| AREA.bottom() - left / scale.top as f64 * AREA.height;
    draw_grid(canvas, shown, scale);
    let points = match chart.shape() {
        RecoveryShape::Bucket if chart.standing.held == 0 => linear(chart),
        _ => stepwise(chart),
    };
    let points: Vec<Point> = points.into_iter().map(|(after, left)| (x(after), y(left))).collect();
    let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    let line = format!("{}H{:.1}", line.join("L"), AREA.right());
    let (left, bottom) = (AREA.x, AREA.bottom());
    canvas.write(format_args!(
        "<path class=\"water\" d=\"M{left:.1} {bottom:.1}L{line}V{bottom:.1}Z\"/>\n\
         <path class=\"shore\" d=\"M{line}\"/>\n"
    ));
    let full = y(chart.capacity as f64);
    canvas.line("promise", (AREA.x, full), (AREA.right(), full));
    canvas.line("base", (AREA.x, bottom), (AREA.right(), bottom));
    canvas.text(
        AREA.x,
        16.0,
        TextAnchor::Start,
        "small muted",
        "remaining without further requests",
    );
    let ends = format!("reset after {last}");
    let ends = if chart.recovery.iter().any(|known| known.after.span().is_none()) {
        "the rest is released by its holders".into()
    } else {
        ends
    };
    canvas.text(AREA.right(), 16.0, TextAnchor::End, "small muted", &ends);
    Some(())
}

/// The level of a bucket: a straight line through the known points.
fn linear(chart: &KeyChart<'_>) -> Vec<Point> {
    let known = chart.recovery.iter();
    let known =
        known.filter_map(|known| Some((known.after.span()?.get() as f64, known.fits as f64)));
    let known: Vec<Point> = known.collect();
    let ([first, ..], [.., last]) = (&*known, &*known) else { return Vec::new() };
    let now = (0.0, chart.standing.remaining as f64);
    let slope = match last.0 > first.0 {
        true => (last.1 - first.1) / (last.0 - first.0),
        false => (last.1 - now.1) / last.0.max(1.0),
    };
    let at_start = last.1 - slope * last.0;
    let start = match at_start < 0.0 {
        // In debt: nothing remains for some time.
        true => vec![(0.0, 0.0), (-at_start / slope, 0.0)],
        false => vec![(0.0, at_start)],
    };
    start.into_iter().chain([*last]).collect()
}

/// Recovery in steps. Between known points, at least the earlier amount remains.
fn stepwise(chart: &KeyChart<'_>) -> Vec<Point> {
    let mut left = chart.standing.remaining as f64;
    let mut points = vec![(0.0, left)];
    for known in chart.recovery {
        let Some(after) = known.after.span() else { break };
        let after = after.get() as f64;
        points.extend([(after, left), (after, known.fits as f64)]);
        left = known.fits as f64;
    }
    points
}

fn draw_grid(canvas: &mut Canvas, shown: Micros, scale: Scale) {
    for mark in scale.marks() {
        let y = AREA.bottom() - scale.height(mark, AREA.height);
        canvas.line("grid", (AREA.x, y), (AREA.right(), y));
        canvas.text(AREA.x - 8.0, y + 4.0, TextAnchor::End, "small muted", &number(mark));
    }
    let axis = TimeAxis { span: shown, step: shown, steps: 1 };
    for instant in instants(&axis) {
        let x = AREA.x + instant.get() as f64 / shown.get() as f64 * AREA.width;
        canvas.line("grid", (x, AREA.y), (x, AREA.bottom()));
        let (anchor, text) = match instant {
            Micros::ZERO => (TextAnchor::Start, "now".into()),
            instant => (TextAnchor::Middle, instant.to_string()),
        };
        // Labels that would cross the edge are omitted.
        if x < AREA.right() - 12.0 {
            canvas.text(x, AREA.bottom() + 17.0, anchor, "small muted", &text);
        }
    }
}
