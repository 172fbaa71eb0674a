//! Upper bounds of the admissions in an interval, and random limits with such a bound.

use tidegate_core::{CalendarUnit, Limit, LimitBuilder, Micros, Span};
use tidegate_model::TraceRng;

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;

/// Upper bound of the admissions in any closed interval. `span` is from the first admission to the
/// last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AdmissionBound {
    /// `burst + count * span / period`, exactly.
    Rate { burst: u64, count: u64, period: u64 },
    /// `burst + amount * (floor(span / every) + 1)`, and `burst` at one instant.
    Steps { burst: u64, amount: u64, every: u64 },
    /// `max` if `span < length`, that is in every half-open interval of that length.
    Window { max: u64, length: u64, limit: u64 },
}

/// Events inside an interval that raise its bound.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct BoundAllowance {
    pub(crate) refunded: u64,
    /// Number of steps back of the clock, if they raise the bound.
    pub(crate) steps_back: u64,
    /// Sum of the jumps forward of the clock.
    pub(crate) forward: u64,
    /// `floor(jump / W) + 1` summed over the jumps.
    pub(crate) windows: u64,
}

impl AdmissionBound {
    pub(crate) fn holds_for(&self, admitted: u64, span: u64, allowance: &BoundAllowance) -> bool {
        let admitted = i128::from(admitted) - i128::from(allowance.refunded);
        let wide = |number: u64| i128::from(number);
        match *self {
            Self::Rate { burst, count, period } => {
                let time = wide(span) + wide(allowance.forward);
                (admitted - wide(burst)) * wide(period) <= wide(count) * time
            }
            Self::Steps { burst, amount, every } => {
                let steps = if span == 0 { 0 } else { span / every + 1 };
                let steps = steps + allowance.windows + allowance.steps_back;
                admitted <= wide(burst) + wide(amount) * wide(steps)
            }
            Self::Window { max, length, limit } => {
                let windows = allowance.windows + allowance.steps_back;
                span >= length || admitted <= wide(max) + wide(limit) * wide(windows)
            }
        }
    }

    /// The number of windows (steps) that a jump of the clock may open.
    pub(crate) fn windows(&self, jump: u64) -> u64 {
        match *self {
            Self::Rate { .. } => 0,
            Self::Steps { every: length, .. } | Self::Window { length, .. } => jump / length + 1,
        }
    }
}

/// A limit, its bound, and the instants at which to attack it.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) limit: Limit,
    pub(crate) bound: AdmissionBound,
    /// Boundaries lie at multiples of this.
    pub(crate) edge: u64,
    /// The time scale on which the state changes.
    pub(crate) scale: u64,
    /// Upper bound of the time until the key is unused, without debt, on a clock that stepped back.
    pub(crate) recovery: u64,
    /// Whether a step back may repeat a window or a step. Only aligned windows may repeat.
    pub(crate) repeats_after_step_back: bool,
}

/// Draws a random case, or `None` if the numbers are refused.
pub(crate) type Draw = fn(&mut TraceRng) -> Option<Case>;

/// Every algorithm with a bound on intervals.
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

/// Draws until a case is valid.
pub(crate) fn case(draw: Draw, rng: &mut TraceRng) -> Case {
    loop {
        // A history of 80 recoveries has to end before the last instant.
        if let Some(case) = draw(rng).filter(|case| case.recovery < 1 << 42) {
            return case;
        }
    }
}

fn plain(span: u64) -> Span {
    Span::Plain(Micros::new(span))
}

/// A count and a span: tiny, usual, or so large that the tick is a millisecond or a second.
fn numbers(rng: &mut TraceRng) -> (u64, u64) {
    match rng.below(6) {
        0 | 1 => (rng.between(1, 9), rng.between(1, 30)),
        2 => (rng.between(1, 30), SECOND * rng.pick(&[1, 10, 60])),
        3 => (rng.between(1, 1_000), rng.between(1, 1_000_000)),
        4 => (rng.pick(&[77_777, 1, 99_991, 86_399]), DAY),
        _ => (rng.between(1, 1_000_000), DAY * rng.pick(&[1, 7, 30, 365])),
    }
}

fn bucket(builder: LimitBuilder, size: u64, (count, period): (u64, u64)) -> Option<Case> {
    let limit = builder.build().ok()?;
    let tick = limit.tick().span().get();
    let refill = u128::from(size) * u128::from(period) / u128::from(count);
    Some(Case {
        limit,
        bound: AdmissionBound::Rate { burst: size, count, period },
        edge: tick,
        scale: (period / count).max(2 * tick),
        // Two roundings up to the tick, of the instant and of the drain.
        recovery: u64::try_from(refill).ok()? + 2 * tick,
        repeats_after_step_back: false,
    })
}

fn size(rng: &mut TraceRng, count: u64) -> u64 {
    match rng.below(4) {
        0 => count,
        1 => rng.between(1, 5),
        2 => rng.pick(&[100_000, 1 << 20]),
        _ => rng.between(1, 100),
    }
}

fn token_bucket(rng: &mut TraceRng) -> Option<Case> {
    let (count, period) = numbers(rng);
    let size = size(rng, count);
    bucket(Limit::per(count, plain(period)).burst(size), size, (count, period))
}

fn leaky_bucket(rng: &mut TraceRng) -> Option<Case> {
    let (count, period) = numbers(rng);
    let size = size(rng, count);
    bucket(Limit::leaky_bucket(count, plain(period)).capacity(size), size, (count, period))
}

fn queue(rng: &mut TraceRng) -> Option<Case> {
    let (count, period) = numbers(rng);
    let size = size(rng, count);
    bucket(Limit::leaky_bucket(count, plain(period)).capacity(size).queue(), size, (count, period))
}

fn steps(rng: &mut TraceRng) -> Option<Case> {
    let (amount, every) = numbers(rng);
    let steps = rng.between(1, 5);
    let burst = size(rng, amount);
    let limit = Limit::per(amount * steps, plain(every * steps)).every(plain(every)).burst(burst);
    Some(Case {
        limit: limit.build().ok()?,
        bound: AdmissionBound::Steps { burst, amount, every },
        edge: every,
        scale: every,
        recovery: burst.div_ceil(amount) * every,
        repeats_after_step_back: true,
    })
}

fn window(builder: LimitBuilder, limit: u64, max: u64, length: u64) -> Option<Case> {
    Some(Case {
        limit: builder.build().ok()?,
        bound: AdmissionBound::Window { max, length, limit },
        edge: length,
        scale: length,
        recovery: length,
        repeats_after_step_back: false,
    })
}

fn fixed(rng: &mut TraceRng) -> Option<Case> {
    let (count, length) = numbers(rng);
    let case = window(Limit::fixed_window(count, plain(length)), count, 2 * count, length)?;
    Some(Case { repeats_after_step_back: true, ..case })
}

fn first_hit(rng: &mut TraceRng) -> Option<Case> {
    let (count, length) = numbers(rng);
    // One less than twice the limit: the permit that begins the window is never in the interval.
    window(Limit::fixed_window(count, plain(length)).first_hit(), count, 2 * count - 1, length)
}

fn log(rng: &mut TraceRng) -> Option<Case> {
    let (count, length) = numbers(rng);
    window(Limit::sliding_log(count, plain(length)), count, count, length)
}

/// Count, window and length of the sub-windows, which need not divide the window.
pub(crate) fn sub_windows_of(rng: &mut TraceRng) -> (u64, u64, u64) {
    let (count, length) = numbers(rng);
    let precision = match rng.below(3) {
        0 => rng.between(1, length),
        1 => length.div_ceil(rng.between(1, 20)),
        _ => length / rng.pick(&[1, 2, 3, 10, 60]).min(length),
    };
    (count, length, precision)
}

fn sub_windows(rng: &mut TraceRng) -> Option<Case> {
    let (count, length, precision) = sub_windows_of(rng);
    let builder = Limit::sliding_window(count, plain(length)).precision(plain(precision));
    let recovery = (length.div_ceil(precision) + 1) * precision;
    let case = window(builder, count, count, length)?;
    Some(Case { edge: precision, recovery, ..case })
}

fn approximate(rng: &mut TraceRng) -> Option<Case> {
    let (count, length) = numbers(rng);
    let builder = Limit::sliding_window(count, plain(length)).approximate();
    let case = window(builder, count, 2 * count - 1, length)?;
    Some(Case { recovery: 2 * length, ..case })
}

/// A calendar window; the caller passes its boundaries.
pub(crate) fn calendar(count: u64, unit: CalendarUnit) -> Limit {
    Limit::fixed_window(count, Span::Calendar(unit)).build().expect("a valid limit")
}
