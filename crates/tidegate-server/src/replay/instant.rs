//! Instants as logs write them.

use tidegate::Micros;

/// `10/Oct/2000:13:55:36 -0700`, as nginx and Apache write it. Lines of the same second come in a row, so the last
/// one is remembered.
#[derive(Default, Debug)]
pub(super) struct CommonTime {
    text: [u8; CommonTime::LEN],
    known: Option<Micros>,
}

impl CommonTime {
    const LEN: usize = 26;

    /// `None` for what is no such instant, or before 1970.
    pub(super) fn parse(&mut self, text: &[u8]) -> Option<Micros> {
        let text: &[u8; Self::LEN] = text.try_into().ok()?;
        if self.known.is_none() || self.text != *text {
            self.known = common(text);
            self.text = *text;
        }
        self.known
    }
}

fn common(text: &[u8; CommonTime::LEN]) -> Option<Micros> {
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let [_, _, b'/', _, _, _, b'/', _, _, _, _, b':', _, _, b':', _, _, b':', _, _, b' ', ..] =
        text
    else {
        return None;
    };
    let month = MONTHS.chunks_exact(3).position(|month| month == &text[3..6])? as u64 + 1;
    let seconds =
        civil(number(&text[7..11])?, month, number(&text[..2])?, clock(&text[12..20], b':')?)?;
    let offset = offset(&text[21..])?;
    seconds.checked_sub(offset).and_then(from_seconds)
}

/// An instant of RFC 3339, with a space instead of the `T` or without a zone (then it is UTC) as well; one of the
/// common log format; or a number of seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by their size.
pub(super) fn parse(text: &[u8]) -> Option<Micros> {
    let text = text.trim_ascii();
    let text = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")).unwrap_or(text);
    match text {
        [_, _, _, _, b'-', ..] => rfc3339(text),
        [_, _, b'/', ..] => common(text.try_into().ok()?),
        _ => epoch(text),
    }
}

fn rfc3339(text: &[u8]) -> Option<Micros> {
    let (date, rest) = text.split_at_checked(10)?;
    let [_, _, _, _, b'-', _, _, b'-', _, _] = date else { return None };
    let rest = match rest {
        [b'T' | b't' | b' ', rest @ ..] => rest,
        _ => return None,
    };
    let (time, rest) = rest.split_at_checked(8)?;
    let seconds =
        civil(number(&date[..4])?, number(&date[5..7])?, number(&date[8..])?, clock(time, b':')?)?;
    let (micros, rest) = match rest {
        [b'.' | b',', rest @ ..] => {
            let len = rest.iter().take_while(|b| b.is_ascii_digit()).count();
            (fraction(&rest[..len])?, &rest[len..])
        }
        _ => (0, rest),
    };
    let offset = match rest {
        b"" | b"Z" | b"z" => 0,
        _ => offset(rest.strip_prefix(b" ").unwrap_or(rest))?,
    };
    let whole = seconds.checked_sub(offset).and_then(from_seconds)?;
    Some(whole.saturating_add(Micros::new(micros)))
}

/// A number since 1970: `1700000000`, `1700000000.123`, `1700000000123`..
fn epoch(text: &[u8]) -> Option<Micros> {
    let dot = text.iter().position(|&b| b == b'.');
    let (whole, part) = text.split_at(dot.unwrap_or(text.len()));
    let value = number(whole)?;
    let part = if part.is_empty() { 0 } else { fraction(&part[1..])? };
    let micros = match whole.len() {
        0..=11 => value * 1_000_000 + part,
        12..=14 => value * 1_000,
        15..=17 => value,
        _ => value / 1_000,
    };
    Some(Micros::new(micros))
}

/// The first six digits behind a point, as microseconds.
fn fraction(digits: &[u8]) -> Option<u64> {
    let value = number(&digits[..digits.len().min(6)])?;
    let is_number = digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| value * 10_u64.pow(6 - digits.len().min(6) as u32))
}

/// `+0200`, `-07:00` in seconds.
fn offset(text: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match text {
        [sign, h1, h2, m1, m2] | [sign, h1, h2, b':', m1, m2] => (sign, [*h1, *h2], [*m1, *m2]),
        _ => return None,
    };
    let (hours, minutes) = (number(&hours)?, number(&minutes)?);
    let seconds = (hours * 3_600 + minutes * 60) as i64;
    let is_offset = hours < 24 && minutes < 60;
    match sign {
        b'+' if is_offset => Some(seconds),
        b'-' if is_offset => Some(-seconds),
        _ => None,
    }
}

/// `13:55:36` in seconds of the day. A leap second counts as the one after it.
fn clock(text: &[u8], colon: u8) -> Option<u64> {
    let &[h1, h2, c1, m1, m2, c2, s1, s2] = text else { return None };
    let (hours, minutes, seconds) = (number(&[h1, h2])?, number(&[m1, m2])?, number(&[s1, s2])?);
    let is_time = c1 == colon && c2 == colon && hours < 24 && minutes < 60 && seconds <= 60;
    is_time.then_some(hours * 3_600 + minutes * 60 + seconds)
}

/// Seconds since 1970 of a day of the calendar and a second of it.
fn civil(year: u64, month: u64, day: u64, second: u64) -> Option<i64> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_of = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let length = *days_of.get(usize::try_from(month.checked_sub(1)?).ok()?)?;
    if day == 0 || day > length || year == 0 {
        return None;
    }
    let before = year - 1;
    let days = before * 365 + before / 4 - before / 100 + before / 400;
    let months: u64 = days_of[..month as usize - 1].iter().sum();
    let days = (days + months + day - 1) as i64 - DAYS_TO_1970;
    Some(days * 86_400 + second as i64)
}

/// From the first of January of the year 1.
const DAYS_TO_1970: i64 = 719_162;

fn from_seconds(seconds: i64) -> Option<Micros> {
    u64::try_from(seconds).ok().map(Micros::from_secs)
}

/// Up to 19 digits and nothing else.
pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let digit =
        |value: u64, byte: &u8| byte.is_ascii_digit().then(|| value * 10 + u64::from(byte - b'0'));
    digits.iter().try_fold(0, digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(text: &str) -> Option<u64> {
        CommonTime::default().parse(text.as_bytes()).map(|at| at.get() / 1_000_000)
    }

    #[test]
    fn common_log_time_is_read_as_jiff_reads_it() {
        for (text, seconds) in [
            ("10/Oct/2000:13:55:36 -0700", Some(971_211_336)),
            ("01/Jan/1970:00:00:00 +0000", Some(0)),
            ("01/Jan/1970:00:00:00 +0100", None),
            ("29/Feb/2024:23:59:59 +0000", Some(1_709_251_199)),
            ("29/Feb/2023:23:59:59 +0000", None),
            ("31/Apr/2024:00:00:00 +0000", None),
            ("00/Apr/2024:00:00:00 +0000", None),
            ("01/apr/2024:00:00:00 +0000", None),
            ("01/Apr/2024:24:00:00 +0000", None),
            ("01/Apr/2024:00:00:00 +2400", None),
            ("01/Apr/2024:00:00:00  0000", None),
            ("01-Apr-2024:00:00:00 +0000", None),
            ("", None),
        ] {
            assert_eq!(common(text), seconds, "{text}");
        }
        let mut time = CommonTime::default();
        for _ in 0..2 {
            assert_eq!(time.parse(b"01/Jan/1970:00:00:01 +0000"), Some(Micros::from_secs(1)));
            assert_eq!(time.parse(b"01/Jan/1970:00:00:02 +0000"), Some(Micros::from_secs(2)));
            assert_eq!(time.parse(b"01/Jan/1970:00:00:0x +0000"), None);
        }
    }

    #[test]
    fn every_day_and_zone_is_where_jiff_has_it() {
        use jiff::{Timestamp, tz::Offset};
        for day in (0..60_000).step_by(17) {
            let at = Timestamp::from_second(day * 86_400 + day % 86_400).unwrap();
            let hours = (day % 25 - 12) as i8;
            let zoned = at.to_zoned(Offset::from_hours(hours).unwrap().to_time_zone());
            let text = zoned.strftime("%d/%b/%Y:%H:%M:%S %z").to_string();
            assert_eq!(common(&text), Some(at.as_second() as u64), "{text}");
            let text = zoned.strftime("%Y-%m-%dT%H:%M:%S.250%:z").to_string();
            let read = parse(text.as_bytes()).map(Micros::get);
            assert_eq!(read, Some(at.as_second() as u64 * 1_000_000 + 250_000), "{text}");
        }
    }

    #[test]
    fn other_instants_are_told_apart() {
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
            ("2023-11-14T22:13", None),
            ("2023-11-14T22:13:20.Z", None),
            ("2023-11-14T22:13:20 UTC", None),
            ("2023-13-14T22:13:20Z", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse(text.as_bytes()).map(Micros::get), micros, "{text:?}");
        }
    }
}
