//! Instants and spans in whole microseconds, and the ticks on which limits count.

use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;

/// Whole microseconds: an instant since the Unix epoch, or a span between two instants.
///
/// Always below 2^53, so that the same number is exact as a double in Redis's Lua. Anything
/// larger becomes [`Micros::MAX`], some 285 years.
//
// The number is kept with one added, so that it is never 0: a wait that may be for ever is no larger
// than a span, and answers are small enough to be moved without a thought.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(NonZeroU64);

impl Micros {
    /// No time at all, or the epoch.
    pub const ZERO: Self = Self(NonZeroU64::MIN);
    /// The last instant and the longest span: 2^53 - 1.
    pub const MAX: Self = Self::new(u64::MAX);

    /// `micros` microseconds, or [`Micros::MAX`] if that is less.
    #[inline]
    pub const fn new(micros: u64) -> Self {
        const MOST: u64 = (1 << 53) - 1;
        Self(NonZeroU64::MIN.saturating_add(if micros > MOST { MOST } else { micros }))
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

/// Rounds up to a whole microsecond: a wait is never cut short.
impl From<Duration> for Micros {
    fn from(span: Duration) -> Self {
        Self::saturating_from(span.as_nanos().div_ceil(1_000))
    }
}

impl fmt::Debug for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.get())
    }
}

/// The grain on which a limit counts time: the finest one on which its numbers stay exact.
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

    // By constants: a division by a number that is not known beforehand takes longer than all the
    // rest of a decision.
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
/// Only a limit per calendar day, week or month looks at the window. Without one it reckons in UTC;
/// for another zone the caller passes the boundaries, since this crate has no zone data.
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

    /// Another instant. It keeps the window if it lies inside; a later one is taken to lie in a
    /// window that has just begun where this one ends, an earlier one in the window before.
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
    use super::*;

    fn within(now: u64, start: u64, end: u64) -> Option<Moment> {
        Moment::within(Micros::new(now), Micros::new(start), Micros::new(end))
    }

    #[test]
    fn a_moment_lies_in_its_window_from_the_start_until_before_the_end() {
        for (now, inside) in [(0, false), (99, false), (100, true), (199, true), (200, false)] {
            assert_eq!(within(now, 100, 200).is_some(), inside, "{now}");
        }
        for now in 99..=101 {
            assert_eq!(within(now, 100, 100), None, "nothing lies in an empty window");
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
