//! What a limit looks like.

use tidegate::{Limit, Micros};

/// The form in which a limit counts, with the lengths that a picture of it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// A bucket that fills or drains evenly.
    Bucket,
    /// A bucket that fills in steps.
    Steps,
    /// A window that begins and ends.
    Window,
    /// A log of all that came in the last window.
    Log {
        /// How long an entry counts.
        window: Micros,
    },
    /// Counts of parts of the window.
    SubWindows {
        /// How long such a part is.
        part: Micros,
        /// How many of them count.
        count: u64,
    },
    /// An estimate from the counts of two windows.
    Estimate {
        /// How long a window is.
        window: Micros,
    },
    /// Holders at one time.
    Holders,
}

impl Form {
    /// The form of this limit.
    pub(crate) fn of(limit: &Limit) -> Self {
        let (algorithm, numbers) = limit.numbers();
        match (algorithm, &*numbers) {
            (1, _) => Self::Bucket,
            (2, _) => Self::Steps,
            (4, [_, 1, window]) => Self::Log { window: Micros::new(*window) },
            (4, [_, part, count]) => Self::SubWindows { part: Micros::new(*part), count: *count },
            (5, [tick, _, window]) => {
                Self::Estimate { window: Micros::new(tick.saturating_mul(*window)) }
            }
            (6, _) => Self::Holders,
            _ => Self::Window,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_has_a_form() {
        let secs = Micros::from_secs;
        for (limit, form) in [
            ("10/s", Form::Bucket),
            ("leaky-bucket 10/s capacity 30 queue", Form::Bucket),
            ("10/s burst 50 every 500ms", Form::Steps),
            ("fixed-window 100/d", Form::Window),
            ("fixed-window 100/1h first-hit", Form::Window),
            ("sliding-log 5/1m", Form::Log { window: secs(60) }),
            ("sliding-window 60/1m precision 10s", Form::SubWindows { part: secs(10), count: 7 }),
            ("sliding-window 60/1m approximate", Form::Estimate { window: secs(60) }),
            ("concurrency 3", Form::Holders),
        ] {
            assert_eq!(Form::of(&limit.parse().unwrap()), form, "{limit}");
        }
    }
}
