//! Rates and sizes as text.

use crate::text::format::number;

/// Calls per second, with one decimal below 10.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        rate if rate <= 0.0 => "0".into(),
        rate if rate < 0.1 => "<0.1".into(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate => number(rate.round() as u64),
    }
}

pub(super) fn bytes(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{} B", number(bytes)),
        10_240..10_485_760 => format!("{} KiB", number(bytes >> 10)),
        _ => format!("{} MiB", number(bytes >> 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_rates_have_decimals_and_sizes_a_unit() {
        let rates = [0.0, 0.01, 0.1, 3.33, 9.96, 1_234.4].map(rate);
        assert_eq!(rates, ["0", "<0.1", "0.1", "3.3", "10", "1,234"]);
        assert_eq!([bytes(5), bytes(20_480), bytes(20 << 20)], ["5 B", "20 KiB", "20 MiB"]);
    }
}
