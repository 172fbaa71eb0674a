//! An amount of memory, like `256MiB`.

use std::fmt;
use std::str::FromStr;

/// An amount of memory from 1 MiB to 1 TiB; 256 MiB by default.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MemorySize(usize);

impl MemorySize {
    const UNITS: [(&'static str, u64); 4] =
        [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];
    const MIN: u64 = 1 << 20;
    const MAX: u64 = 1 << 40;

    /// The number of bytes.
    pub fn bytes(self) -> usize {
        self.0
    }
}

impl Default for MemorySize {
    fn default() -> Self {
        Self(tidegate::Memory::DEFAULT_CAP_BYTES)
    }
}

impl FromStr for MemorySize {
    type Err = InvalidMemorySize;

    fn from_str(text: &str) -> Result<Self, InvalidMemorySize> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let unit = Self::UNITS.iter().find(|(name, _)| *name == unit.trim_start());
        let bytes = number.parse::<u64>().ok().zip(unit);
        let bytes = bytes.and_then(|(number, (_, unit))| number.checked_mul(*unit));
        let bytes = bytes.filter(|bytes| (Self::MIN..=Self::MAX).contains(bytes));
        let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
        bytes.map(Self).ok_or(InvalidMemorySize)
    }
}

/// Text that is not a [`MemorySize`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidMemorySize;

impl fmt::Display for InvalidMemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected 1MiB to 1TiB, for example 256MiB or 2GiB")
    }
}

impl std::error::Error for InvalidMemorySize {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit_and_is_within_its_bounds() {
        for (text, expected) in [
            ("256MiB", Some(256 << 20)),
            ("2 GiB", Some(2 << 30)),
            ("1024KiB", Some(1 << 20)),
            ("1TiB", Some(1 << 40)),
            ("1023KiB", None),
            ("2TiB", None),
            ("18446744073709551615TiB", None),
            ("256MB", None),
            ("256", None),
            ("MiB", None),
            ("-1MiB", None),
            ("1.5GiB", None),
            ("", None),
        ] {
            assert_eq!(text.parse().map(MemorySize::bytes).ok(), expected, "{text}");
        }
    }
}
