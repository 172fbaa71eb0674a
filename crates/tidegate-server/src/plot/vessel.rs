//! What is there now, drawn: a bucket with its level, a window with its count, a log with its entries, holders.

use tidegate::{Algorithm, Micros};

use super::canvas::{Anchor, Area, Canvas};
use super::form::Form;
use super::standing::Sight;
use super::words::{number, span};

pub(super) const WIDTH: f64 = 340.0;
pub(super) const HEIGHT: f64 = 210.0;
/// Where buckets stand.
const BUCKET: Area = Area { x: 26.0, y: 40.0, width: 132.0, height: 132.0 };
/// Where windows lie.
const WINDOW: Area = Area { x: 14.0, y: 52.0, width: 312.0, height: 112.0 };
/// How high waves are.
const WAVE: f64 = 3.0;
/// The most holders that are drawn one by one.
const MOST_SLOTS: u64 = 60;

pub(super) fn draw(canvas: &mut Canvas, sight: &Sight<'_>) {
    match sight.form() {
        Form::Bucket | Form::Steps => draw_bucket(canvas, sight),
        Form::Window => draw_window(canvas, sight),
        Form::Log { window } if sight.standing.held == 0 => draw_log(canvas, sight, window),
        Form::SubWindows { part, count } if sight.standing.held == 0 => {
            draw_parts(canvas, sight, part, count);
        }
        Form::Log { window } => draw_sliding(canvas, sight, window),
        Form::Estimate { window } => {
            draw_sliding(canvas, sight, window);
            let (x, y) = (WINDOW.x + WINDOW.width / 2.0, WINDOW.bottom() + 18.0);
            canvas.text(x, y, Anchor::Middle, "small muted", "estimated from two counts");
        }
        Form::SubWindows { part, count } => {
            draw_sliding(canvas, sight, Micros::new(part.get().saturating_mul(count)));
        }
        Form::Holders if sight.capacity <= MOST_SLOTS => draw_slots(canvas, sight),
        Form::Holders => draw_bucket(canvas, sight),
    }
}

/// A level: what is left of a token bucket, what is in a leaky one.
fn draw_bucket(canvas: &mut Canvas, sight: &Sight<'_>) {
    let standing = sight.standing;
    let shown = match sight.shows_used() {
        true => standing.used.min(sight.capacity),
        false => standing.remaining,
    };
    let height = |amount: u64| share(amount, sight.capacity) * BUCKET.height;
    let level = BUCKET.bottom() - height(shown);
    if standing.held > 0 {
        // It reaches behind the waves.
        let height = height(standing.held.min(sight.capacity - shown)) + WAVE.min(height(shown));
        let bottom = (level + WAVE).min(BUCKET.bottom());
        let held = Area { x: BUCKET.x, y: bottom - height, width: BUCKET.width, height };
        canvas.rectangle("held", held);
    }
    if shown > 0 {
        draw_water(canvas, level);
    }
    let (left, right, top) = (BUCKET.x, BUCKET.right(), BUCKET.y - 8.0);
    let bottom = BUCKET.bottom();
    canvas.write(format_args!(
        "<path class=\"vessel\" d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}V{top:.1}\"/>\n"
    ));
    canvas.line("promise", (left, BUCKET.y), (right, BUCKET.y));
    draw_drops(canvas, sight);
    draw_numbers(canvas, sight, right + 18.0);
}

fn draw_water(canvas: &mut Canvas, level: f64) {
    let (x, width, bottom) = (BUCKET.x, BUCKET.width, BUCKET.bottom());
    let quarter = width / 4.0;
    // A surface that moves a little, as long as it stays inside.
    let wave = (bottom - level).min(WAVE);
    canvas.write(format_args!(
        "<path class=\"water\" d=\"M{x:.1} {level:.1}q{:.1} {:.1} {quarter:.1} 0t{quarter:.1} 0t{quarter:.1} \
         0t{quarter:.1} 0V{bottom:.1}H{x:.1}Z\"/>\n",
        quarter / 2.0,
        -2.0 * wave,
    ));
}

/// What fills a token bucket falls into it; what a leaky one lets go falls out.
fn draw_drops(canvas: &mut Canvas, sight: &Sight<'_>) {
    let x = BUCKET.x + BUCKET.width / 2.0;
    let first = match sight.limit.algorithm() {
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

/// The numbers beside a picture.
fn draw_numbers(canvas: &mut Canvas, sight: &Sight<'_>, x: f64) {
    let standing = sight.standing;
    canvas.text(x, 76.0, Anchor::Start, "big", &number(standing.remaining));
    let of = format!("left of {}", number(sight.capacity));
    canvas.text(x, 96.0, Anchor::Start, "muted", &of);
    let mut lines = vec![("muted", format!("{} used", number(standing.used)))];
    if standing.held > 0 {
        lines.push(("muted", format!("{} held", number(standing.held))));
    }
    if sight.debt() > 0 {
        lines.push(("bad", format!("{} in debt", number(sight.debt()))));
    }
    for (nth, (class, line)) in lines.iter().enumerate() {
        canvas.text(x, 122.0 + nth as f64 * 18.0, Anchor::Start, class, line);
    }
}

/// A window that begins and ends, with what was counted in it so far.
fn draw_window(canvas: &mut Canvas, sight: &Sight<'_>) {
    draw_headline(canvas, sight);
    canvas.rectangle("pane", WINDOW);
    let Some((ago, left)) = sight.window else {
        let (x, y) = (WINDOW.x + WINDOW.width / 2.0, WINDOW.y + WINDOW.height / 2.0);
        canvas.text(x, y + 4.0, Anchor::Middle, "muted", "begins with the first request");
        return;
    };
    let whole = ago.saturating_add(left).get().max(1);
    let now = WINDOW.x + share(ago.get(), whole) * WINDOW.width;
    draw_level(canvas, sight, now - WINDOW.x);
    canvas.line("now", (now, WINDOW.y - 6.0), (now, WINDOW.bottom()));
    let y = WINDOW.bottom() + 18.0;
    let began = format!("began {} ago", span(ago));
    canvas.text(WINDOW.x, y, Anchor::Start, "small muted", &began);
    let ends = format!("ends in {}", span(left));
    canvas.text(WINDOW.right(), y, Anchor::End, "small muted", &ends);
}

/// The last window up to now, with how much of the limit it has used.
fn draw_sliding(canvas: &mut Canvas, sight: &Sight<'_>, window: Micros) {
    draw_headline(canvas, sight);
    canvas.rectangle("pane", WINDOW);
    draw_level(canvas, sight, WINDOW.width);
    draw_time(canvas, window);
}

fn draw_level(canvas: &mut Canvas, sight: &Sight<'_>, width: f64) {
    let standing = sight.standing;
    let height = |amount: u64| share(amount, sight.capacity) * WINDOW.height;
    let used = height(standing.used.min(sight.capacity));
    let area = Area { x: WINDOW.x, y: WINDOW.bottom() - used, width, height: used };
    canvas.rectangle("water", area);
    if standing.held > 0 {
        let room = sight.capacity.saturating_sub(standing.used);
        let height = height(standing.held.min(room));
        canvas.rectangle("held", Area { y: area.y - height, height, ..area });
    }
    canvas.line("promise", (WINDOW.x, WINDOW.y), (WINDOW.right(), WINDOW.y));
}

/// Entries where they stand in the last window.
fn draw_log(canvas: &mut Canvas, sight: &Sight<'_>, window: Micros) {
    draw_headline(canvas, sight);
    canvas.rectangle("pane", WINDOW);
    let groups = leaving(sight);
    let most = groups.iter().map(|(_, count)| *count).max().unwrap_or(1);
    for (after, count) in groups {
        // What leaves at the end of a window came at its beginning.
        let x = WINDOW.x + share(after.get().min(window.get()), window.get()) * WINDOW.width;
        let y = WINDOW.bottom() - (0.2 + 0.7 * share(count, most)) * WINDOW.height;
        canvas.line("stem", (x, WINDOW.bottom()), (x, y));
        canvas
            .write(format_args!("<circle class=\"entry\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>\n"));
        if count > 1 {
            canvas.text(x, y - 8.0, Anchor::Middle, "small", &number(count));
        }
    }
    draw_time(canvas, window);
}

/// The counts of the parts of a window.
fn draw_parts(canvas: &mut Canvas, sight: &Sight<'_>, part: Micros, count: u64) {
    draw_headline(canvas, sight);
    canvas.rectangle("pane", WINDOW);
    let whole = part.get().saturating_mul(count).max(1);
    let groups = leaving(sight);
    let most = groups.iter().map(|(_, count)| *count).max().unwrap_or(1);
    for (after, count) in groups {
        let begins = share(after.get().min(whole), whole) * WINDOW.width;
        let width = (share(part.get(), whole) * WINDOW.width).min(WINDOW.width - begins);
        let height = (0.1 + 0.75 * share(count, most)) * WINDOW.height;
        let x = WINDOW.x + begins;
        let y = WINDOW.bottom() - height;
        canvas.rectangle("water", Area { x: x + 0.5, y, width: (width - 1.0).max(1.5), height });
        if width > 16.0 {
            canvas.text(x + width / 2.0, y - 5.0, Anchor::Middle, "small", &number(count));
        }
    }
    draw_time(canvas, Micros::new(whole));
}

/// Holders at one time: each has a place, and free places are empty.
fn draw_slots(canvas: &mut Canvas, sight: &Sight<'_>) {
    const IN_ROW: u64 = 12;
    draw_headline(canvas, sight);
    let size = if sight.capacity <= 2 * IN_ROW { 26.0 } else { 22.0 };
    for nth in 0..sight.capacity {
        let x = WINDOW.x + (nth % IN_ROW) as f64 * size;
        let y = WINDOW.y + (nth / IN_ROW) as f64 * size;
        let class = if nth < sight.standing.held { "slot taken" } else { "slot" };
        canvas.rectangle(class, Area { x, y, width: size - 5.0, height: size - 5.0 });
    }
}

fn draw_headline(canvas: &mut Canvas, sight: &Sight<'_>) {
    let standing = sight.standing;
    let taken = standing.used.saturating_add(standing.held);
    let (class, of) = match sight.debt() {
        0 => {
            let (all, left) = (number(sight.capacity), number(standing.remaining));
            ("muted aside", format!("of {all}, {left} left"))
        }
        debt => ("bad aside", format!("of {}, {} in debt", number(sight.capacity), number(debt))),
    };
    let (x, taken) = (WINDOW.x, number(taken));
    canvas.write(format_args!(
        "<text x=\"{x:.1}\" y=\"34\" class=\"big\">{taken}<tspan dx=\"7\" class=\"{class}\">{of}</tspan></text>\n"
    ));
}

fn draw_time(canvas: &mut Canvas, window: Micros) {
    let y = WINDOW.bottom() + 18.0;
    let ago = format!("{} ago", span(window));
    canvas.text(WINDOW.x, y, Anchor::Start, "small muted", &ago);
    canvas.text(WINDOW.right(), y, Anchor::End, "small muted", "now");
    let x = WINDOW.right();
    canvas.line("now", (x, WINDOW.y - 6.0), (x, WINDOW.bottom()));
}

/// What leaves, and when: all that is used, as far as it is known one by one.
fn leaving(sight: &Sight<'_>) -> Vec<(Micros, u64)> {
    let mut groups: Vec<(Micros, u64)> = Vec::new();
    let mut gone_before = 0;
    for known in sight.recovery {
        let Some(after) = known.after.span() else { break };
        let stays = sight.capacity.saturating_sub(known.fits);
        let gone = sight.standing.used.saturating_sub(stays);
        let count = gone.saturating_sub(gone_before);
        gone_before = gone_before.max(gone);
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
