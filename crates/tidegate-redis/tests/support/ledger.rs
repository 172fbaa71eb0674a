//! The raw log of work that is charged to several limits, and what each of them may say in the end.
//!
//! Nothing here knows how the engine does it: only what callers were told counts.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate::{Decision, EngineError, Expiry};
use tokio::time::Instant;

/// One call as its caller saw it.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// All attempts at one piece of work have this in common: an id, or a reservation.
    pub(crate) work: u64,
    pub(crate) what: What,
    /// The limits that one permit each was asked of.
    pub(crate) limits: Vec<usize>,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    pub(crate) said: Said,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Check,
    /// A check under an id.
    Once,
    Hold(Expiry),
    Settle(u64),
    Renew,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    Allow,
    Deny,
    /// It was done, but the hold had ended before in one place at least.
    Expired,
    Nothing(String),
    Perhaps(String),
    Refused(String),
    /// The caller went away.
    Dropped,
}

impl Said {
    pub(crate) fn of(answer: Option<&Result<Decision, EngineError>>) -> Self {
        match answer {
            None => Self::Dropped,
            Some(Ok(decision)) if decision.expired() => Self::Expired,
            Some(Ok(decision)) if decision.allowed() => Self::Allow,
            Some(Ok(_)) => Self::Deny,
            Some(Err(EngineError::Ambiguous(why))) => Self::Perhaps(why.to_string()),
            Some(Err(EngineError::Unavailable(why))) => Self::Nothing(why.to_string()),
            Some(Err(error)) => Self::Refused(error.to_string()),
        }
    }

    pub(crate) fn is_answer(&self) -> bool {
        matches!(self, Self::Allow | Self::Deny | Self::Expired)
    }

    /// Nobody knows whether it was done.
    fn is_open(&self) -> bool {
        matches!(self, Self::Perhaps(_) | Self::Dropped)
    }

    pub(crate) fn error(&self) -> Option<&str> {
        match self {
            Self::Nothing(why) | Self::Perhaps(why) | Self::Refused(why) => Some(why),
            _ => None,
        }
    }
}

impl Attempt {
    pub(crate) fn took(&self) -> Duration {
        self.ended - self.begun
    }
}

/// What one piece of work comes to, for each of its limits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Due {
    /// Work that was done because it was admitted.
    pub(crate) admitted: u64,
    /// What is charged at least, and at most.
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Due {
    fn exactly(cost: u64) -> Self {
        Self { admitted: cost, least: cost, most: cost }
    }

    fn up_to(most: u64) -> Self {
        Self { most, ..Self::default() }
    }
}

/// What all of a log comes to, limit by limit. `unanswered` says of a denial whether what it had held
/// may not have been dropped.
pub(crate) fn dues(
    log: &[Attempt],
    limits: usize,
    unanswered: impl Fn(&Attempt) -> bool,
) -> Vec<Due> {
    let mut works = BTreeMap::<u64, Vec<&Attempt>>::new();
    for attempt in log {
        works.entry(attempt.work).or_default().push(attempt);
    }
    let mut dues = vec![Due::default(); limits];
    for attempts in works.into_values() {
        let due = due(&attempts, &unanswered);
        for limit in &attempts[0].limits {
            dues[*limit].admitted += due.admitted;
            dues[*limit].least += due.least;
            dues[*limit].most += due.most;
        }
    }
    dues
}

fn due(attempts: &[&Attempt], unanswered: impl Fn(&Attempt) -> bool) -> Due {
    let first = attempts[0];
    match first.what {
        // However often it was asked: once.
        What::Check | What::Once => {
            if attempts.iter().any(|a| a.said == Said::Allow) {
                return Due::exactly(1);
            }
            let costs = |a: &&&Attempt| a.said.is_open() || a.said == Said::Deny && unanswered(a);
            Due::up_to(u64::from(attempts.iter().any(|a| costs(&a))))
        }
        What::Hold(expiry) => {
            let at_its_end = u64::from(expiry == Expiry::Charge);
            match &first.said {
                Said::Allow => settled(&attempts[1..], at_its_end),
                said if said.is_open() => Due::up_to(at_its_end),
                // A denial of a reservation is none before everything has been dropped.
                _ => Due::default(),
            }
        }
        What::Settle(_) | What::Renew => panic!("{first:?} of nothing"),
    }
}

/// What became of a hold that was made.
fn settled(attempts: &[&Attempt], at_its_end: u64) -> Due {
    let mut due = Due::exactly(at_its_end);
    for attempt in attempts {
        let What::Settle(cost) = attempt.what else { continue };
        match &attempt.said {
            Said::Allow | Said::Deny => return Due::exactly(cost),
            // In some places it is charged as it ended, in the others as it was settled.
            Said::Expired => return Due::up_to(cost.max(at_its_end)),
            Said::Nothing(_) => {}
            _ => due = Due::up_to(cost.max(at_its_end)),
        }
    }
    due
}
