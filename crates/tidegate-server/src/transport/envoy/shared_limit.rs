//! Checks of limits that the quota service lends in shares. Their state is not in the engine.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate::{Key, Source, Verdict};
use tidegate_config::envoy::ShareLimit;

use super::quota::registry::{LimitKey, QuotaShares};
use super::request::{Hits, MatchedDescriptor};
use super::response::DescriptorReport;
use crate::check::{ActivePolicy, Operation};

/// The limits of one request that are lent in shares, and what the request has taken of them.
pub(super) struct SharedLimits<'c> {
    shares: &'c Arc<QuotaShares>,
    active: &'c ActivePolicy,
    taken: SmallVec<[(LimitKey, ShareLimit, u64); 2]>,
}

impl<'c> SharedLimits<'c> {
    pub(super) fn new(shares: &'c Arc<QuotaShares>, active: &'c ActivePolicy) -> Self {
        Self { shares, active, taken: SmallVec::new() }
    }

    /// Charges these descriptors, and reports each of them. Hits that are charged only if they fit
    /// are taken from all limits or from none; without `takes` from none.
    pub(super) fn charge<'d, 'p: 'd>(
        &mut self,
        all: impl Iterator<Item = (&'d MatchedDescriptor<'p>, Key<'d>)>,
        takes: bool,
    ) -> Vec<DescriptorReport> {
        let mut takes = takes;
        let mut reports = Vec::new();
        for (limited, key) in all {
            let (Some(limit), Some(rule)) = (limited.limit().shares(), limited.rule()) else {
                reports.push(DescriptorReport::empty());
                continue;
            };
            let key = LimitKey::new(rule.name(), key);
            let (operation, verdict) = self.charge_one(limited, &key, limit, takes);
            if operation == Operation::Check {
                self.active.metrics(rule).count(verdict.outcome(), Source::Memory);
                if !verdict.allowed {
                    takes = false;
                    self.give_back();
                }
            }
            let verdicts = SmallVec::from_slice(&[verdict]);
            reports.push(DescriptorReport::new(operation, Source::Memory, verdicts));
        }
        reports
    }

    fn charge_one(
        &mut self,
        limited: &MatchedDescriptor<'_>,
        key: &LimitKey,
        limit: ShareLimit,
        takes: bool,
    ) -> (Operation, Verdict) {
        let cost = limited.cost().get();
        match limited.hits {
            Hits::Charge(_) if !limited.limit().charge_if_allowed() => {
                (Operation::Record, self.shares.record(key, limit, cost))
            }
            Hits::Refund(_) => (Operation::Refund, self.shares.give_back(key, limit, cost)),
            Hits::One | Hits::Charge(_) if takes => {
                let verdict = self.shares.take(key, limit, cost);
                if verdict.allowed {
                    self.taken.push((key.clone(), limit, cost));
                }
                (Operation::Check, verdict)
            }
            // A reserve or a commit of such a limit is refused before.
            _ => (Operation::Peek, self.shares.peek(key, limit)),
        }
    }

    /// Gives back what was taken: the request is denied.
    pub(super) fn give_back(&mut self) {
        for (key, limit, cost) in self.taken.drain(..) {
            self.shares.give_back(&key, limit, cost);
        }
    }
}
