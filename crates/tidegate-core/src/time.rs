//! Instants and spans in whole microseconds, and the ticks on which limits count.

use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;

/// Whole microseconds: an instant since the Unix epoch, or a span between two instants.
///
/// Always below 2^53, so that the same number is exact as a double in Redis's Lua. Anything
/// larger becomes [`Micros::MAX`], some 285 years.
//
// The number is stored plus one, so that it is never 0: then `Wait` is as small as a span, and
// verdicts are cheap to move.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(NonZeroU64);

impl Micros {
    /// The epoch, or a span of no length.
    pub const ZERO: Self = Self(NonZeroU64::MIN);
    /// The last instant and the longest span: 2^53 - 1.
    pub const MAX: Self = Self::new(u64::MAX);

    /// `micros` microseconds, or [`Micros::MAX`] if that is less.
    #[inline]
    pub const fn new(micros: u64) -> Self {
        const MAX: u64 = (1 << 53) - 1;
        Self(NonZeroU64::MIN.saturating_add(if micros > MAX { MAX } else { micros }))
    }

    /// `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self::new(millis.saturating_mul(1_000))
    }

    /// `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self::new(secs.saturating_mul(1_000_000))
    }

    /// The number of microseconds.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0.get() - 1
    }

    /// Later by `span`.
    #[must_use]
    #[inline]
    pub const fn saturating_add(self, span: Self) -> Self {
        Self::new(self.get() + span.get())
    }

    /// Earlier by `span`, or the epoch if that is later.
    #[must_use]
    #[inline]
    pub const fn saturating_sub(self, span: Self) -> Self {
        Self::new(self.get().saturating_sub(span.get()))
    }

    pub(crate) fn saturating_from(micros: u128) -> Self {
        u64::try_from(micros).map_or(Self::MAX, Self::new)
    }
}

impl Default for Micros {
    fn default() -> Self {
        Self::ZERO
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Self {
        Self::from_micros(span.get())
    }
}

/// Rounds up to a whole microsecond, so that a wait is never shortened.
impl From<Duration> for Micros {
    fn from(span: Duration) -> Self {
        Self::saturating_from(span.as_nanos().div_ceil(1_000))
    }
}

/// For people: three digits below a minute, then the two largest units: `1.38ms`, `54s`, `15h 1m`.
/// Rounded up, so that a wait is never too short.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MS: u64 = 1_000;
        const S: u64 = 1_000 * MS;
        const MIN: u64 = 60 * S;
        const H: u64 = 60 * MIN;
        const D: u64 = 24 * H;
        /// Up to which span it is rounded to which step.
        const STEPS: [(u64, u64); 8] = [
            (MS, 1),
            (10 * MS, MS / 100),
            (100 * MS, MS / 10),
            (S, MS),
            (10 * S, S / 100),
            (MIN, S / 10),
            (H, S),
            (D, MIN),
        ];
        let micros = self.get();
        let step = STEPS.iter().find(|(end, _)| micros < *end).map_or(H, |(_, step)| *step);
        let micros = micros.div_ceil(step) * step;
        let (unit, name, part, part_name) = match micros {
            0 => return f.write_str("0s"),
            1..MS => return write!(f, "{micros}us"),
            MS..S => return decimal(f, micros, MS, "ms"),
            S..MIN => return decimal(f, micros, S, "s"),
            MIN..H => (MIN, "m", S, "s"),
            H..D => (H, "h", MIN, "m"),
            _ => (D, "d", H, "h"),
        };
        write!(f, "{}{name}", micros / unit)?;
        match micros % unit / part {
            0 => Ok(()),
            parts => write!(f, " {parts}{part_name}"),
        }
    }
}

/// `micros` in a unit, with up to two decimals, and none that are zero.
fn decimal(f: &mut fmt::Formatter<'_>, micros: u64, unit: u64, name: &str) -> fmt::Result {
    let (whole, hundredths) = (micros / unit, micros % unit / (unit / 100));
    match (hundredths / 10, hundredths % 10) {
        (0, 0) => write!(f, "{whole}{name}"),
        (tenths, 0) => write!(f, "{whole}.{tenths}{name}"),
        _ => write!(f, "{whole}.{hundredths:02}{name}"),
    }
}

impl fmt::Debug for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.get())
    }
}

/// The resolution on which a limit counts time: the finest on which its numbers stay exact.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tick {
    /// One microsecond.
    Micro,
    /// One millisecond.
    Milli,
    /// One second.
    Second,
}

impl Tick {
    /// Finest first, the order in which a limit tries them.
    pub(crate) const ALL: [Self; 3] = [Self::Micro, Self::Milli, Self::Second];

    /// How long one tick lasts.
    pub const fn span(self) -> Micros {
        Micros::new(match self {
            Self::Micro => 1,
            Self::Milli => 1_000,
            Self::Second => 1_000_000,
        })
    }

    // Divisions by constants: a division by a variable would take longer than the rest of a
    // decision.
    #[inline]
    pub(crate) const fn floor(self, now: Micros) -> u64 {
        match self {
            Self::Micro => now.get(),
            Self::Milli => now.get() / 1_000,
            Self::Second => now.get() / 1_000_000,
        }
    }

    #[inline]
    pub(crate) const fn ceil(self, now: Micros) -> u64 {
        match self {
            Self::Micro => now.get(),
            Self::Milli => now.get().div_ceil(1_000),
            Self::Second => now.get().div_ceil(1_000_000),
        }
    }

    /// The span from `now` until tick number `tick` begins.
    #[inline]
    pub(crate) const fn until(self, tick: u64, now: Micros) -> Micros {
        let instant = match self {
            Self::Micro => tick,
            Self::Milli => tick.saturating_mul(1_000),
            Self::Second => tick.saturating_mul(1_000_000),
        };
        Micros::new(instant.saturating_sub(now.get()))
    }
}

/// The instant of a call, and the calendar window around it where one is needed.
///
/// Only a limit per calendar day, week or month uses the window. Without one, UTC is used. For
/// another zone the caller passes the boundaries, because this crate has no zone data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    now: Micros,
    window: Option<(Micros, Micros)>,
}

impl Moment {
    /// The instant `now`, in UTC.
    pub const fn new(now: Micros) -> Self {
        Self { now, window: None }
    }

    /// The instant `now`, in the calendar window `start..end`; `None` unless it lies inside.
    pub fn within(now: Micros, start: Micros, end: Micros) -> Option<Self> {
        (start <= now && now < end).then_some(Self { now, window: Some((start, end)) })
    }

    /// The instant.
    pub const fn now(&self) -> Micros {
        self.now
    }

    /// The calendar window that was passed in.
    pub(crate) const fn window(&self) -> Option<(Micros, Micros)> {
        self.window
    }

    /// Another instant. The window is kept if the instant lies inside. A later instant gets a
    /// window that begins where this one ends, an earlier one the window before.
    pub(crate) fn moved_to(&self, now: Micros) -> Self {
        let window = self.window.map(|(start, end)| {
            let length = end.saturating_sub(start);
            if now < start {
                (start.saturating_sub(length).min(now), start)
            } else if now >= end {
                (end, now.max(end).saturating_add(length))
            } else {
                (start, end)
            }
        });
        Self { now, window }
    }
}

impl From<Micros> for Moment {
    fn from(now: Micros) -> Self {
        Self::new(now)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn within(now: u64, start: u64, end: u64) -> Option<Moment> {
        Moment::within(Micros::new(now), Micros::new(start), Micros::new(end))
    }

    #[test]
    fn a_span_is_displayed_in_three_digits_or_two_units_and_never_too_short() {
        for (micros, displayed) in [
            (0, "0s"),
            (1, "1us"),
            (999, "999us"),
            (1_000, "1ms"),
            (1_373, "1.38ms"),
            (1_500, "1.5ms"),
            (9_999, "10ms"),
            (59_951, "60ms"),
            (150_000, "150ms"),
            (999_001, "1s"),
            (1_500_000, "1.5s"),
            (4_990_001, "5s"),
            (12_340_000, "12.4s"),
            (59_951_000, "1m"),
            (60_000_000, "1m"),
            (61_000_000, "1m 1s"),
            (149_000_000, "2m 29s"),
            (3_599_000_001, "1h"),
            (54_005_528_000, "15h 1m"),
            (86_400_000_000, "1d"),
            (93_600_000_000, "1d 2h"),
            (172_799_000_000, "2d"),
            (u64::MAX, "104250d"),
        ] {
            assert_eq!(Micros::new(micros).to_string(), displayed, "{micros}");
        }
    }

    #[test]
    fn a_moment_lies_in_its_window_from_the_start_until_before_the_end() {
        for (now, inside) in [(0, false), (99, false), (100, true), (199, true), (200, false)] {
            assert_eq!(within(now, 100, 200).is_some(), inside, "{now}");
        }
        for now in 99..=101 {
            assert_eq!(within(now, 100, 100), None, "an empty window contains no instant");
        }
    }

    #[test]
    fn a_moment_that_moves_out_of_its_window_gets_one_that_touches_it() {
        let moment = within(1_050, 1_000, 1_100).unwrap();
        for (now, start, end) in [
            (1_000, 1_000, 1_100),
            (1_099, 1_000, 1_100),
            (999, 900, 1_000),
            (900, 900, 1_000),
            (500, 500, 1_000),
            (1_100, 1_100, 1_200),
            (1_500, 1_100, 1_600),
        ] {
            assert_eq!(Some(moment.moved_to(Micros::new(now))), within(now, start, end), "{now}");
        }
    }
}
