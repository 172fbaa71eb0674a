//! Timestamps of logs.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use tidegate::Micros;

/// Parser for `10/Oct/2000:13:55:36 -0700` (nginx, Apache). The last result is cached, since many
/// lines in a row have the same second.
#[derive(Default, Debug)]
pub(crate) struct CommonLogTime {
    text: [u8; CommonLogTime::LEN],
    known: Option<Micros>,
}

impl CommonLogTime {
    const LEN: usize = 26;

    /// `None` if the text is invalid or before 1970.
    pub(crate) fn parse(&mut self, text: &[u8]) -> Option<Micros> {
        let text: &[u8; Self::LEN] = text.try_into().ok()?;
        if self.known.is_none() || self.text != *text {
            self.known = common(text);
            self.text = *text;
        }
        self.known
    }
}

fn common(text: &[u8]) -> Option<Micros> {
    micros(Timestamp::strptime("%d/%b/%Y:%H:%M:%S %z", text).ok()?)
}

/// Parses RFC 3339 (also with a space instead of `T` and before the zone, or without a zone, which
/// means UTC), the common log format, or a number since 1970. The number of digits decides whether
/// it is seconds, milliseconds, microseconds or nanoseconds.
pub(crate) fn parse(text: &str) -> Option<Micros> {
    let text = text.trim();
    let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    match text.as_bytes() {
        [_, _, _, _, b'-', ..] if text.contains(':') => rfc3339(text),
        [_, _, b'/', ..] => common(text.as_bytes()),
        _ => epoch(text),
    }
}

fn rfc3339(text: &str) -> Option<Micros> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return micros(at);
    }
    if let Some((time, zone)) = text.rsplit_once(' ').filter(|(time, _)| time.contains(':')) {
        return micros(format!("{time}{zone}").parse().ok()?);
    }
    micros(text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// A number since 1970: `1700000000`, `1700000000.123`, `1700000000123`..
fn epoch(text: &str) -> Option<Micros> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) {
        return None;
    }
    let value: u64 = whole.parse().ok()?;
    let micros = match whole.len() {
        0..=11 => value * 1_000_000 + format!("{decimals:0<6}")[..6].parse::<u64>().ok()?,
        12..=14 => value * 1_000,
        15..=17 => value,
        _ => value / 1_000,
    };
    Some(Micros::new(micros))
}

/// `None` before 1970.
fn micros(at: Timestamp) -> Option<Micros> {
    u64::try_from(at.as_microsecond()).ok().map(Micros::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(text: &str) -> Option<u64> {
        CommonLogTime::default().parse(text.as_bytes()).map(|at| at.get() / 1_000_000)
    }

    #[test]
    fn common_log_time_is_parsed_and_invalid_times_are_not() {
        for (text, seconds) in [
            ("10/Oct/2000:13:55:36 -0700", Some(971_211_336)),
            ("01/Jan/1970:00:00:00 +0000", Some(0)),
            ("01/Jan/1970:00:00:00 +0100", None),
            ("29/Feb/2024:23:59:59 +0000", Some(1_709_251_199)),
            ("29/Feb/2023:23:59:59 +0000", None),
            ("31/Apr/2024:00:00:00 +0000", None),
            ("00/Apr/2024:00:00:00 +0000", None),
            ("01/apr/2024:00:00:00 +0000", Some(1_711_929_600)),
            ("01/Apr/2024:24:00:00 +0000", None),
            ("01/Apr/2024:00:00:00 +2600", None),
            ("01/Apr/2024:00:00:00  0000", None),
            ("01-Apr-2024:00:00:00 +0000", None),
            ("", None),
        ] {
            assert_eq!(common(text), seconds, "{text}");
        }
        let mut time = CommonLogTime::default();
        for _ in 0..2 {
            assert_eq!(time.parse(b"01/Jan/1970:00:00:01 +0000"), Some(Micros::from_secs(1)));
            assert_eq!(time.parse(b"01/Jan/1970:00:00:02 +0000"), Some(Micros::from_secs(2)));
            assert_eq!(time.parse(b"01/Jan/1970:00:00:0x +0000"), None);
        }
    }

    #[test]
    fn other_timestamp_formats_are_detected() {
        for (text, micros) in [
            ("2023-11-14T22:13:20Z", Some(1_700_000_000_000_000)),
            ("2023-11-14 22:13:20", Some(1_700_000_000_000_000)),
            ("[2023-11-14T22:13:20.5Z]", Some(1_700_000_000_500_000)),
            ("2023-11-14T22:13:20.123456789Z", Some(1_700_000_000_123_456)),
            ("2023-11-14T22:13:20+00:00", Some(1_700_000_000_000_000)),
            ("14/Nov/2023:22:13:20 +0000", Some(1_700_000_000_000_000)),
            ("1700000000", Some(1_700_000_000_000_000)),
            (" 1700000000.25 ", Some(1_700_000_000_250_000)),
            ("1700000000123", Some(1_700_000_000_123_000)),
            ("1700000000123456", Some(1_700_000_000_123_456)),
            ("1700000000123456789", Some(1_700_000_000_123_456)),
            ("0", Some(0)),
            ("", None),
            ("-1", None),
            ("1e9", None),
            ("1.", None),
            ("2023-11-14", None),
            ("2023-11-14T22:13", Some(1_699_999_980_000_000)),
            ("2023-11-14 22:13:20,5 +0100", Some(1_699_996_400_500_000)),
            ("2023-11-14T22:13:20.Z", None),
            ("2023-11-14T22:13:20 UTC", None),
            ("2023-13-14T22:13:20Z", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse(text).map(Micros::get), micros, "{text:?}");
        }
    }
}
