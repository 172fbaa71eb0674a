//! What a limiter is configured to.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use redis::Value;

/// Who counts together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Mode {
    /// All clients: Redisson's `OVERALL`.
    Overall,
    /// Each [`Client`](crate::Client) for itself, and each `RedissonClient`: Redisson's `PER_CLIENT`.
    PerClient,
}

/// So many permits in each interval, for whom, and how long the limiter outlives its last use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rate {
    mode: Mode,
    permits: u64,
    interval_ms: u64,
    keep_alive_ms: u64,
}

impl Rate {
    /// The most permits in an interval: beyond it, numbers in Redis's scripts are not exact.
    pub const MOST: u64 = (1 << 52) - 1;
    /// The longest interval and keep-alive time.
    pub const LONGEST: Duration = Duration::from_secs(36_500 * 86_400);

    /// `permits` in each `interval`, which is whole milliseconds.
    pub fn new(mode: Mode, permits: u64, interval: Duration) -> Result<Self, InvalidRate> {
        if permits > Self::MOST {
            return Err(InvalidRate::Permits(permits));
        }
        let interval_ms = millis(interval).ok_or(InvalidRate::Span(interval))?;
        Ok(Self { mode, permits, interval_ms, keep_alive_ms: 0 })
    }

    /// Forgets the limiter when it was not used for so long; it is kept for ever unless this is set. Whole
    /// milliseconds, and no less than the interval.
    pub fn keep_alive(self, span: Duration) -> Result<Self, InvalidRate> {
        let keep_alive_ms = millis(span).ok_or(InvalidRate::Span(span))?;
        if keep_alive_ms < self.interval_ms {
            return Err(InvalidRate::KeepAlive(span));
        }
        Ok(Self { keep_alive_ms, ..self })
    }

    /// Who counts together.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How many permits there are in each interval.
    pub fn permits(&self) -> u64 {
        self.permits
    }

    /// How long a permit counts that was taken.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    /// How long the limiter is kept without being used, if not for ever.
    pub fn keep_alive_time(&self) -> Option<Duration> {
        (self.keep_alive_ms > 0).then(|| Duration::from_millis(self.keep_alive_ms))
    }

    /// The two by which everything is counted, the interval in ms.
    pub(super) fn permits_and_interval(&self) -> (u64, u64) {
        (self.permits, self.interval_ms)
    }

    /// In the fields of the hash: rate, interval, type, keepAliveTime.
    pub(super) fn fields(&self) -> [String; 4] {
        let kind = match self.mode {
            Mode::Overall => 0,
            Mode::PerClient => 1,
        };
        [self.permits, self.interval_ms, kind, self.keep_alive_ms].map(|field| field.to_string())
    }

    /// Of those fields, which somebody else may have written. Nothing if the limiter is not initialized;
    /// `Err` if they are none of a limiter.
    pub(super) fn read(fields: &[Value]) -> Result<Option<Self>, ()> {
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse::<i64>().ok(),
            _ => None,
        };
        let [rate, interval, kind, keep_alive] = fields else { return Err(()) };
        if [rate, interval, kind].into_iter().any(|field| *field == Value::Nil) {
            return Ok(None);
        }
        // Java lets a rate be negative, which nobody can take anything from.
        let number = |value| Ok(text(value).ok_or(())?.max(0).unsigned_abs());
        let mode = match number(kind)? {
            0 => Mode::Overall,
            1 => Mode::PerClient,
            _ => return Err(()),
        };
        // Limiters of older versions have no such time.
        let keep_alive_ms = if *keep_alive == Value::Nil { 0 } else { number(keep_alive)? };
        Ok(Some(Self {
            mode,
            permits: number(rate)?,
            interval_ms: number(interval)?,
            keep_alive_ms,
        }))
    }
}

fn millis(span: Duration) -> Option<u64> {
    let whole = span.subsec_nanos().is_multiple_of(1_000_000);
    let fits = !span.is_zero() && span <= Rate::LONGEST;
    u64::try_from(span.as_millis()).ok().filter(|_| whole && fits)
}

/// Why no limiter can have this rate.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidRate {
    /// More permits than can be counted exactly.
    Permits(u64),
    /// A span that is not of one or more whole milliseconds, or too long.
    Span(Duration),
    /// A keep-alive time below the interval: the limiter would forget what still counts.
    KeepAlive(Duration),
}

impl fmt::Display for InvalidRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permits(permits) => {
                write!(f, "{permits} permits cannot be counted; use at most {}", Rate::MOST)
            }
            Self::Span(span) => {
                write!(f, "a span of {span:?}; use whole milliseconds, from 1 ms to 36500 days")
            }
            Self::KeepAlive(span) => write!(
                f,
                "the parameter keepAliveTime should be greater than or equal to rateInterval; it is {span:?}"
            ),
        }
    }
}

impl Error for InvalidRate {}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rate_that_cannot_be_kept_is_refused() {
        let new = |permits, interval| Rate::new(Mode::Overall, permits, interval);
        assert_eq!(new(1 << 52, SECOND), Err(InvalidRate::Permits(1 << 52)));
        for span in [Duration::ZERO, Duration::from_micros(1_500), Duration::MAX] {
            assert_eq!(new(1, span), Err(InvalidRate::Span(span)), "{span:?}");
            assert_eq!(new(1, SECOND).unwrap().keep_alive(span), Err(InvalidRate::Span(span)));
        }
        let short = Duration::from_millis(999);
        assert_eq!(new(1, SECOND).unwrap().keep_alive(short), Err(InvalidRate::KeepAlive(short)));
        let rate = new(Rate::MOST, Rate::LONGEST).unwrap().keep_alive(Rate::LONGEST).unwrap();
        assert_eq!(rate.keep_alive_time(), Some(Rate::LONGEST));
    }

    #[test]
    fn fields_are_read_as_they_are_written_whoever_wrote_them() {
        let field = |text: &str| match text {
            "" => Value::Nil,
            text => Value::BulkString(text.into()),
        };
        let read = |fields: [&str; 4]| Rate::read(&fields.map(field));
        let rate = Rate::new(Mode::PerClient, 7, SECOND).unwrap().keep_alive(2 * SECOND).unwrap();
        let fields = rate.fields();
        assert_eq!(fields, ["7", "1000", "1", "2000"]);
        assert_eq!(read(fields.each_ref().map(String::as_str)), Ok(Some(rate)));
        assert_eq!(read(["7", "1000", "1", ""]).unwrap().unwrap().keep_alive_time(), None);
        assert_eq!(read(["-7", "1000", "0", "0"]).unwrap().unwrap().permits(), 0);
        for missing in [["", "1", "0", "0"], ["1", "", "0", "0"], ["1", "1", "", "0"]] {
            assert_eq!(read(missing), Ok(None), "{missing:?}");
        }
        for odd in [["x", "1", "0", "0"], ["1", "1e3", "0", "0"], ["1", "1", "2", "0"]] {
            assert_eq!(read(odd), Err(()), "{odd:?}");
        }
        assert_eq!(Rate::read(&[]), Err(()));
    }
}
