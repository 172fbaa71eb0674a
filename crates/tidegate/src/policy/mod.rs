//! Policies: which rules apply to a request, and whom they count.
//!
//! # Layout
//!
//! - `rule`: one rule as it is written, and as it is used. `matching`: the requests it is about.
//!   `subject`: whom it counts. `spelling`: paths that mean the same.
//! - `plan`: what a policy wants charged for one request or question. `index`: which rules to look
//!   at for it.

mod index;
mod matching;
mod plan;
mod rule;
mod spelling;
mod subject;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use self::index::Index;
pub use self::matching::{InvalidPattern, Match, PathPattern, Request};
pub use self::plan::{About, Plan, Question, Step};
pub(crate) use self::plan::{Charges, Lists};
pub use self::rule::{Enforcement, Entry, Override, PolicyRule, RuleDraft, Then};
pub use self::spelling::one_spelling;
pub use self::subject::{InvalidKeyPart, KeyPart, MISSING, OnMissingKey, instance};
use crate::rule::InvalidRule;
use crate::{Rule, RuleLimit};

/// Rules in order.
///
/// ```
/// use tidegate::{Policy, PolicyRule, RuleDraft};
/// let login = PolicyRule::new(RuleDraft {
///     name: "login".into(),
///     limits: vec!["sliding-log 5/m".parse()?],
///     ..RuleDraft::default()
/// })?;
/// let policy = Policy::new([login])?;
/// assert!(policy.rule("login").is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default, Debug)]
pub struct Policy {
    rules: Vec<Arc<PolicyRule>>,
    by_name: HashMap<Box<str>, usize>,
    by_path: Index,
    /// Found once: every check asks for it.
    plain_limit: Option<Arc<RuleLimit>>,
}

impl Policy {
    /// The most rules in a policy.
    pub const MAX_RULES: usize = 10_000;

    /// A policy of these rules, each with a name of its own.
    pub fn new<R: Into<Arc<PolicyRule>>>(
        rules: impl IntoIterator<Item = R>,
    ) -> Result<Self, InvalidRule> {
        let mut policy = Self::default();
        for rule in rules {
            let rule: Arc<PolicyRule> = rule.into();
            let place = policy.rules.len();
            if place == Self::MAX_RULES {
                return Err(InvalidRule::TooManyRules);
            }
            if policy.by_name.insert(rule.name().into(), place).is_some() {
                return Err(InvalidRule::Duplicate(rule.name().into()));
            }
            policy.by_path.push(rule.matches.path.as_ref());
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
        self.by_name.get(name).map(|&place| &self.rules[place])
    }

    /// The rules that may be about a request for this path, in order.
    fn candidates(&self, path: &str) -> impl Iterator<Item = &PolicyRule> {
        self.by_path.candidates(path).into_iter().map(|place| &*self.rules[place])
    }

    /// The one limit that every key is under, if there is no more to the policy than that: no list, no
    /// override, nothing to be found out about the key.
    #[inline]
    pub fn plain_limit(&self) -> Option<&Arc<RuleLimit>> {
        self.plain_limit.as_ref()
    }

    /// What looks like a mistake, although it can be obeyed.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        for (place, rule) in self.rules.iter().enumerate() {
            // Whatever covers a pattern is found where a request for the pattern itself would be.
            let path = rule.matches.path.as_ref().map_or(String::new(), PathPattern::to_string);
            let before = self.by_path.candidates(&path).into_iter().take_while(|&p| p < place);
            let mut stops = before.map(|p| &self.rules[p]).filter(|rule| rule.always_stops());
            if let Some(stop) = stops.find(|stop| stop.matches.covers(&rule.matches)) {
                let (rule, behind) = (rule.name().into(), stop.name().into());
                warnings.push(Warning::Unreachable { rule, behind });
            }
            if rule.all_limits().any(|limit| limit.lease().is_some()) {
                warnings.push(Warning::Concurrency { rule: rule.name().into() });
            }
            let idle =
                |entry: &str| Warning::IdleEntry { rule: rule.name().into(), entry: entry.into() };
            warnings.extend(rule.idle_entries().map(idle));
        }
        warnings
    }

    /// Makes all limits the newest: they come into force now.
    pub(crate) fn enact(&self) {
        self.rules.iter().for_each(|rule| rule.enact());
    }

    /// All limits of all rules.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &Arc<RuleLimit>> {
        self.rules.iter().flat_map(|rule| rule.rule().limits())
    }

    /// The same with `rule` in the place of the one of its name, or at the end.
    pub fn with_rule(&self, rule: impl Into<Arc<PolicyRule>>) -> Result<Self, InvalidRule> {
        let rule = rule.into();
        let mut rules = self.rules.clone();
        match self.by_name.get(rule.name()) {
            Some(&place) => rules[place] = rule,
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

/// Something in a policy that looks like a mistake.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Warning {
    /// No request comes as far as this rule.
    Unreachable {
        /// The rule.
        rule: Box<str>,
        /// The one before it that stops.
        behind: Box<str>,
    },
    /// A list names a key of one part, and the rule's key has several.
    IdleEntry {
        /// The rule.
        rule: Box<str>,
        /// The entry.
        entry: Box<str>,
    },
    /// It counts holders, which nobody can tell of a request that only passes by.
    Concurrency {
        /// The rule.
        rule: Box<str>,
    },
}

impl Warning {
    /// The rule that it is about.
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
                "rule {rule:?} lists {entry:?}, but its key has several parts, so that no request \
                 is ever that; list networks, or make it a rule of that part alone"
            ),
            Self::Concurrency { rule } => write!(
                f,
                "rule {rule:?} has a concurrency limit; it is left out for requests that are \
                 authorized, and works by reserve and cancel"
            ),
        }
    }
}
