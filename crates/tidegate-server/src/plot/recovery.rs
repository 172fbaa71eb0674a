//! What will be left of a limit if nobody asks, drawn from now to the end.

use tidegate::Micros;
use tidegate::simulate::Axis;

use super::canvas::{Anchor, Area, Canvas};
use super::form::Form;
use super::scale::{Scale, instants};
use super::standing::Sight;
use super::words::{number, span};

pub(super) const WIDTH: f64 = 520.0;
pub(super) const HEIGHT: f64 = 210.0;
const AREA: Area = Area { x: 58.0, y: 30.0, width: 446.0, height: 142.0 };

/// Where something is left, in pixels.
type Point = (f64, f64);

/// Draws it, unless there is nothing to recover.
pub(super) fn draw(canvas: &mut Canvas, sight: &Sight<'_>) -> Option<()> {
    let (last, _) = sight.last().filter(|(after, _)| *after > Micros::ZERO)?;
    // A little of what comes after, so that it is seen to stay.
    let shown = Micros::new(last.get().saturating_add(last.get() / 12).max(1));
    let scale = Scale::holding(sight.capacity);
    let x = |after: f64| AREA.x + (after / shown.get() as f64).min(1.0) * AREA.width;
    let y = |left: f64| AREA.bottom() - left / scale.top as f64 * AREA.height;
    draw_grid(canvas, shown, scale);
    let points = match sight.form() {
        Form::Bucket if sight.standing.held == 0 => even(sight),
        _ => stepwise(sight),
    };
    let points: Vec<Point> = points.into_iter().map(|(after, left)| (x(after), y(left))).collect();
    let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    let line = format!("{}H{:.1}", line.join("L"), AREA.right());
    let (left, bottom) = (AREA.x, AREA.bottom());
    canvas.write(format_args!(
        "<path class=\"water\" d=\"M{left:.1} {bottom:.1}L{line}V{bottom:.1}Z\"/>\n\
         <path class=\"shore\" d=\"M{line}\"/>\n"
    ));
    let full = y(sight.capacity as f64);
    canvas.line("promise", (AREA.x, full), (AREA.right(), full));
    canvas.line("base", (AREA.x, bottom), (AREA.right(), bottom));
    canvas.text(AREA.x, 16.0, Anchor::Start, "small muted", "left, if nobody asks");
    let ends = format!("as good as unused in {}", span(last));
    let ends = if sight.recovery.iter().any(|known| known.after.span().is_none()) {
        "the rest is left when its holder gives it back".into()
    } else {
        ends
    };
    canvas.text(AREA.right(), 16.0, Anchor::End, "small muted", &ends);
    Some(())
}

/// The level of a bucket: a straight line through what is known of it.
fn even(sight: &Sight<'_>) -> Vec<Point> {
    let known = sight.recovery.iter();
    let known =
        known.filter_map(|known| Some((known.after.span()?.get() as f64, known.fits as f64)));
    let known: Vec<Point> = known.collect();
    let ([first, ..], [.., last]) = (&*known, &*known) else { return Vec::new() };
    let now = (0.0, sight.standing.remaining as f64);
    let slope = match last.0 > first.0 {
        true => (last.1 - first.1) / (last.0 - first.0),
        false => (last.1 - now.1) / last.0.max(1.0),
    };
    let at_start = last.1 - slope * last.0;
    let start = match at_start < 0.0 {
        // In debt: for a while nothing is left.
        true => vec![(0.0, 0.0), (-at_start / slope, 0.0)],
        false => vec![(0.0, at_start)],
    };
    start.into_iter().chain([*last]).collect()
}

/// What comes back all at once, step by step. Between what is known there is at least so much.
fn stepwise(sight: &Sight<'_>) -> Vec<Point> {
    let mut left = sight.standing.remaining as f64;
    let mut points = vec![(0.0, left)];
    for known in sight.recovery {
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
        canvas.text(AREA.x - 8.0, y + 4.0, Anchor::End, "small muted", &number(mark));
    }
    let axis = Axis { span: shown, step: shown, steps: 1 };
    for instant in instants(&axis) {
        let x = AREA.x + instant.get() as f64 / shown.get() as f64 * AREA.width;
        canvas.line("grid", (x, AREA.y), (x, AREA.bottom()));
        let (anchor, text) = match instant {
            Micros::ZERO => (Anchor::Start, "now".into()),
            instant => (Anchor::Middle, span(instant)),
        };
        // What would reach beyond the edge is left out.
        if x < AREA.right() - 12.0 {
            canvas.text(x, AREA.bottom() + 17.0, anchor, "small muted", &text);
        }
    }
}
