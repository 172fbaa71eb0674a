//! The configuration of a limiter.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use redis::Value;

/// Which clients share a rate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Mode {
    /// All clients: Redisson's `OVERALL`.
    Overall,
    /// Each [`RedisClient`](crate::RedisClient) and each `RedissonClient` separately: Redisson's
    /// `PER_CLIENT`.
    PerClient,
}

/// Permits per interval, the clients that share them, and the keep-alive time of the limiter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rate {
    mode: Mode,
    permits: u64,
    interval_ms: u64,
    keep_alive_ms: u64,
}

impl Rate {
    /// The most permits in an interval: larger numbers are not exact in Lua.
    pub const MAX_PERMITS: u64 = (1 << 52) - 1;
    /// The longest interval and keep-alive time.
    pub const MAX_SPAN: Duration = Duration::from_secs(36_500 * 86_400);

    /// `permits` in each `interval`, in whole milliseconds.
    pub fn new(mode: Mode, permits: u64, interval: Duration) -> Result<Self, InvalidRate> {
        if permits > Self::MAX_PERMITS {
            return Err(InvalidRate::Permits(permits));
        }
        let interval_ms = millis(interval).ok_or(InvalidRate::Span(interval))?;
        Ok(Self { mode, permits, interval_ms, keep_alive_ms: 0 })
    }

    /// Deletes the limiter when it has not been used for this time; it is kept forever unless set.
    /// Whole milliseconds, at least the interval.
    pub fn keep_alive(self, span: Duration) -> Result<Self, InvalidRate> {
        let keep_alive_ms = millis(span).ok_or(InvalidRate::Span(span))?;
        if keep_alive_ms < self.interval_ms {
            return Err(InvalidRate::KeepAlive(span));
        }
        Ok(Self { keep_alive_ms, ..self })
    }

    /// Which clients share the rate.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Permits per interval.
    pub fn permits(&self) -> u64 {
        self.permits
    }

    /// How long an acquired permit counts.
    pub fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    /// How long the limiter is kept without use; None for forever.
    pub fn keep_alive_time(&self) -> Option<Duration> {
        (self.keep_alive_ms > 0).then(|| Duration::from_millis(self.keep_alive_ms))
    }

    /// The permits and the interval in ms.
    pub(crate) fn permits_and_interval(&self) -> (u64, u64) {
        (self.permits, self.interval_ms)
    }

    /// The fields of the hash: rate, interval, type, keepAliveTime.
    pub(crate) fn fields(&self) -> [String; 4] {
        let kind = match self.mode {
            Mode::Overall => 0,
            Mode::PerClient => 1,
        };
        [self.permits, self.interval_ms, kind, self.keep_alive_ms].map(|field| field.to_string())
    }

    /// From those fields, which Java may have written. None if the limiter is not initialized;
    /// `Err` if they are malformed.
    pub(crate) fn read(fields: &[Value]) -> Result<Option<Self>, ()> {
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse::<i64>().ok(),
            _ => None,
        };
        let [rate, interval, kind, keep_alive] = fields else { return Err(()) };
        if [rate, interval, kind].into_iter().any(|field| *field == Value::Nil) {
            return Ok(None);
        }
        // Java accepts a negative rate, which admits nothing.
        let number = |value| Ok(text(value).ok_or(())?.max(0).unsigned_abs());
        let mode = match number(kind)? {
            0 => Mode::Overall,
            1 => Mode::PerClient,
            _ => return Err(()),
        };
        // Limiters of older versions have no keep-alive time.
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
    let fits = !span.is_zero() && span <= Rate::MAX_SPAN;
    u64::try_from(span.as_millis()).ok().filter(|_| whole && fits)
}

/// Why a rate is invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidRate {
    /// Above [`Rate::MAX_PERMITS`].
    Permits(u64),
    /// Not a positive number of whole milliseconds, or above [`Rate::MAX_SPAN`].
    Span(Duration),
    /// A keep-alive time below the interval: permits that still count would be deleted.
    KeepAlive(Duration),
}

impl fmt::Display for InvalidRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permits(permits) => {
                write!(f, "{permits} permits cannot be counted; use at most {}", Rate::MAX_PERMITS)
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
    fn an_invalid_rate_is_refused() {
        let new = |permits, interval| Rate::new(Mode::Overall, permits, interval);
        assert_eq!(new(1 << 52, SECOND), Err(InvalidRate::Permits(1 << 52)));
        for span in [Duration::ZERO, Duration::from_micros(1_500), Duration::MAX] {
            assert_eq!(new(1, span), Err(InvalidRate::Span(span)), "{span:?}");
            assert_eq!(new(1, SECOND).unwrap().keep_alive(span), Err(InvalidRate::Span(span)));
        }
        let short = Duration::from_millis(999);
        assert_eq!(new(1, SECOND).unwrap().keep_alive(short), Err(InvalidRate::KeepAlive(short)));
        let rate =
            new(Rate::MAX_PERMITS, Rate::MAX_SPAN).unwrap().keep_alive(Rate::MAX_SPAN).unwrap();
        assert_eq!(rate.keep_alive_time(), Some(Rate::MAX_SPAN));
    }

    #[test]
    fn fields_of_both_writers_are_read_as_they_were_written() {
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
