//! Numbers and spans as people read them.

use tidegate::{Micros, Wait};

/// `1234567` as `1,234,567`.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut written = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            written.push(',');
        }
        written.push(digit);
    }
    written
}

/// A part of a whole as a percentage, with one decimal, rounded down: 100 % is all of them.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let thousandths = (u128::from(part) * 1_000).checked_div(u128::from(whole)).unwrap_or(0);
    format!("{}.{} %", thousandths / 10, thousandths % 10)
}

/// Millionths as a fraction of three decimals, rounded down.
pub(crate) fn fraction(millionths: u64) -> String {
    format!("{}.{:03}", millionths / 1_000_000, millionths % 1_000_000 / 1_000)
}

/// A span in the unit that suits it, with a decimal if it needs one, rounded up: nobody is told to wait too short.
pub(crate) fn span(span: Micros) -> String {
    const UNITS: [(u64, &str); 6] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
        (1, "us"),
    ];
    let micros = span.get();
    // From two of a unit on, so that 90 s are not 1.5 m.
    let suits = |(length, _): &&(u64, &str)| micros >= 2 * length || micros == *length;
    let (length, unit) = UNITS.iter().find(suits).copied().unwrap_or((1, "us"));
    let tenths = (u128::from(micros) * 10).div_ceil(u128::from(length));
    match tenths % 10 {
        0 => format!("{}{unit}", tenths / 10),
        tenth => format!("{}.{tenth}{unit}", tenths / 10),
    }
}

/// A wait, or that it is for ever.
pub(crate) fn wait(wait: Wait) -> String {
    wait.span().map_or_else(|| "never".into(), span)
}

/// At most `length` characters of a text.
pub(super) fn shortened(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        None => text.into(),
        Some(_) => text.chars().take(length.saturating_sub(1)).chain(['\u{2026}']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_spans_are_written_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([percent(2, 3), percent(3, 3), percent(0, 0)], ["66.6 %", "100.0 %", "0.0 %"]);
        assert_eq!(fraction(985_276), "0.985");
        for (micros, written) in [
            (0, "0us"),
            (1, "1us"),
            (1_500, "1500us"),
            (150_000, "150ms"),
            (1_000_000, "1s"),
            (1_500_000, "1500ms"),
            (4_900_000, "4.9s"),
            (4_910_000, "5s"),
            (90_000_000, "90s"),
            (150_000_000, "2.5m"),
            (18_331_083_000, "5.1h"),
        ] {
            assert_eq!(span(Micros::new(micros)), written);
        }
        assert_eq!(wait(Wait::Never), "never");
        assert_eq!([shortened("abc", 3), shortened("abcd", 3)], ["abc", "ab\u{2026}"]);
    }
}
