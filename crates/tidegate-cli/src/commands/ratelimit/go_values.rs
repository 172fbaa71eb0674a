//! Values of environment variables as Go programs read them.

use std::time::Duration;

/// A boolean.
pub(super) fn boolean(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false"),
    }
}

/// A duration of numbers with units: `10s`, `1m30s`, `1.5h`, `0`.
pub(super) fn duration(text: &str) -> Result<Duration, &'static str> {
    const EXPECTED: &str = "expected a duration, for example 10s or 1m30s";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(EXPECTED)?;
        let number: f64 = rest[..digits].parse().map_err(|_| EXPECTED)?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "ns" => 1e-9,
                "us" | "µs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3_600.0,
                _ => return Err(EXPECTED),
            };
        rest = &rest[unit..];
    }
    if text.is_empty() {
        return Err(EXPECTED);
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| EXPECTED)
}

/// Pairs like `a:1, b:2`, without the spaces around names and values.
pub(super) fn pairs(text: &str, separator: char) -> Result<Vec<(String, String)>, &'static str> {
    let items = text.split(',').filter(|item| !item.trim().is_empty());
    let pair = |item: &str| {
        let (name, value) = item.split_once(separator)?;
        let name = Some(name.trim()).filter(|name| !name.is_empty())?;
        Some((name.to_string(), value.trim().to_string()))
    };
    let pairs: Option<Vec<_>> = items.map(pair).collect();
    pairs.ok_or("expected pairs, separated by commas")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (text, seconds) in
            [("10s", 10.0), ("1m30s", 90.0), ("1.5h", 5_400.0), ("250ms", 0.25), ("0", 0.0)]
        {
            assert_eq!(duration(text).unwrap().as_secs_f64(), seconds, "{text}");
        }
        for text in ["", "10", "s", "1x", "1s2", "-1s", "1..2s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pairs_need_their_separator() {
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        assert_eq!(pairs("a:1,b:x:y", ':').unwrap(), [pair("a", "1"), pair("b", "x:y")]);
        assert_eq!(pairs("", ':').unwrap(), []);
        assert_eq!(pairs(" a : 1, b:2 ,", ':').unwrap(), [pair("a", "1"), pair("b", "2")]);
        assert!(pairs("a", ':').is_err() && pairs("a:1, :2", ':').is_err());
    }
}
