//! The log of a history.

use std::collections::BTreeMap;

use tidegate::{Decision, EngineError, HoldId, Micros, Source};

use crate::fault_simulation::store::Execution;
use crate::fault_simulation::traffic::Request;

/// All input of the checker.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) rows: Vec<Row>,
    pub(crate) executions: Vec<Execution>,
    pub(crate) sent: Vec<Sent>,
    pub(crate) incarnations: Vec<IncarnationRow>,
    /// What was still held, borrowed or used after a long time without traffic.
    pub(crate) leftovers: Vec<String>,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    /// Instant, incarnation, and whether its circuit opened (`true`) or closed.
    pub(crate) circuits: Vec<(u64, usize, bool)>,
}

/// One request, as its caller saw it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) request: Request,
    pub(crate) incarnation: usize,
    pub(crate) start: u64,
    pub(crate) end: Option<u64>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) given_up: bool,
    /// Time of the process's clock when it was decided.
    pub(crate) local: u64,
    /// The hold that was made.
    pub(crate) hold: Option<HoldId>,
    /// Whether the store would have granted it at that instant.
    pub(crate) would_be_granted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Whether it is allowed, when to retry, and whether its hold had ended before.
    Decided {
        source: Source,
        allowed: bool,
        retry_after: Option<u64>,
        expired: bool,
    },
    Unavailable,
    Ambiguous,
    Refused,
}

impl Outcome {
    pub(crate) fn of(result: &Result<Decision, EngineError>) -> Self {
        match result {
            Ok(decision) => Self::Decided {
                source: decision.source,
                allowed: decision.allowed(),
                retry_after: decision.retry_after().span().map(Micros::get),
                expired: decision.expired(),
            },
            Err(EngineError::Unavailable(_)) => Self::Unavailable,
            Err(EngineError::Ambiguous(_)) => Self::Ambiguous,
            Err(_) => Self::Refused,
        }
    }

    pub(crate) fn source(&self) -> Option<Source> {
        match self {
            Self::Decided { source, .. } => Some(*source),
            _ => None,
        }
    }

    pub(crate) fn allowed(&self) -> bool {
        matches!(self, Self::Decided { allowed: true, .. })
    }
}

/// One call that left a process, or was about to.
pub(crate) struct Sent {
    pub(crate) incarnation: usize,
    pub(crate) row: Option<usize>,
    pub(crate) at: u64,
    /// When and how it ended for the process.
    pub(crate) result: Option<(u64, Outcome)>,
}

pub(crate) struct IncarnationRow {
    pub(crate) pace: u64,
    pub(crate) died: Option<u64>,
}
