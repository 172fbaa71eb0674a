//! Stamps: which of two values of a field is newer.

use std::fmt;
use std::str::FromStr;

use tidegate::Micros;

/// The place of a change in the order of the store: of two values of a field, the larger one wins.
///
/// The sequence number is the time of the store in microseconds, and larger than that of any change
/// before. So a change after one that the store has lost is the larger of the two, even if no
/// remaining server knows the lost one. The nonce distinguishes changes with the same number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Stamp {
    term: u64,
    sequence: u64,
    nonce: u32,
}

impl Stamp {
    /// The stamp of the next change, if the store is at `head` and `known` is the largest stamp
    /// that this server knows.
    ///
    /// If an empty store has a clock behind the last known change, a new term begins: other servers
    /// may know later ones.
    pub(super) fn next(head: Option<Self>, known: Option<Self>, now: Micros, nonce: u32) -> Self {
        let Some(last) = head.max(known) else {
            return Self { term: 1, sequence: now.get(), nonce };
        };
        if now.get() > last.sequence {
            return Self { sequence: now.get(), nonce, ..last };
        }
        match head {
            Some(_) => Self { sequence: last.sequence + 1, nonce, ..last },
            None => Self { term: last.term + 1, sequence: now.get(), nonce },
        }
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{:08x}", self.term, self.sequence, self.nonce)
    }
}

/// Not a stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidStamp;

impl FromStr for Stamp {
    type Err = InvalidStamp;

    fn from_str(text: &str) -> Result<Self, InvalidStamp> {
        let mut parts = text.split('.');
        let mut number = |radix| {
            let part = parts.next().ok_or(InvalidStamp)?;
            u64::from_str_radix(part, radix).map_err(|_| InvalidStamp)
        };
        let (term, sequence) = (number(10)?, number(10)?);
        let nonce = u32::try_from(number(16)?).map_err(|_| InvalidStamp)?;
        if parts.next().is_some() { Err(InvalidStamp) } else { Ok(Self { term, sequence, nonce }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_as_it_is_written_and_nothing_else_is() {
        let stamp = Stamp { term: 7, sequence: 12, nonce: 0xab };
        assert_eq!(stamp.to_string(), "7.12.000000ab");
        assert_eq!("7.12.000000ab".parse(), Ok(stamp));
        for text in ["", "7", "7.12", "7.12.x", "7.12.1.1", "7.12.100000000", "-1.1.1"] {
            assert_eq!(text.parse::<Stamp>(), Err(InvalidStamp), "{text}");
        }
    }

    #[test]
    fn every_next_stamp_is_larger_whatever_the_store_has_lost() {
        let (now, later) = (Micros::from_secs(1_000), Micros::from_secs(2_000));
        let first = Stamp::next(None, None, now, 1);
        assert_eq!(first, Stamp { term: 1, sequence: 1_000_000_000, nonce: 1 });
        let second = Stamp::next(Some(first), None, now, 0);
        assert_eq!(second, Stamp { term: 1, sequence: 1_000_000_001, nonce: 0 });
        assert!(Stamp::next(Some(first), Some(second), now, 0) > second, "it lost the second");
        assert!(Stamp::next(Some(first), None, later, 0) > second, "which is not known");
        assert!(Stamp::next(None, None, later, 0) > second, "it lost both");
        let behind = Stamp::next(None, Some(second), Micros::from_secs(500), 0);
        assert_eq!(behind, Stamp { term: 2, sequence: 500_000_000, nonce: 0 }, "and its clock");
    }
}
