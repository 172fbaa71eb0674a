//! Records of the memory engine: results by idempotency key, and holds.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Expiry, Micros, Verdict};

use super::budget::HeapSize;
use super::rule_records::RuleNumber;
use super::table::HeapBytes;
use crate::fingerprint::fingerprint as fingerprint_of;
use crate::{
    Decision, HeldPart, HoldId, IdempotencyKey, Op, Refusal, RuleLimit, SettledCost, Source,
};

/// A decision as it is stored: most have one verdict and no details.
#[derive(Debug)]
pub(super) enum StoredDecision {
    One(Verdict),
    Full(Box<Decision>),
}

impl StoredDecision {
    pub(super) fn new(decision: &Decision) -> Self {
        let has_details = decision.hold().is_some()
            || decision.expired()
            || decision.repeated()
            || decision.granted().is_some()
            || !decision.refunded().is_zero();
        match decision.verdicts[..] {
            [verdict] if !has_details => Self::One(verdict),
            _ => Self::Full(Box::new(decision.stored())),
        }
    }

    pub(super) fn decision(&self) -> Decision {
        match self {
            Self::One(verdict) => Decision::of_one(Source::Memory, *verdict),
            Self::Full(decision) => Decision::clone(decision),
        }
    }

    /// Bytes on the heap of a decision of this many verdicts with details.
    pub(super) fn full_bytes(verdicts: usize) -> usize {
        size_of::<Decision>() + Decision::heap_bytes_for(verdicts)
    }
}

/// The result of a call that was charged under an id.
#[derive(Debug)]
pub(super) struct IdempotencyEntry {
    pub(super) name: u128,
    /// Hash of the request, with the number of its rule in the lowest bits: a field of its own
    /// would need 16 bytes.
    pub(super) request: u64,
    pub(super) expires: Micros,
    pub(super) decision: StoredDecision,
}

impl IdempotencyEntry {
    /// A clock that stepped back makes no record last longer than its time to live.
    pub(super) fn has_expired(&mut self, now: Micros) -> bool {
        self.expires = self.expires.min(now.saturating_add(IdempotencyKey::TTL));
        self.expires <= now
    }

    pub(super) fn rule(&self) -> RuleNumber {
        RuleNumber::from_low_bits(self.request)
    }

    /// Time since the entry was stored.
    pub(super) fn age(&self, now: Micros) -> Micros {
        IdempotencyKey::TTL.saturating_sub(self.expires.saturating_sub(now))
    }
}

impl HeapBytes for IdempotencyEntry {
    fn heap_bytes(&self) -> HeapSize {
        let own = match &self.decision {
            StoredDecision::One(_) => 0,
            StoredDecision::Full(decision) => size_of::<Decision>() + decision.heap_bytes(),
        };
        HeapSize { own, holds: 0 }
    }
}

/// A hold, its limits and keys, and how it was settled.
pub(super) struct StoredHold {
    pub(super) cells: SmallVec<[HeldCell; 1]>,
    /// Made for one request, so it is removed when it is settled; see
    /// [`HoldKind`](crate::HoldKind).
    pub(super) is_per_request: bool,
    pub(super) settled: Option<SettledHold>,
    pub(super) forget_at: Micros,
    pub(super) rule: RuleNumber,
}

/// How a hold was settled.
pub(super) struct SettledHold {
    expired: bool,
    decision: StoredDecision,
}

impl SettledHold {
    pub(super) fn new(decision: &Decision) -> Self {
        let expired = decision.expired();
        let decision = match decision.verdicts[..] {
            [verdict] => StoredDecision::One(verdict),
            _ => StoredDecision::new(decision),
        };
        Self { expired, decision }
    }

    pub(super) fn decision(&self) -> Decision {
        let mut decision = self.decision.decision();
        if self.expired {
            decision.details_mut().expired = true;
        }
        decision
    }
}

/// One limit and key of a hold.
#[derive(Clone)]
pub(super) struct HeldCell {
    pub(super) limit: Arc<RuleLimit>,
    pub(super) fingerprint: u64,
    /// The cost when the hold was made.
    pub(super) first_cost: Cost,
    /// What is held, or was charged when the hold was made.
    pub(super) cost: Cost,
    /// What happens when it expires; `None` if it was charged when the hold was made.
    pub(super) expiry: Option<Expiry>,
    /// Once settled: the actual cost, and what was charged.
    pub(super) actual: Cost,
    pub(super) charged: Cost,
}

impl HeldCell {
    pub(super) fn part(&self) -> HeldPart<'_> {
        HeldPart { limit: &self.limit, cost: self.first_cost, is_held: self.expiry.is_some() }
    }

    /// What settling has charged.
    pub(super) fn settled(&self) -> SettledCost {
        let &Self { cost: reserved, actual, charged, .. } = self;
        let is_slot = self.limit.limit().lease().is_some();
        let uncharged = if is_slot { Cost::ZERO } else { actual.saturating_sub(charged) };
        SettledCost { reserved, charged, uncharged }
    }
}

impl StoredHold {
    /// The cost of each cell that `op` names.
    pub(super) fn named_costs(&self, op: Op<'_>) -> Result<SmallVec<[Option<Cost>; 2]>, Refusal> {
        let held: SmallVec<[HeldPart<'_>; 2]> = self.cells.iter().map(HeldCell::part).collect();
        op.costs_of_parts(&held, |i, key| {
            let HeldCell { limit, fingerprint, .. } = &self.cells[i];
            *fingerprint == fingerprint_of(limit.tag(), key)
        })
    }

    /// Whether the record has expired. A clock that stepped back makes no record last longer.
    pub(super) fn is_forgotten(&mut self, now: Micros) -> bool {
        if self.settled.is_some() {
            self.forget_at = self.forget_at.min(now.saturating_add(HoldId::RETENTION));
        }
        self.forget_at <= now
    }

    /// Whether the hold is of this rule; `None` is any.
    pub(super) fn is_of(&self, rule: Option<RuleNumber>) -> bool {
        rule.is_none_or(|rule| rule == self.rule)
    }

    /// Whether the record can be removed early to make room: settled, or forgotten. A later call
    /// about the hold is then refused, but nothing is admitted because of that.
    pub(super) fn is_removable(&mut self, now: Micros) -> bool {
        self.settled.is_some() || self.is_forgotten(now)
    }

    /// When the hold expired, if it has and was not settled. Its record can be removed after the
    /// settled ones: a late commit is then refused, and its cost has to be recorded.
    pub(super) fn expired_at(&self, now: Micros) -> Option<Micros> {
        let deadline = self.forget_at.saturating_sub(HoldId::RETENTION);
        (self.settled.is_none() && deadline <= now).then_some(deadline)
    }

    /// Bytes on the heap of the record of a hold on these limits, with the decision that settles
    /// it, so that settling needs no more room.
    pub(super) fn heap_bytes_of<'a>(limits: impl Iterator<Item = &'a RuleLimit>) -> usize {
        let (mut cells, mut verdicts) = (0, 0);
        for limit in limits {
            cells += 1;
            verdicts += usize::from(!limit.is_shadow());
        }
        let inline = SmallVec::<[HeldCell; 1]>::new().inline_size();
        let spilled = if cells > inline { cells * size_of::<HeldCell>() } else { 0 };
        spilled + if verdicts == 1 { 0 } else { StoredDecision::full_bytes(verdicts) }
    }
}

impl HeapBytes for StoredHold {
    fn heap_bytes(&self) -> HeapSize {
        let own = Self::heap_bytes_of(self.cells.iter().map(|cell| &*cell.limit));
        HeapSize { own, holds: 0 }
    }

    fn rule(&self) -> Option<RuleNumber> {
        Some(self.rule)
    }
}
