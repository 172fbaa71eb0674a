//! Numbers and percentages for people.

/// `1234567` as `1,234,567`.
pub fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A part of a whole as a percentage with one decimal, rounded down: 0 % and 100 % are exact.
pub fn percent(part: u64, whole: u64) -> String {
    match (u128::from(part) * 1_000).checked_div(u128::from(whole)).unwrap_or(0) {
        0 if part > 0 => "<0.1 %".into(),
        thousandths => format!("{}.{} %", thousandths / 10, thousandths % 10),
    }
}

/// Millionths as a fraction of three decimals, rounded down.
pub fn fraction(millionths: u64) -> String {
    format!("{}.{:03}", millionths / 1_000_000, millionths % 1_000_000 / 1_000)
}

/// At most `length` characters of a text; a shortened one ends in `…`.
pub fn shortened(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        None => text.into(),
        Some(_) => text.chars().take(length.saturating_sub(1)).chain(['\u{2026}']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        let shares = [percent(2, 3), percent(3, 3), percent(0, 0), percent(1, 9_999)];
        assert_eq!(shares, ["66.6 %", "100.0 %", "0.0 %", "<0.1 %"]);
        assert_eq!(fraction(985_276), "0.985");
        assert_eq!([shortened("abc", 3), shortened("abcd", 3)], ["abc", "ab\u{2026}"]);
    }
}
