//! Log of work charged to several limits, and the bounds of each limit's final count.
//!
//! Only the results that callers saw enter the computation, nothing about the engine.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::{Decision, EngineError, Expiry};
use tokio::time::Instant;

/// One call as its caller saw it.
#[derive(Clone, Debug)]
pub struct LedgerAttempt {
    /// Number shared by all attempts at one piece of work: an id, or a reservation.
    pub work: u64,
    pub kind: WorkKind,
    /// The limits, charged with one permit each.
    pub limits: Vec<usize>,
    pub start: Instant,
    pub end: Instant,
    pub result: ObservedResult,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkKind {
    Check,
    /// A check with an idempotency key.
    CheckWithId,
    Hold(Expiry),
    Settle(u64),
    Renew,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObservedResult {
    Allow,
    Deny,
    /// Done, but the hold had expired on at least one shard.
    Expired,
    NotCharged(String),
    MaybeCharged(String),
    Refused(String),
    /// The caller dropped the future.
    Dropped,
}

impl ObservedResult {
    pub fn of(result: Option<&Result<Decision, EngineError>>) -> Self {
        match result {
            None => Self::Dropped,
            Some(Ok(decision)) if decision.expired() => Self::Expired,
            Some(Ok(decision)) if decision.allowed() => Self::Allow,
            Some(Ok(_)) => Self::Deny,
            Some(Err(EngineError::Ambiguous(why))) => Self::MaybeCharged(why.to_string()),
            Some(Err(EngineError::Unavailable(why))) => Self::NotCharged(why.to_string()),
            Some(Err(error)) => Self::Refused(error.to_string()),
        }
    }

    pub fn is_decision(&self) -> bool {
        matches!(self, Self::Allow | Self::Deny | Self::Expired)
    }

    /// Whether the charge was made is unknown.
    fn is_unknown(&self) -> bool {
        matches!(self, Self::MaybeCharged(_) | Self::Dropped)
    }

    pub fn error(&self) -> Option<&str> {
        match self {
            Self::NotCharged(why) | Self::MaybeCharged(why) | Self::Refused(why) => Some(why),
            _ => None,
        }
    }
}

impl LedgerAttempt {
    pub fn took(&self) -> Duration {
        self.end - self.start
    }
}

/// What one piece of work charges to each of its limits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ChargeBounds {
    /// Work that was admitted, and so was done.
    pub admitted: u64,
    pub min_charged: u64,
    pub max_charged: u64,
}

impl ChargeBounds {
    fn exactly(cost: u64) -> Self {
        Self { admitted: cost, min_charged: cost, max_charged: cost }
    }

    fn up_to(max_charged: u64) -> Self {
        Self { max_charged, ..Self::default() }
    }
}

/// Sums a log for each limit. `may_keep_hold` says whether the hold of a denied call may not have
/// been dropped.
pub fn charge_bounds(
    log: &[LedgerAttempt],
    limits: usize,
    may_keep_hold: impl Fn(&LedgerAttempt) -> bool,
) -> Vec<ChargeBounds> {
    let mut works = BTreeMap::<u64, Vec<&LedgerAttempt>>::new();
    for attempt in log {
        works.entry(attempt.work).or_default().push(attempt);
    }
    let mut sums = vec![ChargeBounds::default(); limits];
    for attempts in works.into_values() {
        let one = bounds_of_work(&attempts, &may_keep_hold);
        for limit in &attempts[0].limits {
            sums[*limit].admitted += one.admitted;
            sums[*limit].min_charged += one.min_charged;
            sums[*limit].max_charged += one.max_charged;
        }
    }
    sums
}

fn bounds_of_work(
    attempts: &[&LedgerAttempt],
    may_keep_hold: impl Fn(&LedgerAttempt) -> bool,
) -> ChargeBounds {
    let first = attempts[0];
    match first.kind {
        // However many attempts: charged once.
        WorkKind::Check | WorkKind::CheckWithId => {
            if attempts.iter().any(|a| a.result == ObservedResult::Allow) {
                return ChargeBounds::exactly(1);
            }
            let costs = |a: &&&LedgerAttempt| {
                a.result.is_unknown() || a.result == ObservedResult::Deny && may_keep_hold(a)
            };
            ChargeBounds::up_to(u64::from(attempts.iter().any(|a| costs(&a))))
        }
        WorkKind::Hold(expiry) => {
            let charged_on_expiry = u64::from(expiry == Expiry::Charge);
            match &first.result {
                ObservedResult::Allow => settled(&attempts[1..], charged_on_expiry),
                result if result.is_unknown() => ChargeBounds::up_to(charged_on_expiry),
                // A reservation is denied only after all of its holds were dropped.
                _ => ChargeBounds::default(),
            }
        }
        WorkKind::Settle(_) | WorkKind::Renew => panic!("{first:?} without a hold"),
    }
}

/// Bounds of a hold that was granted.
fn settled(attempts: &[&LedgerAttempt], charged_on_expiry: u64) -> ChargeBounds {
    let mut bounds = ChargeBounds::exactly(charged_on_expiry);
    for attempt in attempts {
        let WorkKind::Settle(cost) = attempt.kind else { continue };
        match &attempt.result {
            ObservedResult::Allow | ObservedResult::Deny => return ChargeBounds::exactly(cost),
            // Some shards charge on expiry, the others what was settled.
            ObservedResult::Expired => return ChargeBounds::up_to(cost.max(charged_on_expiry)),
            ObservedResult::NotCharged(_) => {}
            _ => bounds = ChargeBounds::up_to(cost.max(charged_on_expiry)),
        }
    }
    bounds
}
