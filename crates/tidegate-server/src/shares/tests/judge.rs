//! The bound: at most `burst + rate * t` in every interval.

use tidegate::Micros;

use tidegate_config::envoy::{FillInterval, ShareLimit};

/// Units of one token; the rate of a limit is a whole number of them a microsecond.
pub(super) const TOKEN: i128 = FillInterval::Day.length().get() as i128;

/// Units a microsecond at `tokens` per interval.
pub(super) fn rate(tokens: u64, interval: FillInterval) -> i128 {
    match interval {
        FillInterval::Hour => i128::from(tokens) * 24,
        FillInterval::Day => i128::from(tokens),
    }
}

/// Counts what was admitted in the worst interval that ends now: the level of a leaky bucket is
/// above the burst exactly if some interval has more than the bound.
pub(super) struct Judge {
    burst: u64,
    rate: i128,
    level: i128,
    at: Micros,
    pub(super) admitted: u64,
    /// Admissions above the bound.
    pub(super) violations: u64,
}

impl Judge {
    pub(super) fn new(limit: ShareLimit) -> Self {
        let rate = rate(limit.tokens, limit.interval);
        Self { burst: limit.burst, rate, level: 0, at: Micros::ZERO, admitted: 0, violations: 0 }
    }

    /// Another limit is in force. The largest burst of both counts.
    pub(super) fn set_limit(&mut self, now: Micros, limit: ShareLimit) {
        self.drain(now);
        self.burst = self.burst.max(limit.burst);
        self.rate = rate(limit.tokens, limit.interval);
    }

    fn drain(&mut self, now: Micros) {
        let span = now.saturating_sub(self.at);
        self.level = (self.level - self.rate * i128::from(span.get())).max(0);
        self.at = now;
    }

    pub(super) fn admit(&mut self, now: Micros) {
        self.drain(now);
        self.level += TOKEN;
        self.admitted += 1;
        self.violations += u64::from(self.level > i128::from(self.burst) * TOKEN);
    }
}
