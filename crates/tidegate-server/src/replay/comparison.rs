//! Two policies on the same requests.

use tidegate::Key;

use super::tally::{Denial, Fate};
use super::top::Top;

/// Who is denied by one policy and not by the other.
#[derive(Default, Debug)]
pub(super) struct Comparison {
    pub(super) both: u64,
    /// Denied by the first alone, and by the second alone.
    pub(super) only: [Only; 2],
}

/// What one policy denies and the other does not.
#[derive(Default, Debug)]
pub(super) struct Only {
    pub(super) denied: u64,
    pub(super) keys: Top,
}

impl Comparison {
    pub(super) fn note(&mut self, fates: &[Fate; 2]) {
        match fates {
            [Fate::Deny(_), Fate::Deny(_)] => self.both += 1,
            [Fate::Deny(denial), _] => self.only[0].note(denial.as_ref()),
            [_, Fate::Deny(denial)] => self.only[1].note(denial.as_ref()),
            _ => {}
        }
    }
}

impl Only {
    fn note(&mut self, denial: Option<&Denial>) {
        self.denied += 1;
        if let Some(Denial { rule, key, .. }) = denial {
            self.keys.note(*rule, Key::from(key));
        }
    }
}
