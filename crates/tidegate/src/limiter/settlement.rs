//! What settling a reservation has charged.

use std::sync::Arc;

use tidegate_core::{Micros, Verdict};

use crate::{Decision, RuleLimit, SettledCost, Source};

/// What settling a reservation has charged. It is no decision: the work was done, so nothing is
/// allowed or denied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settled {
    decision: Decision,
}

impl Settled {
    pub(super) fn new(decision: Decision) -> Self {
        Self { decision }
    }

    /// Where the reservation was settled.
    pub fn source(&self) -> Source {
        self.decision.source
    }

    /// Whether the reservation had expired before.
    pub fn late(&self) -> bool {
        self.decision.expired()
    }

    /// Whether a limit is now above its capacity. This concerns the next requests.
    pub fn overdrawn(&self) -> bool {
        !self.decision.allowed()
    }

    /// Remaining permits of the most restrictive limit.
    pub fn remaining(&self) -> u64 {
        self.decision.remaining()
    }

    /// How long a queue delays what was charged: the longest delay over the limits.
    pub fn delay(&self) -> Micros {
        self.decision.delay()
    }

    /// The state of the limits after the settlement, for code that reports decisions.
    pub fn into_decision(self) -> Decision {
        self.decision
    }

    /// The enforced limits of the reservation in order, each with what was charged and its present
    /// state.
    pub fn limits(&self) -> impl Iterator<Item = (&Arc<RuleLimit>, &SettledCost, &Verdict)> {
        let charged = self.decision.held().iter().zip(self.decision.settled());
        charged.zip(&self.decision.verdicts).map(|((limit, cost), verdict)| (limit, cost, verdict))
    }
}
