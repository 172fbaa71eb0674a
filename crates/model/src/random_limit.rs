//! Random limits over the whole domain and its edges.

use tidegate_core::CalendarUnit;

use crate::spec::{BucketKind, Spec, WindowKind};
use crate::{TestZone, TraceRng};

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;
const LONGEST: u64 = 36_500 * DAY;
const UNITS: [CalendarUnit; 3] = [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month];

impl Spec {
    /// Any limit, valid or not.
    pub fn draw(rng: &mut TraceRng) -> Self {
        let spec = match rng.below(12) {
            0 => bucket(rng, BucketKind::Token),
            1 => bucket(rng, BucketKind::Meter),
            2 => bucket(rng, BucketKind::Queue),
            3 => steps(rng),
            4 => Self::Fixed { count: count(rng), window: WindowKind::Aligned(span(rng)) },
            5 => Self::Fixed { count: count(rng), window: WindowKind::FirstHit(span(rng)) },
            // Half of these are only for callers of the core.
            6 | 7 => Self::Fixed { count: count(rng), window: calendar(rng) },
            8 => Self::Log { count: log_count(rng), window: span(rng) },
            9 => sub_windows(rng),
            10 => approximate(rng),
            _ => Self::Concurrency { holders: count(rng) },
        };
        if rng.one_in(8) { spec.with_small_numbers(rng) } else { spec }
    }

    pub fn draw_good(rng: &mut TraceRng) -> Self {
        loop {
            let spec = Self::draw(rng);
            if !spec.refused() {
                return spec;
            }
        }
    }

    /// A limit to change this one into: of the same algorithm, possibly in another mode.
    pub fn draw_change(&self, rng: &mut TraceRng) -> Self {
        if let Some(spec) = self.neighbour(rng).filter(|_| !rng.one_in(3)) {
            return spec;
        }
        loop {
            let spec = Self::draw(rng);
            if !spec.refused() && spec.algorithm() == self.algorithm() {
                return spec;
            }
        }
    }

    fn algorithm(&self) -> u8 {
        match self {
            Self::Bucket { kind: BucketKind::Token, .. } | Self::Steps { .. } => 0,
            Self::Bucket { .. } => 1,
            Self::Fixed { .. } => 2,
            Self::Log { .. } => 3,
            Self::SubWindows { .. } | Self::Approximate { .. } => 4,
            Self::Concurrency { .. } => 5,
        }
    }

    /// The same limit with one number changed, if that is valid.
    fn neighbour(&self, rng: &mut TraceRng) -> Option<Self> {
        let mut spec = *self;
        let flip = rng.one_in(2);
        match &mut spec {
            Self::Bucket { kind, count, period, size } => match rng.below(4) {
                0 if *kind != BucketKind::Token => {
                    *kind = rng.pick(&[BucketKind::Meter, BucketKind::Queue]);
                }
                0 | 1 => *size = Some(resized(rng, size.unwrap_or(*count))),
                2 => *period = resized(rng, *period),
                _ => *count = resized(rng, *count),
            },
            Self::Steps { count, burst, .. } => {
                *burst = Some(resized(rng, burst.unwrap_or(*count)));
            }
            Self::Fixed { count, .. } if flip => *count = resized(rng, *count),
            Self::Fixed {
                window: WindowKind::Aligned(length) | WindowKind::FirstHit(length),
                ..
            } => {
                *length = resized(rng, *length);
            }
            Self::Fixed { window: WindowKind::Zoned(_, zone), .. } => zone.seed = rng.any(),
            Self::Log { count, .. }
            | Self::SubWindows { count, .. }
            | Self::Approximate { count, .. }
                if flip =>
            {
                *count = resized(rng, *count);
            }
            Self::Log { window, .. } | Self::Approximate { window, .. } => {
                *window = resized(rng, *window);
            }
            Self::SubWindows { window, precision, .. } => {
                if rng.one_in(2) {
                    *window = resized(rng, *window);
                } else {
                    let old = precision.unwrap_or(window.div_ceil(10));
                    *precision = Some(resized(rng, old));
                }
            }
            Self::Fixed { count, .. } | Self::Concurrency { holders: count } => {
                *count = resized(rng, *count);
            }
        }
        (!spec.refused()).then_some(spec)
    }

    /// The same kind of limit with numbers small enough for mental arithmetic.
    fn with_small_numbers(self, rng: &mut TraceRng) -> Self {
        let count = rng.between(1, 6);
        let span = rng.between(1, 12);
        match self {
            Self::Bucket { kind, .. } => {
                let size = rng.one_in(2).then(|| rng.between(1, 9));
                Self::Bucket { kind, count, period: span, size }
            }
            Self::Steps { .. } => {
                let every = rng.between(1, 4);
                let period = every * span;
                let burst = rng.one_in(2).then(|| rng.between(1, 9));
                Self::Steps { count: count * span, period, every, burst }
            }
            Self::Fixed { window: WindowKind::Aligned(_), .. } => {
                Self::Fixed { count, window: WindowKind::Aligned(span) }
            }
            Self::Fixed { window: WindowKind::FirstHit(_), .. } => {
                Self::Fixed { count, window: WindowKind::FirstHit(span) }
            }
            Self::Fixed { window: WindowKind::Zoned(unit, zone), .. } => {
                let zone = TestZone { page: span, ..zone };
                Self::Fixed { count, window: WindowKind::Zoned(unit, zone) }
            }
            Self::Fixed { window, .. } => Self::Fixed { count, window },
            Self::Log { .. } => Self::Log { count, window: span },
            Self::SubWindows { .. } => {
                let precision = rng.one_in(2).then(|| rng.between(1, span));
                Self::SubWindows { count, window: span, precision }
            }
            Self::Approximate { .. } => Self::Approximate { count, window: span },
            Self::Concurrency { .. } => Self::Concurrency { holders: count },
        }
    }
}

/// From 0 to just above the maximum; mostly small.
fn count(rng: &mut TraceRng) -> u64 {
    match rng.below(20) {
        0 => 0,
        1 | 2 => 1,
        3..=9 => rng.between(2, 20),
        10..=12 => rng.between(2, 1_000_000),
        13 => (1 << rng.between(31, 35)) + rng.below(3) - 1,
        14..=16 => (1 << rng.between(1, 51)) + rng.below(3) - 1,
        17 => (1 << 52) - rng.between(0, 2),
        _ => rng.magnitude(1 << 40),
    }
}

fn log_count(rng: &mut TraceRng) -> u64 {
    match rng.below(4) {
        0 => rng.pick(&[0, 1, 999_999, 1_000_000, 1_000_001]),
        1 => rng.magnitude(1_000_000),
        _ => rng.between(1, 20),
    }
}

/// From 1 us to 36,500 days, a little longer, and zero.
fn span(rng: &mut TraceRng) -> u64 {
    match rng.below(20) {
        0..=3 => rng.pick(&[1, 2, 3, 7, 10, 97, 1_000, 999_983, 1_000_003]),
        4..=7 => SECOND * rng.pick(&[1, 10, 60, 61, 3_600, 86_400, 604_800]),
        8 | 9 => DAY * rng.pick(&[1, 7, 30, 365]),
        10 => LONGEST - rng.pick(&[0, 1, DAY]),
        11 if rng.one_in(4) => rng.pick(&[0, LONGEST + 1]),
        11..=13 => (1 << rng.between(1, 51)) + rng.below(3) - 1,
        14 | 15 => SECOND * rng.magnitude(1_000_000_000),
        16 => 1_000 * rng.magnitude(1_000_000_000_000),
        _ => rng.magnitude(LONGEST),
    }
}

/// Another number, near this one or far from it.
fn resized(rng: &mut TraceRng, number: u64) -> u64 {
    match rng.below(6) {
        0 => number / 2,
        1 => number.saturating_mul(2),
        2 => number.saturating_mul(rng.between(2, 20)) / rng.between(1, 20),
        3 => rng.magnitude(number.saturating_mul(2)),
        _ => rng.around(number),
    }
}

fn bucket(rng: &mut TraceRng, kind: BucketKind) -> Spec {
    if rng.one_in(12) {
        return fast_draining_bucket(rng, kind);
    }
    let (count, period) = (count(rng), span(rng));
    let size = match rng.below(5) {
        0 | 1 => None,
        2 => Some(self::count(rng)),
        3 => Some(rng.magnitude(count.saturating_mul(4))),
        // Where the tick changes, or the limit becomes invalid.
        _ => {
            let spec = Spec::Bucket { kind, count, period, size: None };
            let unit = spec.unit(rng.pick(&[1, 1_000, 1_000_000]));
            let permit = i128::from(period) / unit.max(1);
            let most = ((1_i128 << 52) - 1) / permit.max(1);
            Some(most as u64 + rng.below(4) - 1)
        }
    };
    Spec::Bucket { kind, count, period, size }
}

/// A bucket on a tick of a millisecond, in which about twice its capacity drains.
fn fast_draining_bucket(rng: &mut TraceRng, kind: BucketKind) -> Spec {
    let period = 1_000 * rng.between(10_000, 10_000_000);
    let size = (1 << 52) / period + rng.between(1, 1_000);
    let drained = u128::from(size) * u128::from(period) / 1_000 * u128::from(rng.between(1, 4));
    Spec::Bucket { kind, count: drained as u64 | 1, period, size: Some(size) }
}

fn steps(rng: &mut TraceRng) -> Spec {
    let burst = match rng.below(3) {
        0 => Some(count(rng)),
        1 => Some(rng.between(1, 50)),
        _ => None,
    };
    if rng.one_in(6) {
        return Spec::Steps { count: count(rng), period: span(rng), every: span(rng), burst };
    }
    let steps = rng.pick(&[1, 2, 3, 4, 6, 7, 10, 24, 60, 1_000]);
    let every = (span(rng) / steps).max(1);
    let amount = count(rng) / steps;
    Spec::Steps { count: amount * steps, period: every * steps, every, burst }
}

fn calendar(rng: &mut TraceRng) -> WindowKind {
    let unit = rng.pick(&UNITS);
    if rng.one_in(2) {
        return WindowKind::Calendar(unit);
    }
    let page = match rng.below(3) {
        0 => DAY,
        1 => rng.magnitude(30 * DAY),
        _ => rng.between(1, 50),
    };
    WindowKind::Zoned(unit, TestZone { page, seed: rng.any() })
}

fn sub_windows(rng: &mut TraceRng) -> Spec {
    let window = span(rng);
    let precision = match rng.below(6) {
        0 => None,
        1 => Some(span(rng)),
        2 => Some(rng.around(window.div_ceil(1_000))),
        3 => Some(rng.magnitude(window)),
        _ => Some(window / rng.pick(&[1, 2, 3, 5, 6, 10, 60, 100, 1_000])),
    };
    Spec::SubWindows { count: count(rng), window, precision }
}

fn approximate(rng: &mut TraceRng) -> Spec {
    let window = span(rng);
    let count = if rng.one_in(4) && window > 0 {
        let ticks = window / rng.pick(&[1, 1_000, 1_000_000]);
        ((1 << 52) - 1) / ticks.max(1) + rng.below(4) - 1
    } else {
        count(rng)
    };
    Spec::Approximate { count, window }
}
