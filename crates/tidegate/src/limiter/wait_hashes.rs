//! Hashes of limits and keys, by which waiting callers are found.

use smallvec::SmallVec;

use crate::Charge;
use crate::fingerprint::fingerprint;
use crate::policy::Plan;

/// The line that waiters with this plan are in, while they are short of permits: a hash of the
/// first limit and key.
pub(super) fn line_of(plan: &Plan<'_>) -> u64 {
    let first = plan.steps().first().and_then(|step| Some((step.limits().next()?, step.key())));
    first.map_or(0, |(limit, key)| fingerprint(limit.tag(), key))
}

/// Hash of the limit and the key of a charge.
pub(super) fn line_of_charge(charge: &Charge<'_>) -> u64 {
    fingerprint(charge.limit.tag(), charge.key)
}

/// What a caller with this plan waits for: hashes of each limit and key, and of each limit.
pub(super) fn lines_of(plan: &Plan<'_>) -> SmallVec<[u64; 4]> {
    let limits =
        plan.steps().iter().flat_map(|step| step.limits().map(|limit| (limit, step.key())));
    limits.flat_map(|(limit, key)| [fingerprint(limit.tag(), key), limit.tag().bits()]).collect()
}
