//! Whole numbers as arguments. Imports nothing of the crate.

use tidegate::Cost;

/// A whole number from `MIN` to `MAX`.
pub(crate) fn whole_number<const MIN: u64, const MAX: u64>(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (MIN..=MAX).contains(number));
    number.ok_or_else(|| format!("expected a whole number from {MIN} to {MAX}"))
}

/// A cost; 0 peeks.
pub(crate) fn cost(text: &str) -> Result<u64, String> {
    whole_number::<0, { Cost::MAX.get() }>(text)
}

/// A random seed.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    whole_number::<0, { u64::MAX }>(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_outside_of_the_range_is_refused_with_the_range() {
        assert_eq!(cost("4294967296"), Ok(Cost::MAX.get()));
        for text in ["-1", "abc", "", "1.5", "4294967297", "1k"] {
            let expected = "expected a whole number from 0 to 4294967296";
            assert_eq!(cost(text), Err(expected.into()), "{text}");
        }
        assert_eq!(whole_number::<1, 9>("0"), Err("expected a whole number from 1 to 9".into()));
    }
}
