//! The gauge: a bucket with its level, a window with its count, a log with its entries, or slots.

use tidegate::{Algorithm, Micros};

use super::key_chart::KeyChart;
use super::shape::RecoveryShape;
use crate::chart::canvas::{self, Canvas, Rect, TextAnchor};
use crate::text::format::number;

const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 210.0;
/// Area of a bucket.
const BUCKET: Rect = Rect { x: 26.0, y: 40.0, width: 132.0, height: 132.0 };
/// Area of a window.
const WINDOW: Rect = Rect { x: 14.0, y: 52.0, width: 312.0, height: 112.0 };
/// Height of the waves.
const WAVE: f64 = 3.0;
/// Upper bound of the slots that are drawn one by one.
const MAX_SLOTS: u64 = 60;

/// Draws the current state.
pub(crate) fn gauge(chart: &KeyChart<'_>) -> String {
    let mut canvas = Canvas::default();
    draw(&mut canvas, chart);
    let title = canvas::title(&chart.state_title());
    canvas.into_svg((WIDTH, HEIGHT), "class=\"plot gauge\" role=\"img\"", &title)
}

fn draw(canvas: &mut Canvas, chart: &KeyChart<'_>) {
    match chart.shape() {
        RecoveryShape::Bucket | RecoveryShape::Steps => draw_bucket(canvas, chart),
        RecoveryShape::Window => draw_window(canvas, chart),
        RecoveryShape::Log { window } if chart.standing.held == 0 => {
            draw_log(canvas, chart, window)
        }
        RecoveryShape::SubWindows { part, count } if chart.standing.held == 0 => {
            draw_parts(canvas, chart, part, count);
        }
        RecoveryShape::Log { window } => draw_sliding(canvas, chart, window),
        RecoveryShape::Estimate { window } => {
            draw_sliding(canvas, chart, window);
            let (x, y) = (WINDOW.x + WINDOW.width / 2.0, WINDOW.bottom() + 18.0);
            canvas.text(x, y, TextAnchor::Middle, "small muted", "estimated from two counts");
        }
        RecoveryShape::SubWindows { part, count } => {
            draw_sliding(canvas, chart, Micros::new(part.get().saturating_mul(count)));
        }
        RecoveryShape::Holders if chart.capacity <= MAX_SLOTS => draw_slots(canvas, chart),
        RecoveryShape::Holders => draw_bucket(canvas, chart),
    }
}

/// A bucket with its level: the remaining permits of a token bucket, the content of a leaky one.
fn draw_bucket(canvas: &mut Canvas, chart: &KeyChart<'_>) {
    let standing = chart.standing;
    let shown = match chart.shows_used() {
        true => standing.used.min(chart.capacity),
        false => standing.remaining,
    };
    let height = |amount: u64| share(amount, chart.capacity) * BUCKET.height;
    let level = BUCKET.bottom() - height(shown);
    if standing.held > 0 {
        // Extends behind the waves.
        let height = height(standing.held.min(chart.capacity - shown)) + WAVE.min(height(shown));
        let bottom = (level + WAVE).min(BUCKET.bottom());
        let held = Rect { x: BUCKET.x, y: bottom - height, width: BUCKET.width, height };
        canvas.rectangle("held", held);
    }
    if shown > 0 {
        draw_water(canvas, level);
    }
    let (left, right, top) = (BUCKET.x, BUCKET.right(), BUCKET.y - 8.0);
    let bottom = BUCKET.bottom();
    canvas.write(format_args!(
        "<path class=\"bucket\" d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}V{top:.1}\"/>\n"
    ));
    canvas.line("promise", (left, BUCKET.y), (right, BUCKET.y));
    draw_drops(canvas, chart);
    draw_numbers(canvas, chart, right + 18.0);
}

fn draw_water(canvas: &mut Canvas, level: f64) {
    let (x, width, bottom) = (BUCKET.x, BUCKET.width, BUCKET.bottom());
    let quarter = width / 4.0;
    // Waves, unless they would leave the bucket.
    let wave = (bottom - level).min(WAVE);
    canvas.write(format_args!(
        "<path class=\"water\" d=\"M{x:.1} {level:.1}q{:.1} {:.1} {quarter:.1} 0t{quarter:.1} 0t{quarter:.1} \
         0t{quarter:.1} 0V{bottom:.1}H{x:.1}Z\"/>\n",
        quarter / 2.0,
        -2.0 * wave,
    ));
}

/// Drops fall into a token bucket and out of a leaky bucket.
fn draw_drops(canvas: &mut Canvas, chart: &KeyChart<'_>) {
    let x = BUCKET.x + BUCKET.width / 2.0;
    let first = match chart.limit.algorithm() {
        Algorithm::TokenBucket => 6.0,
        Algorithm::LeakyBucket => BUCKET.bottom() + 8.0,
        _ => return,
    };
    for nth in [0.0, 1.0] {
        let y = first + nth * 14.0;
        canvas.write(format_args!(
            "<path class=\"drop\" d=\"M{x:.1} {y:.1}q4.5 6 0 9q-4.5 -3 0 -9Z\"/>\n"
        ));
    }
}

/// The numbers next to a bucket.
fn draw_numbers(canvas: &mut Canvas, chart: &KeyChart<'_>, x: f64) {
    let standing = chart.standing;
    canvas.text(x, 76.0, TextAnchor::Start, "big", &number(standing.remaining));
    let of = format!("remaining of {}", number(chart.capacity));
    canvas.text(x, 96.0, TextAnchor::Start, "muted", &of);
    let mut lines = vec![("muted", format!("{} used", number(standing.used)))];
    if standing.held > 0 {
        lines.push(("muted", format!("{} held", number(standing.held))));
    }
    if chart.debt() > 0 {
        lines.push(("bad", format!("{} in debt", number(chart.debt()))));
    }
    for (nth, (class, line)) in lines.iter().enumerate() {
        canvas.text(x, 122.0 + nth as f64 * 18.0, TextAnchor::Start, class, line);
    }
}

/// A fixed window, with its count so far.
fn draw_window(canvas: &mut Canvas, chart: &KeyChart<'_>) {
    draw_headline(canvas, chart);
    canvas.rectangle("pane", WINDOW);
    let Some((ago, left)) = chart.window else {
        let (x, y) = (WINDOW.x + WINDOW.width / 2.0, WINDOW.y + WINDOW.height / 2.0);
        canvas.text(x, y + 4.0, TextAnchor::Middle, "muted", "begins with the first request");
        return;
    };
    let whole = ago.saturating_add(left).get().max(1);
    let now = WINDOW.x + share(ago.get(), whole) * WINDOW.width;
    draw_level(canvas, chart, now - WINDOW.x);
    canvas.line("now", (now, WINDOW.y - 6.0), (now, WINDOW.bottom()));
    let y = WINDOW.bottom() + 18.0;
    let began = format!("began {ago} ago");
    canvas.text(WINDOW.x, y, TextAnchor::Start, "small muted", &began);
    let ends = format!("ends in {left}");
    canvas.text(WINDOW.right(), y, TextAnchor::End, "small muted", &ends);
}

/// The sliding window up to now, with its usage.
fn draw_sliding(canvas: &mut Canvas, chart: &KeyChart<'_>, window: Micros) {
    draw_headline(canvas, chart);
    canvas.rectangle("pane", WINDOW);
    draw_level(canvas, chart, WINDOW.width);
    draw_time(canvas, window);
}

fn draw_level(canvas: &mut Canvas, chart: &KeyChart<'_>, width: f64) {
    let standing = chart.standing;
    let height = |amount: u64| share(amount, chart.capacity) * WINDOW.height;
    let used = height(standing.used.min(chart.capacity));
    let area = Rect { x: WINDOW.x, y: WINDOW.bottom() - used, width, height: used };
    canvas.rectangle("water", area);
    if standing.held > 0 {
        let free = chart.capacity.saturating_sub(standing.used);
        let height = height(standing.held.min(free));
        canvas.rectangle("held", Rect { y: area.y - height, height, ..area });
    }
    canvas.line("promise", (WINDOW.x, WINDOW.y), (WINDOW.right(), WINDOW.y));
}

/// The entries of a log at their time in the window.
fn draw_log(canvas: &mut Canvas, chart: &KeyChart<'_>, window: Micros) {
    draw_headline(canvas, chart);
    canvas.rectangle("pane", WINDOW);
    let groups = expiring(chart);
    let max = groups.iter().map(|(_, count)| *count).max().unwrap_or(1);
    for (after, count) in groups {
        // The time until an entry expires is its distance from the start of the window.
        let x = WINDOW.x + share(after.get().min(window.get()), window.get()) * WINDOW.width;
        let y = WINDOW.bottom() - (0.2 + 0.7 * share(count, max)) * WINDOW.height;
        canvas.line("stem", (x, WINDOW.bottom()), (x, y));
        canvas
            .write(format_args!("<circle class=\"entry\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>\n"));
        if count > 1 {
            canvas.text(x, y - 8.0, TextAnchor::Middle, "small", &number(count));
        }
    }
    draw_time(canvas, window);
}

/// The counts of sub-windows.
fn draw_parts(canvas: &mut Canvas, chart: &KeyChart<'_>, part: Micros, count: u64) {
    draw_headline(canvas, chart);
    canvas.rectangle("pane", WINDOW);
    let whole = part.get().saturating_mul(count).max(1);
    let groups = expiring(chart);
    let max = groups.iter().map(|(_, count)| *count).max().unwrap_or(1);
    for (after, count) in groups {
        let start = share(after.get().min(whole), whole) * WINDOW.width;
        let width = (share(part.get(), whole) * WINDOW.width).min(WINDOW.width - start);
        let height = (0.1 + 0.75 * share(count, max)) * WINDOW.height;
        let x = WINDOW.x + start;
        let y = WINDOW.bottom() - height;
        canvas.rectangle("water", Rect { x: x + 0.5, y, width: (width - 1.0).max(1.5), height });
        if width > 16.0 {
            canvas.text(x + width / 2.0, y - 5.0, TextAnchor::Middle, "small", &number(count));
        }
    }
    draw_time(canvas, Micros::new(whole));
}

/// The slots of a concurrency limit, taken or free.
fn draw_slots(canvas: &mut Canvas, chart: &KeyChart<'_>) {
    const IN_ROW: u64 = 12;
    draw_headline(canvas, chart);
    let size = if chart.capacity <= 2 * IN_ROW { 26.0 } else { 22.0 };
    for nth in 0..chart.capacity {
        let x = WINDOW.x + (nth % IN_ROW) as f64 * size;
        let y = WINDOW.y + (nth / IN_ROW) as f64 * size;
        let class = if nth < chart.standing.held { "slot taken" } else { "slot" };
        canvas.rectangle(class, Rect { x, y, width: size - 5.0, height: size - 5.0 });
    }
}

fn draw_headline(canvas: &mut Canvas, chart: &KeyChart<'_>) {
    let standing = chart.standing;
    let taken = standing.used.saturating_add(standing.held);
    let (class, of) = match chart.debt() {
        0 => {
            let (all, left) = (number(chart.capacity), number(standing.remaining));
            ("muted aside", format!("of {all}, {left} remaining"))
        }
        debt => ("bad aside", format!("of {}, {} in debt", number(chart.capacity), number(debt))),
    };
    let (x, taken) = (WINDOW.x, number(taken));
    canvas.write(format_args!(
        "<text x=\"{x:.1}\" y=\"34\" class=\"big\">{taken}<tspan dx=\"7\" class=\"{class}\">{of}</tspan></text>\n"
    ));
}

fn draw_time(canvas: &mut Canvas, window: Micros) {
    let y = WINDOW.bottom() + 18.0;
    let ago = format!("{window} ago");
    canvas.text(WINDOW.x, y, TextAnchor::Start, "small muted", &ago);
    canvas.text(WINDOW.right(), y, TextAnchor::End, "small muted", "now");
    let x = WINDOW.right();
    canvas.line("now", (x, WINDOW.y - 6.0), (x, WINDOW.bottom()));
}

/// Used permits by the time at which they expire, as far as the recovery is known.
fn expiring(chart: &KeyChart<'_>) -> Vec<(Micros, u64)> {
    let mut groups: Vec<(Micros, u64)> = Vec::new();
    let mut expired_before = 0;
    for known in chart.recovery {
        let Some(after) = known.after.span() else { break };
        let staying = chart.capacity.saturating_sub(known.fits);
        let expired = chart.standing.used.saturating_sub(staying);
        let count = expired.saturating_sub(expired_before);
        expired_before = expired_before.max(expired);
        match groups.last_mut() {
            Some((at, before)) if *at == after => *before += count,
            _ if count > 0 => groups.push((after, count)),
            _ => {}
        }
    }
    groups
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
