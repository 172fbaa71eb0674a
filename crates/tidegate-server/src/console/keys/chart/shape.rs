//! The form of the charts of a limit.

use tidegate::{Limit, Micros};

/// How a limit recovers, with the lengths that a chart of it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecoveryShape {
    /// A bucket that refills or drains continuously.
    Bucket,
    /// A bucket that refills in steps.
    Steps,
    /// A fixed window that ends at once.
    Window,
    /// A log of all charges in the last window.
    Log {
        /// How long an entry counts.
        window: Micros,
    },
    /// Counts of sub-windows.
    SubWindows {
        /// The length of one sub-window.
        part: Micros,
        /// How many of them count.
        count: u64,
    },
    /// An estimate from the counts of two windows.
    Estimate {
        /// The length of a window.
        window: Micros,
    },
    /// Concurrency slots.
    Holders,
}

impl RecoveryShape {
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
    fn every_limit_has_a_recovery_shape() {
        let secs = Micros::from_secs;
        for (limit, shape) in [
            ("10/s", RecoveryShape::Bucket),
            ("leaky-bucket 10/s capacity 30 queue", RecoveryShape::Bucket),
            ("10/s burst 50 every 500ms", RecoveryShape::Steps),
            ("fixed-window 100/d", RecoveryShape::Window),
            ("fixed-window 100/1h first-hit", RecoveryShape::Window),
            ("sliding-log 5/1m", RecoveryShape::Log { window: secs(60) }),
            (
                "sliding-window 60/1m precision 10s",
                RecoveryShape::SubWindows { part: secs(10), count: 7 },
            ),
            ("sliding-window 60/1m approximate", RecoveryShape::Estimate { window: secs(60) }),
            ("concurrency 3", RecoveryShape::Holders),
        ] {
            assert_eq!(RecoveryShape::of(&limit.parse().unwrap()), shape, "{limit}");
        }
    }
}
