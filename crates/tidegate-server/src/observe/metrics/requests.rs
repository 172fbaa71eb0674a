//! Requests by their outcome, however many rules applied to each.

use std::sync::atomic::{AtomicU64, Ordering};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a request that asks for permits ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OutcomeLabel {
    Allow,
    Deny,
    /// It got no decision.
    Error,
}

impl OutcomeLabel {
    pub(super) const ALL: [Self; 3] = [Self::Allow, Self::Deny, Self::Error];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Error => "error",
        }
    }
}

/// Requests by outcome: checks, reservations and authorizations, each counted once.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, Debug)]
#[schemars(rename = "RequestCounts_{T}")]
pub struct RequestCounts<T> {
    /// Allowed.
    pub allowed: T,
    /// Denied.
    pub denied: T,
    /// Without a decision.
    pub errors: T,
}

impl<T> RequestCounts<T> {
    pub(crate) const KINDS: usize = 3;

    /// In the order of the fields.
    pub(crate) fn from_array([allowed, denied, errors]: [T; 3]) -> Self {
        Self { allowed, denied, errors }
    }

    /// In the order of the fields.
    pub(crate) fn as_array(&self) -> [&T; 3] {
        [&self.allowed, &self.denied, &self.errors]
    }
}

/// The counters of one listener.
#[derive(Default, Debug)]
pub(super) struct RequestCounters([AtomicU64; OutcomeLabel::ALL.len()]);

impl RequestCounters {
    pub(super) fn count(&self, outcome: OutcomeLabel) {
        self.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn totals(&self) -> [u64; OutcomeLabel::ALL.len()] {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}
