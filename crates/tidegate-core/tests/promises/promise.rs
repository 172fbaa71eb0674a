//! What may pass in an interval, and random limits that promise it.

use tidegate_core::{CalendarUnit, Draft, Limit, Micros, Span};
use tidegate_model::Rng;

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;

/// The most that may pass in any interval. Closed intervals: `span` is from the first admission to
/// the last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Promise {
    /// `burst + count * span / period`, exactly.
    Rate { burst: u64, count: u64, period: u64 },
    /// `burst + amount * (floor(span / every) + 1)`, and `burst` at one instant.
    Steps { burst: u64, amount: u64, every: u64 },
    /// `most` if `span < length`, that is in every half-open interval of that length.
    Window { most: u64, length: u64, limit: u64 },
}

/// What happened inside an interval that allows for more.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Excuse {
    pub(crate) refunded: u64,
    /// How often the clock stepped back, if the promise is weaker then.
    pub(crate) steps_back: u64,
    /// By how much the clock jumped forward, and for each jump `floor(jump / W) + 1` windows.
    pub(crate) forward: u64,
    pub(crate) windows: u64,
}

impl Promise {
    pub(crate) fn keeps(&self, admitted: u64, span: u64, excuse: &Excuse) -> bool {
        let admitted = i128::from(admitted) - i128::from(excuse.refunded);
        let wide = |number: u64| i128::from(number);
        match *self {
            Self::Rate { burst, count, period } => {
                let time = wide(span) + wide(excuse.forward);
                (admitted - wide(burst)) * wide(period) <= wide(count) * time
            }
            Self::Steps { burst, amount, every } => {
                let steps = if span == 0 { 0 } else { span / every + 1 };
                let steps = steps + excuse.windows + excuse.steps_back;
                admitted <= wide(burst) + wide(amount) * wide(steps)
            }
            Self::Window { most, length, limit } => {
                let windows = excuse.windows + excuse.steps_back;
                span >= length || admitted <= wide(most) + wide(limit) * wide(windows)
            }
        }
    }

    /// How many windows (steps) a jump of the clock may open.
    pub(crate) fn windows(&self, jump: u64) -> u64 {
        match *self {
            Self::Rate { .. } => 0,
            Self::Steps { every: length, .. } | Self::Window { length, .. } => jump / length + 1,
        }
    }
}

/// A limit, what it promises, and where to attack it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) limit: Limit,
    pub(crate) promise: Promise,
    /// Boundaries lie at multiples of this.
    pub(crate) edge: u64,
    /// The time in which much happens.
    pub(crate) scale: u64,
    /// Until an unused key at the latest, without debt, on a clock that stepped back.
    pub(crate) recovery: u64,
    /// Does a step back cost a window, or a step? Only where windows are aligned.
    pub(crate) excuses_steps_back: bool,
}

/// A way to draw a case.
pub(crate) type Draw = fn(&mut Rng) -> Option<Case>;

/// Every family with a promise about intervals.
pub(crate) const FAMILIES: [(&str, Draw); 9] = [
    ("token-bucket", token_bucket),
    ("leaky-bucket", leaky_bucket),
    ("leaky-bucket queue", queue),
    ("token-bucket every", steps),
    ("fixed-window", fixed),
    ("fixed-window first-hit", first_hit),
    ("sliding-log", log),
    ("sliding-window approximate", approximate),
    ("sliding-window", sub_windows),
];

/// A case of this family.
pub(crate) fn case(draw: Draw, rng: &mut Rng) -> Case {
    loop {
        // A history of eighty recoveries has to end before the last instant.
        if let Some(case) = draw(rng).filter(|case| case.recovery < 1 << 42) {
            return case;
        }
    }
}

fn plain(span: u64) -> Span {
    Span::Plain(Micros::new(span))
}

/// A count and a span: tiny, usual, or such that they are counted in milliseconds or seconds.
fn numbers(rng: &mut Rng) -> (u64, u64) {
    match rng.below(6) {
        0 | 1 => (rng.between(1, 9), rng.between(1, 30)),
        2 => (rng.between(1, 30), SECOND * rng.pick(&[1, 10, 60])),
        3 => (rng.between(1, 1_000), rng.between(1, 1_000_000)),
        4 => (rng.pick(&[77_777, 1, 99_991, 86_399]), DAY),
        _ => (rng.between(1, 1_000_000), DAY * rng.pick(&[1, 7, 30, 365])),
    }
}

fn bucket(draft: Draft, size: u64, (count, period): (u64, u64)) -> Option<Case> {
    let limit = draft.build().ok()?;
    let tick = limit.tick().span().get();
    let refill = u128::from(size) * u128::from(period) / u128::from(count);
    Some(Case {
        limit,
        promise: Promise::Rate { burst: size, count, period },
        edge: tick,
        scale: (period / count).max(2 * tick),
        // Two roundings up to the tick, of the instant and of the drain.
        recovery: u64::try_from(refill).ok()? + 2 * tick,
        excuses_steps_back: false,
    })
}

fn size(rng: &mut Rng, count: u64) -> u64 {
    match rng.below(4) {
        0 => count,
        1 => rng.between(1, 5),
        2 => rng.pick(&[100_000, 1 << 20]),
        _ => rng.between(1, 100),
    }
}

fn token_bucket(rng: &mut Rng) -> Option<Case> {
    let (count, period) = numbers(rng);
    let size = size(rng, count);
    bucket(Limit::per(count, plain(period)).burst(size), size, (count, period))
}

fn leaky_bucket(rng: &mut Rng) -> Option<Case> {
    let (count, period) = numbers(rng);
    let size = size(rng, count);
    bucket(Limit::leaky_bucket(count, plain(period)).capacity(size), size, (count, period))
}

fn queue(rng: &mut Rng) -> Option<Case> {
    let (count, period) = numbers(rng);
    let size = size(rng, count);
    bucket(Limit::leaky_bucket(count, plain(period)).capacity(size).queue(), size, (count, period))
}

fn steps(rng: &mut Rng) -> Option<Case> {
    let (amount, every) = numbers(rng);
    let steps = rng.between(1, 5);
    let burst = size(rng, amount);
    let limit = Limit::per(amount * steps, plain(every * steps)).every(plain(every)).burst(burst);
    Some(Case {
        limit: limit.build().ok()?,
        promise: Promise::Steps { burst, amount, every },
        edge: every,
        scale: every,
        recovery: burst.div_ceil(amount) * every,
        excuses_steps_back: true,
    })
}

fn window(draft: Draft, limit: u64, most: u64, length: u64) -> Option<Case> {
    Some(Case {
        limit: draft.build().ok()?,
        promise: Promise::Window { most, length, limit },
        edge: length,
        scale: length,
        recovery: length,
        excuses_steps_back: false,
    })
}

fn fixed(rng: &mut Rng) -> Option<Case> {
    let (count, length) = numbers(rng);
    let case = window(Limit::fixed_window(count, plain(length)), count, 2 * count, length)?;
    Some(Case { excuses_steps_back: true, ..case })
}

fn first_hit(rng: &mut Rng) -> Option<Case> {
    let (count, length) = numbers(rng);
    // One less than twice the limit: the permit that began the window is never in the interval.
    window(Limit::fixed_window(count, plain(length)).first_hit(), count, 2 * count - 1, length)
}

fn log(rng: &mut Rng) -> Option<Case> {
    let (count, length) = numbers(rng);
    window(Limit::sliding_log(count, plain(length)), count, count, length)
}

/// A sliding window and the length of its sub-windows, which need not divide it.
pub(crate) fn sub_windows_of(rng: &mut Rng) -> (u64, u64, u64) {
    let (count, length) = numbers(rng);
    let precision = match rng.below(3) {
        0 => rng.between(1, length),
        1 => length.div_ceil(rng.between(1, 20)),
        _ => length / rng.pick(&[1, 2, 3, 10, 60]).min(length),
    };
    (count, length, precision)
}

fn sub_windows(rng: &mut Rng) -> Option<Case> {
    let (count, length, precision) = sub_windows_of(rng);
    let draft = Limit::sliding_window(count, plain(length)).precision(plain(precision));
    let recovery = (length.div_ceil(precision) + 1) * precision;
    let case = window(draft, count, count, length)?;
    Some(Case { edge: precision, recovery, ..case })
}

fn approximate(rng: &mut Rng) -> Option<Case> {
    let (count, length) = numbers(rng);
    let draft = Limit::sliding_window(count, plain(length)).approximate();
    let case = window(draft, count, 2 * count - 1, length)?;
    Some(Case { recovery: 2 * length, ..case })
}

/// A window of the calendar; the boundaries are the caller's affair.
pub(crate) fn calendar(count: u64, unit: CalendarUnit) -> Limit {
    Limit::fixed_window(count, Span::Calendar(unit)).build().expect("a good limit")
}
