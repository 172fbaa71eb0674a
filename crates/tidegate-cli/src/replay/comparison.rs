//! Comparison of two policies on the same requests.

use tidegate::Key;

use super::counts::{ReplayDenial, RequestOutcome};
use super::top_keys::TopKeys;

#[derive(Default, Debug)]
pub(crate) struct Comparison {
    /// Requests denied by both.
    pub(crate) both: u64,
    /// Denied only by the first, and only by the second.
    pub(crate) only: [ExclusiveDenials; 2],
}

/// Requests that one policy denies and the other allows.
#[derive(Default, Debug)]
pub(crate) struct ExclusiveDenials {
    pub(crate) denied: u64,
    pub(crate) keys: TopKeys,
}

impl Comparison {
    pub(crate) fn note(&mut self, outcomes: &[RequestOutcome; 2]) {
        match outcomes {
            [RequestOutcome::Deny(_), RequestOutcome::Deny(_)] => self.both += 1,
            [RequestOutcome::Deny(denial), _] => self.only[0].note(denial.as_ref()),
            [_, RequestOutcome::Deny(denial)] => self.only[1].note(denial.as_ref()),
            _ => {}
        }
    }
}

impl ExclusiveDenials {
    fn note(&mut self, denial: Option<&ReplayDenial>) {
        self.denied += 1;
        if let Some(ReplayDenial { rule, key, .. }) = denial {
            self.keys.note(*rule, Key::from(key));
        }
    }
}
