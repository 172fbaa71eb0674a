//! What the store allowed a process counts against its share.

use std::collections::BTreeMap;

use tidegate::Source;

use super::{Violation, Violations};
use crate::fault_simulation::broken_layers::MIRROR;
use crate::fault_simulation::log::{Log, Outcome};
use crate::fault_simulation::plan::Plan;
use crate::fault_simulation::traffic::Kind;
use testkit::bounds::families::GuaranteedBound;

/// Admissions of the fallback that are compared with the store's before them.
const MAX_GRANTS: usize = 64;

/// Permits that a process admitted at an instant of its clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CountedAdmission {
    at: u64,
    /// At one instant, those of the store come last: their order is not known.
    by_store: bool,
    permits: u64,
}

/// Checks buckets: what the store, or a lease, allowed before the first decision of the fallback,
/// at most the share, and what the fallback admits after that are together within the share.
pub(super) fn check(plan: &Plan, log: &Log, found: &mut Violations) {
    let mut admissions: BTreeMap<(usize, usize), Vec<CountedAdmission>> = BTreeMap::new();
    for row in &log.rows {
        let Some(Outcome::Decided { source, allowed: true, .. }) = row.outcome else { continue };
        if !matches!(row.request.kind, Kind::Check | Kind::Quick | Kind::Probe) {
            continue;
        }
        for &(subject, permits) in &row.request.charges {
            let by_store = source != Source::Fallback;
            let admission = CountedAdmission { at: row.local, by_store, permits };
            admissions.entry((row.incarnation, subject)).or_default().push(admission);
        }
    }
    for ((incarnation, number), mut admitted) in admissions {
        let (share, Some(bound @ GuaranteedBound::Rate { .. })) = plan.subjects[number].local
        else {
            continue;
        };
        admitted.sort_unstable();
        if let Some((at, what)) = (share > 0).then(|| excess(&admitted, bound, share)).flatten() {
            let what = format!("incarnation {incarnation}, subject {number}: {what}, {bound:?}");
            found.push(Violation { claim: MIRROR, at, what });
        }
    }
}

fn excess(
    admitted: &[CountedAdmission],
    bound: GuaranteedBound,
    share: u64,
) -> Option<(u64, String)> {
    for (index, first) in admitted.iter().enumerate().filter(|(_, first)| first.by_store) {
        let rest = &admitted[index..];
        let before = rest.iter().take_while(|one| one.by_store);
        let by_store: u64 = before.map(|one| one.permits).sum();
        let mut sum = by_store.min(share);
        for one in rest.iter().filter(|one| !one.by_store).take(MAX_GRANTS) {
            sum += one.permits;
            // Less than one permit may be left when the share is full.
            if !bound.allows(sum, share, (first.at, one.at), 1) {
                let span = one.at - first.at;
                return Some((one.at, format!("{by_store} by the store, {sum} in {span} us")));
            }
        }
    }
    None
}
