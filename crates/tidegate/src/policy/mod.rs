//! Policies: the rules that apply to a request, and the keys they count. Imports: engine, key,
//! network.
//!
//! - `rule`: one rule, as written and as used. `matching`: the requests it matches. `key_part`:
//!   where the parts of its key come from. `normalize_escapes`: canonical spelling of paths.
//! - `rule_plans`: limits by plan of a caller.
//! - `plan`: the charges of one request or call. `index`: the rules that can match a
//!   request.

mod index;
mod key_part;
mod matching;
mod normalize_escapes;
mod plan;
mod rule;
mod rule_plans;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use self::index::RuleIndex;
pub use self::key_part::{InvalidKeyPart, KeyPart, MISSING, OnMissingKey, instance_id};
use self::matching::PatternRequest;
pub use self::matching::{InvalidPattern, Match, PathPattern, Request};
pub use self::normalize_escapes::normalize_escapes;
pub use self::plan::{ListMode, Plan, RuleCheck, RuleTarget, Step};
pub use self::rule::{AfterMatch, Enforcement, ListEntry, Override, PolicyRule, RuleDraft};
pub use self::rule_plans::PlanDraft;
use crate::InvalidRule;
use crate::engine::bounds;
use crate::{Rule, RuleLimit};

/// Rules in order.
///
/// ```
/// use tidegate::policy::{KeyPart, Match};
/// use tidegate::{Limiter, Memory, Policy, PolicyRule, RuleCheck, RuleDraft};
///
/// let login = PolicyRule::new(RuleDraft {
///     name: "login".into(),
///     matches: Match { path: Some("/login".parse()?), ..Match::default() },
///     key: vec![KeyPart::ClientIp],
///     limits: vec!["sliding-log 5/m".parse()?],
///     deny: vec!["192.0.2.0/24".into()],
///     ..RuleDraft::default()
/// })?;
/// let limiter = Limiter::with_policy(Memory::default(), Policy::new([login])?);
/// assert!(limiter.check_each(&[RuleCheck::new("login", "198.51.100.7")]).now()?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `tidegate-config` loads a policy from a file.
#[derive(Default, Debug)]
pub struct Policy {
    rules: Vec<Arc<PolicyRule>>,
    by_name: HashMap<Box<str>, usize>,
    index: RuleIndex,
    /// Computed once: every check reads it.
    plain_limit: Option<Arc<RuleLimit>>,
}

impl Policy {
    /// Largest number of rules in a policy.
    pub const MAX_RULES: usize = bounds::MAX_RULES;

    /// A policy of these rules, which must have distinct names.
    pub fn new<R: Into<Arc<PolicyRule>>>(
        rules: impl IntoIterator<Item = R>,
    ) -> Result<Self, InvalidRule> {
        let mut policy = Self::default();
        for rule in rules {
            let rule: Arc<PolicyRule> = rule.into();
            let index = policy.rules.len();
            if index == Self::MAX_RULES {
                return Err(InvalidRule::TooManyRules);
            }
            if policy.by_name.insert(rule.name().into(), index).is_some() {
                return Err(InvalidRule::Duplicate(rule.name().into()));
            }
            policy.index.push(&rule.matches);
            policy.rules.push(rule);
        }
        if let [only] = &*policy.rules {
            policy.plain_limit = only.plain_limit().cloned();
        }
        Ok(policy)
    }

    /// The rules in order.
    pub fn rules(&self) -> &[Arc<PolicyRule>] {
        &self.rules
    }

    /// The rule of this name.
    pub fn rule(&self, name: &str) -> Option<&Arc<PolicyRule>> {
        self.by_name.get(name).map(|&index| &self.rules[index])
    }

    /// The rules that can match a request, in order.
    fn candidates(&self, request: &impl Request) -> impl Iterator<Item = &PolicyRule> {
        self.index.candidates(request).into_iter().map(|index| &*self.rules[index])
    }

    /// The one limit of every key, if the policy has nothing else: no list, no override, no address
    /// in the key.
    #[inline]
    pub fn plain_limit(&self) -> Option<&Arc<RuleLimit>> {
        self.plain_limit.as_ref()
    }

    /// Problems of a policy that is valid and probably not intended.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        for (index, rule) in self.rules.iter().enumerate() {
            let patterns = PatternRequest::new(&rule.matches);
            let before = self.index.candidates(&patterns).into_iter().take_while(|&p| p < index);
            let mut stops = before.map(|p| &self.rules[p]).filter(|rule| rule.always_stops());
            if let Some(stop) = stops.find(|stop| stop.matches.covers(&rule.matches)) {
                let (rule, behind) = (rule.name().into(), stop.name().into());
                warnings.push(Warning::Unreachable { rule, behind });
            }
            if rule.all_limits().any(|limit| limit.lease().is_some()) {
                warnings.push(Warning::Concurrency { rule: rule.name().into() });
            }
            let unmatched =
                |entry: &str| Warning::IdleEntry { rule: rule.name().into(), entry: entry.into() };
            warnings.extend(rule.unmatched_entries().map(unmatched));
        }
        warnings
    }

    /// Activates all limits: they are the newest from now on.
    pub(crate) fn activate(&self) {
        self.rules.iter().for_each(|rule| rule.activate());
    }

    /// All limits of all rules.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &Arc<RuleLimit>> {
        self.rules.iter().flat_map(|rule| rule.rule().limits())
    }

    /// The policy with the rule of the same name replaced, or with `rule` appended.
    pub fn with_rule(&self, rule: impl Into<Arc<PolicyRule>>) -> Result<Self, InvalidRule> {
        let rule = rule.into();
        let mut rules = self.rules.clone();
        match self.by_name.get(rule.name()) {
            Some(&index) => rules[index] = rule,
            None => rules.push(rule),
        }
        Self::new(rules)
    }
}

impl From<Rule> for PolicyRule {
    fn from(rule: Rule) -> Self {
        Self::plain(rule)
    }
}

/// A probable error in a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Warning {
    /// No request reaches this rule.
    Unreachable {
        /// Name of the rule.
        rule: Box<str>,
        /// Name of the earlier rule after which matching stops.
        behind: Box<str>,
    },
    /// A list names a key of one part, and the rule's key has several.
    IdleEntry {
        /// Name of the rule.
        rule: Box<str>,
        /// The entry as it is written in the list.
        entry: Box<str>,
    },
    /// The rule has a `concurrency` limit, which cannot be counted for forward-auth requests: their
    /// end is unknown.
    Concurrency {
        /// Name of the rule.
        rule: Box<str>,
    },
}

impl Warning {
    /// The rule concerned.
    pub fn rule(&self) -> &str {
        match self {
            Self::Unreachable { rule, .. }
            | Self::IdleEntry { rule, .. }
            | Self::Concurrency { rule } => rule,
        }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { rule, behind } => write!(
                f,
                "rule {rule:?} can never match a request: {behind:?} before it matches everything \
                 that it does, and stops; move it up"
            ),
            Self::IdleEntry { rule, entry } => write!(
                f,
                "rule {rule:?} lists {entry:?}, but its key has several parts, so it never matches a \
                 request; list networks, or make it a rule of that part alone"
            ),
            Self::Concurrency { rule } => write!(
                f,
                "rule {rule:?} has a concurrency limit; it is ignored for forward-auth requests; \
                 use reserve and cancel"
            ),
        }
    }
}
