//! Plans of a rule: limits by what a customer has booked.

use tidegate_core::{Algorithm, Limit};

use crate::engine::bounds;
use crate::{InvalidPlans, InvalidRule, Rule};

/// Unchecked plans of a rule, which replace its `limits`.
///
/// All plans have limits of the same algorithms in the same order: they share their consumption,
/// so a key that changes its plan keeps what was used. Whatever the changes, a key is granted at
/// most what the largest plan grants.
///
/// ```
/// use tidegate::policy::PlanDraft;
/// use tidegate::{Limiter, Memory, Policy, PolicyRule, RuleCheck, RuleDraft};
///
/// let api = PolicyRule::new(RuleDraft {
///     name: "api".into(),
///     plans: Some(PlanDraft {
///         plans: vec![
///             ("free".into(), vec!["fixed-window 2/h".parse()?]),
///             ("pro".into(), vec!["fixed-window 5/h".parse()?]),
///         ],
///         default_plan: "free".into(),
///         header: None,
///     }),
///     ..RuleDraft::default()
/// })?;
/// let limiter = Limiter::with_policy(Memory::default(), Policy::new([api])?);
/// let remaining = |check: RuleCheck<'_>| {
///     limiter.check_each(&[check]).now().map(|decision| decision.verdicts[0].remaining)
/// };
/// assert_eq!(remaining(RuleCheck::new("api", "acme"))?, 1);
/// assert_eq!(remaining(RuleCheck::new("api", "acme").plan("pro"))?, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default, Debug)]
pub struct PlanDraft {
    /// Names and limits, in order.
    pub plans: Vec<(Box<str>, Vec<Limit>)>,
    /// The plan of a request that names none, or one that does not exist.
    pub default_plan: Box<str>,
    /// The header with the plan of a request. It is used only from a trusted proxy.
    pub header: Option<Box<str>>,
}

impl PlanDraft {
    /// Largest number of plans in a rule.
    pub const MAX_PLANS: usize = bounds::MAX_PLANS;

    /// Checks the plans. The limits of the default plan.
    pub fn check(&self) -> Result<&[Limit], InvalidPlans> {
        if self.plans.len() > Self::MAX_PLANS {
            return Err(InvalidPlans::Count(self.plans.len()));
        }
        for (i, (name, _)) in self.plans.iter().enumerate() {
            if !is_name(name) {
                return Err(InvalidPlans::Name(name.clone()));
            }
            if self.plans[..i].iter().any(|(earlier, _)| earlier == name) {
                return Err(InvalidPlans::Duplicate(name.clone()));
            }
        }
        let default = self.plans.iter().find(|(name, _)| *name == self.default_plan);
        let Some((_, default)) = default else {
            return Err(InvalidPlans::Default(self.default_plan.clone()));
        };
        let expected: Vec<Algorithm> = default.iter().map(Limit::algorithm).collect();
        for (name, limits) in &self.plans {
            let given: Vec<Algorithm> = limits.iter().map(Limit::algorithm).collect();
            if given != expected {
                let (plan, default) = (name.clone(), self.default_plan.clone());
                return Err(InvalidPlans::Algorithms { plan, given, default, expected });
            }
        }
        Ok(default)
    }

    /// The smallest capacity of any plan.
    pub(super) fn smallest_capacity(&self) -> Option<u64> {
        self.plans.iter().flat_map(|(_, limits)| limits).map(Limit::capacity).min()
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
}

/// The checked plans of a rule. The limits of the default plan are those of the rule.
#[derive(Debug)]
pub(super) struct RulePlans {
    /// In lower case.
    pub(super) header: Option<Box<str>>,
    pub(super) default_name: Box<str>,
    pub(super) others: Vec<(Box<str>, Rule)>,
}

impl RulePlans {
    /// `build` makes the rule of one plan.
    pub(super) fn new(
        draft: PlanDraft,
        build: impl Fn(Vec<Limit>) -> Result<Rule, InvalidRule>,
    ) -> Result<Self, InvalidRule> {
        let PlanDraft { plans, default_plan, header } = draft;
        let others = plans.into_iter().filter(|(name, _)| *name != default_plan);
        Ok(Self {
            header: header.map(|name| name.to_ascii_lowercase().into()),
            others: others
                .map(|(name, limits)| Ok((name, build(limits)?)))
                .collect::<Result<_, InvalidRule>>()?,
            default_name: default_plan,
        })
    }

    /// The limits of a plan that is not the default.
    pub(super) fn other(&self, name: &str) -> Option<(&str, &Rule)> {
        let found = self.others.iter().find(|(other, _)| **other == *name);
        found.map(|(name, rule)| (&**name, rule))
    }
}
