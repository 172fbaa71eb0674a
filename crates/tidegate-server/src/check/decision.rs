//! The result of a check: a decision with its limits, or an error.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate::policy::KeyPart;
use tidegate::{
    Cost, Decision, EngineError, Micros, Outcome, ParseLimitError, Plan, Refusal, RuleLimit,
    Verdict,
};
use tidegate_tower::headers::HeaderStyle;
use tidegate_tower::policy_names::PolicyNames;

use crate::observe::otlp::DecisionNote;

/// A decision with its limits.
#[derive(Clone, Debug)]
pub struct CheckDecision {
    /// The decision of the engine or of the policy.
    pub decision: Decision,
    /// The limits of the call, shadow limits included, in the order of its charges.
    pub limits: SmallVec<[Arc<RuleLimit>; 2]>,
    /// The TTL of the reservation that was made or renewed, if one was.
    pub ttl: Option<Micros>,
    /// How long the id of the call is kept, if it has one and that is less than an hour.
    pub id_retention: Option<Micros>,
    /// The quantity that a reservation of at most some cost was granted.
    pub granted: Option<Cost>,
    /// Version of the headers about limits.
    pub headers: HeaderStyle,
    /// The part of a key that the request does not have, if it was denied for that.
    pub missing_key: Option<Box<MissingKey>>,
}

/// The part of a key that a request does not have, and the rule that needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissingKey {
    rule: Box<str>,
    part: KeyPart,
}

impl MissingKey {
    /// Why the rule of `plan` that denies the request does so, if a part of its key is missing.
    pub(crate) fn of(plan: &Plan<'_>) -> Option<Box<Self>> {
        let rule = plan.denied_by()?;
        let part = plan.missing_part(rule)?.clone();
        Some(Box::new(Self { rule: rule.name().into(), part }))
    }
}

/// A sentence for the caller.
impl fmt::Display for MissingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, part } = self;
        write!(f, "the request has no {}, by which rule {rule:?} counts", part.describe())
    }
}

impl CheckDecision {
    /// Each enforced limit with its verdict.
    pub fn verdicts(&self) -> impl Iterator<Item = (&Arc<RuleLimit>, &Verdict)> {
        self.decision.pair(&self.limits)
    }

    /// Each enforced limit with its verdict, under the name that it has in headers.
    pub(crate) fn named_verdicts(
        &self,
    ) -> impl Iterator<Item = (Cow<'_, str>, &RuleLimit, &Verdict)> {
        let mut names = PolicyNames::default();
        self.verdicts().map(move |(limit, verdict)| (names.name(limit), &**limit, verdict))
    }

    /// One decision for each enforced limit on its own.
    pub fn each(&self) -> impl Iterator<Item = Self> {
        self.verdicts().map(|(limit, verdict)| {
            let decision = Decision::of_one(self.decision.source, *verdict);
            let limits = [limit.clone()].into_iter().collect();
            let headers = self.headers;
            let (ttl, id_retention, granted, missing_key) = (None, None, None, None);
            Self { decision, limits, ttl, id_retention, granted, headers, missing_key }
        })
    }

    /// The most restrictive limit with its verdict; none if no limit applies.
    pub fn most_restrictive(&self) -> Option<(&Arc<RuleLimit>, &Verdict)> {
        self.verdicts().nth(self.decision.most_restrictive())
    }
}

impl From<&CheckDecision> for DecisionNote {
    fn from(decision: &CheckDecision) -> Self {
        let (rule, outcome) = match decision.most_restrictive() {
            Some((limit, verdict)) => (Some(limit.rule().into()), verdict.outcome()),
            None if decision.decision.allowed() => (None, Outcome::Allow),
            None => (None, Outcome::Never),
        };
        let outcome = match outcome {
            Outcome::Allow => "allow",
            Outcome::RetryAfter(_) => "deny",
            Outcome::Never => "never",
        };
        Self { rule, outcome, source: decision.decision.source.name() }
    }
}

/// Why a request has no decision.
#[derive(Clone, Debug)]
pub enum CheckError {
    /// The store returned none.
    Store(EngineError),
    /// The engine or the policy refused the request as invalid.
    Refused(Refusal),
    /// The ad-hoc limit does not parse.
    Limit(ParseLimitError),
    /// The numbers of `CL.THROTTLE` make no limit.
    Throttle,
    /// The policy does not allow ad-hoc limits.
    AdhocDisabled,
    /// The request has no key, and the limit counts per key.
    MissingKey,
    /// A reservation of this rule, which counts money, names no model.
    MissingModel(Box<str>),
    /// A model without a price.
    UnknownModel(Box<str>),
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Limit(error) => error.fmt(f),
            Self::Throttle => {
                f.write_str("invalid limit; count and period must be above 0 and in range")
            }
            Self::MissingKey => f.write_str("is required: this rule counts per key"),
            Self::MissingModel(rule) => {
                write!(f, "is required: rule {rule:?} counts money, which depends on the model")
            }
            Self::UnknownModel(model) => write!(
                f,
                "no price for model {model:?}; add it to prices of the policy, or \"*\" for all others"
            ),
            Self::AdhocDisabled => {
                f.write_str("ad-hoc limits are disabled (`adhoc: false`); name a rule")
            }
        }
    }
}

impl std::error::Error for CheckError {}

impl From<Refusal> for CheckError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<EngineError> for CheckError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Refused(refusal) => Self::Refused(refusal),
            other => Self::Store(other),
        }
    }
}
