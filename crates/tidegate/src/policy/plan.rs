//! Plans: the charges of one request or call.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Micros, Verdict, Wait};

use super::Policy;
use super::key_part::{KeyPart, MISSING, OnMissingKey};
use super::matching::Request;
use super::rule::{ListMatch, PolicyRule};
use crate::engine::{Refusal, UnknownPlan};
use crate::{
    Call, Charge, Decision, EngineError, HoldId, Key, Op, Rule, RuleLimit, Source, Unit,
    UnitCharge, UnitCost,
};

/// Charges of one request: decided together by an engine, all or none.
#[derive(Clone, Debug)]
pub struct Plan<'p> {
    steps: StepList<'p>,
    denied: Option<&'p PolicyRule>,
    shadow_denied: Vec<&'p PolicyRule>,
    exempt: Vec<&'p PolicyRule>,
    /// Rules that deny because a part of their key is missing, shadow rules included.
    missing: Vec<(&'p PolicyRule, &'p KeyPart)>,
}

/// Most plans have one step, which needs no allocation.
#[derive(Clone, Debug)]
enum StepList<'p> {
    None,
    One(Step<'p>),
    Many(Vec<Step<'p>>),
}

impl<'p> StepList<'p> {
    fn push(&mut self, step: Step<'p>) {
        *self = match std::mem::replace(self, Self::None) {
            Self::None => Self::One(step),
            Self::One(first) => Self::Many(vec![first, step]),
            Self::Many(mut steps) => {
                steps.push(step);
                Self::Many(steps)
            }
        };
    }

    fn as_slice(&self) -> &[Step<'p>] {
        match self {
            Self::None => &[],
            Self::One(step) => std::slice::from_ref(step),
            Self::Many(steps) => steps,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Step<'p>] {
        match self {
            Self::None => &mut [],
            Self::One(step) => std::slice::from_mut(step),
            Self::Many(steps) => steps,
        }
    }
}

/// One rule and key.
#[derive(Clone, Debug)]
pub struct Step<'p> {
    rule: Cow<'p, Rule>,
    plan: Option<&'p str>,
    key: PlanKey<'p>,
    cost: Cost,
    per_unit: UnitCost,
    concurrency: ConcurrencyUse,
}

/// How `concurrency` limits are charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConcurrencyUse {
    /// They are left out: the end of the request will not be known.
    Ignored,
    /// As many slots as the request costs.
    AtCost,
    /// One slot, whatever the request costs.
    One,
}

#[derive(Clone, Debug)]
enum PlanKey<'p> {
    Given(Key<'p>),
    Made(Vec<String>),
}

/// One rule, one key, one cost.
///
/// ```
/// use tidegate::{Limiter, Memory, Rule, RuleCheck};
///
/// let rules = [Rule::new("login", ["5/m".parse()?])?, Rule::new("api", ["100/s".parse()?])?];
/// let limiter = Limiter::with_rules(Memory::default(), rules)?;
/// let checks = [RuleCheck::new("login", "1.2.3.4"), RuleCheck::new("api", "key-7").cost(3)];
/// let decision = limiter.check_each(&checks).now()?;
/// assert_eq!(decision.verdicts[0].remaining, 4);
/// assert_eq!(decision.verdicts[1].remaining, 97);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RuleCheck<'a> {
    /// The rule or limits.
    pub target: RuleTarget<'a>,
    /// The key to count under.
    pub key: Key<'a>,
    /// The plan of the key, if the rule has [plans](super::PlanDraft); `None` is the default plan.
    pub plan: Option<&'a str>,
    /// The number of permits; above [`Cost::MAX`] the check is refused.
    pub cost: u64,
    /// What a reservation of [a quantity](crate::Reserve::at_most) costs in addition, for each unit
    /// that it is granted.
    pub per_unit: UnitCost,
}

/// The rule or limits of a [`RuleCheck`].
#[derive(Clone, Debug)]
pub enum RuleTarget<'a> {
    /// The rule of this name.
    Named(&'a str),
    /// Limits supplied by the caller.
    Own(&'a Rule),
    /// A limit made for this call.
    Adhoc(Rule),
}

impl<'a> RuleCheck<'a> {
    /// A check of `key` under the rule of this name, at a cost of 1.
    pub fn new(rule: &'a str, key: impl Into<Key<'a>>) -> Self {
        Self::of(RuleTarget::Named(rule), key, 1)
    }

    /// A check of `key` under a rule or limits.
    pub fn of(target: RuleTarget<'a>, key: impl Into<Key<'a>>, cost: u64) -> Self {
        Self { target, key: key.into(), plan: None, cost, per_unit: UnitCost::ZERO }
    }

    /// Sets the cost.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Sets the plan of the key. The check is refused if the rule has no such plan.
    #[must_use]
    pub fn plan(mut self, plan: &'a str) -> Self {
        self.plan = Some(plan);
        self
    }

    /// Sets what each unit of a quantity costs in addition; see
    /// [`Reserve::at_most`](crate::Reserve::at_most).
    #[must_use]
    pub fn per_unit(mut self, per_unit: UnitCost) -> Self {
        self.per_unit = per_unit;
        self
    }
}

impl Policy {
    /// Charges of an HTTP request.
    ///
    /// Every rule that matches applies, up to the first that stops or denies. `concurrency` limits
    /// are left out. Lists are evaluated before the key: a client on a list by its address is
    /// denied or exempt even without a key.
    ///
    /// A request whose key is longer than [`Key::MAX_LEN`] is refused as a whole, with
    /// [`Refusal::KeyTooLong`]. The caller must refuse it as invalid: it was neither allowed nor
    /// denied. Under a truncated key it would be counted together with others, or could choose
    /// which others.
    pub fn plan_request(&self, request: &impl Request, now: Micros) -> Result<Plan<'_>, Refusal> {
        let mut plan = Plan::new();
        for rule in self.candidates(request) {
            if !rule.matches.matches(request) {
                continue;
            }
            let key = key_of(rule, request);
            let applies = key.is_some() || rule.on_missing_key != OnMissingKey::Skip;
            match listed(rule, key.as_deref(), request) {
                ListMatch::Denied => plan.deny(rule),
                ListMatch::Allowed => plan.exempt.push(rule),
                ListMatch::NotListed => match key {
                    Some(key) => {
                        let cost = cost_of(rule, request);
                        plan.charge(rule, plan_of(rule, request), key, cost, now)?;
                    }
                    None if applies => plan.deny_without_key(rule, request),
                    None => {}
                },
            }
            if plan.denied.is_some() || (applies && rule.stops()) {
                break;
            }
        }
        plan.check_size()
    }

    /// Charges of checks that name their rules and keys.
    ///
    /// A rule accepts any key, also one with another number of parts than its own.
    pub fn plan_checks<'p>(
        &'p self,
        checks: &[RuleCheck<'p>],
        lists: ListMode,
        now: Micros,
    ) -> Result<Plan<'p>, Refusal> {
        let mut plan = Plan::new();
        for check in checks {
            let (key, cost, per_unit) = (check.key, Cost::new(check.cost)?, check.per_unit);
            let own = match &check.target {
                RuleTarget::Named(name) => {
                    let unknown = || self.unknown_rule(name);
                    let rule = self.rule(name).ok_or_else(unknown)?;
                    let planned = named_plan(rule, check.plan)?;
                    plan.charge_named(rule, planned, key, (cost, per_unit), lists, now)?;
                    continue;
                }
                RuleTarget::Own(rule) => Cow::Borrowed(*rule),
                RuleTarget::Adhoc(rule) => Cow::Owned(rule.clone()),
            };
            if let Some(plan) = check.plan {
                return Err(unknown_plan(plan, own.name(), []));
            }
            let (key, concurrency) = (PlanKey::Given(key), ConcurrencyUse::AtCost);
            plan.steps.push(Step { rule: own, plan: None, key, cost, per_unit, concurrency });
        }
        plan.check_size()
    }

    /// The refusal of a check that names no rule of the policy. Only the first 256 rules are
    /// compared: callers choose how often.
    pub(crate) fn unknown_rule(&self, name: &str) -> Refusal {
        let names = self.rules().iter().take(256).map(|rule| rule.name());
        let meant = crate::did_you_mean(name, names.filter(|name| name.is_ascii()));
        Refusal::UnknownRule { name: name.into(), meant: meant.map(Into::into) }
    }

    /// The key as this rule counts it, if that differs from `key`: an address has one form.
    pub fn counted_key(&self, rule: &str, key: Key<'_>) -> Option<Vec<String>> {
        match named_key(self.rule(rule)?, key).0 {
            PlanKey::Made(parts) => Some(parts),
            PlanKey::Given(_) => None,
        }
    }

    /// Charges of one key under every rule. A rule that counts requests is charged at most 1.
    pub fn plan_key<'p>(
        &'p self,
        key: Key<'p>,
        cost: Cost,
        lists: ListMode,
        now: Micros,
    ) -> Result<Plan<'p>, Refusal> {
        let mut plan = Plan::new();
        for rule in self.rules() {
            let costs = (cost_under(rule, cost), UnitCost::ZERO);
            plan.charge_named(rule, named_plan(rule, None)?, key, costs, lists, now)?;
        }
        plan.check_size()
    }
}

/// Whether the lists of a rule are evaluated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListMode {
    /// A key on a list is denied or exempt.
    Evaluate,
    /// For updates (record, refund, reset): a key on a list may have earlier consumption.
    Ignore,
}

impl ListMode {
    /// The mode for this operation.
    pub fn of(op: Op<'_>) -> Self {
        match op {
            Op::Record | Op::Refund | Op::Reset => Self::Ignore,
            _ => Self::Evaluate,
        }
    }
}

/// The key of a request under a rule; `None` if a part is missing and missing parts do not share a
/// key.
fn key_of(rule: &PolicyRule, request: &impl Request) -> Option<Vec<String>> {
    let shared = (rule.on_missing_key == OnMissingKey::Shared).then_some(MISSING);
    let find = |part: &KeyPart| {
        let found = part.find(request, rule.matches.path.as_ref());
        found.or_else(|| shared.map(str::to_string))
    };
    rule.key.iter().map(find).collect()
}

/// The limits of a plan, and its name if the rule has plans.
type PlannedLimits<'p> = (&'p Rule, Option<&'p str>);

/// The plan of a request: that of the header, if there is one, or the default.
fn plan_of<'p>(rule: &'p PolicyRule, request: &impl Request) -> PlannedLimits<'p> {
    let Some(plans) = &rule.plans else { return (&rule.rule, None) };
    let header = plans.header.as_deref().filter(|_| request.is_from_trusted_proxy());
    let given = header.and_then(|name| request.header(name)).map(str::trim);
    let found = given.and_then(|name| rule.plan(name));
    let (name, limits) = found.unwrap_or((&plans.default_name, &rule.rule));
    (limits, Some(name))
}

/// The plan that a caller names, or the default.
fn named_plan<'p>(rule: &'p PolicyRule, given: Option<&str>) -> Result<PlannedLimits<'p>, Refusal> {
    let default = rule.plans.as_ref().map(|plans| &*plans.default_name);
    let Some(name) = given else { return Ok((&rule.rule, default)) };
    let (name, limits) = rule.plan(name).ok_or_else(|| {
        let plans = rule.plans().map(|(name, _)| name.into());
        unknown_plan(name, rule.name(), plans)
    })?;
    Ok((limits, Some(name)))
}

/// The limits that apply to a key, and its plan unless they are those of an override.
fn limits_and_plan<'p>(
    rule: &'p PolicyRule,
    (planned, plan): PlannedLimits<'p>,
    key: Key<'_>,
    now: Micros,
) -> PlannedLimits<'p> {
    let limits = rule.limits_of(planned, key, now);
    (limits, plan.filter(|_| std::ptr::eq(limits, planned)))
}

fn unknown_plan(plan: &str, rule: &str, plans: impl IntoIterator<Item = Box<str>>) -> Refusal {
    let plans = plans.into_iter().collect();
    Refusal::UnknownPlan(UnknownPlan { plan: plan.into(), rule: rule.into(), plans })
}

fn listed(rule: &PolicyRule, key: Option<&[String]>, request: &impl Request) -> ListMatch {
    if rule.has_lists() {
        rule.listed(key.map_or(Key::of(&[]), Key::from), request.client_ip())
    } else {
        ListMatch::NotListed
    }
}

/// The key in the form of a request's key, and the client address in it.
fn named_key<'p>(rule: &PolicyRule, key: Key<'p>) -> (PlanKey<'p>, Option<IpAddr>) {
    let given = PlanKey::Given(key);
    if !rule.counts_addresses() && !rule.has_lists() {
        return (given, None);
    }
    let texts: Option<SmallVec<[&str; 4]>> =
        key.parts().map(|part| std::str::from_utf8(part).ok()).collect();
    let Some(texts) = texts else { return (given, None) };
    let client = rule.client_in(&texts);
    // IPv4 addresses have one spelling, so the text is already the key.
    let may_change = rule.counts_addresses() && texts.iter().any(|text| text.contains(':'));
    let key = if may_change { PlanKey::Made(rule.normalized(texts.into_iter())) } else { given };
    (key, client)
}

/// The cost under one of several rules: a request is one request, whatever it costs under others.
fn cost_under(rule: &PolicyRule, cost: Cost) -> Cost {
    let unit = rule.rule().limits().first().and_then(|limit| limit.unit());
    if unit == Some(Unit::Requests) { cost.min(Cost::ONE) } else { cost }
}

fn cost_of(rule: &PolicyRule, request: &impl Request) -> Cost {
    if let Some(cost) = request.cost() {
        return cost_under(rule, cost);
    }
    let header = rule.cost_header.as_deref().filter(|_| request.is_from_trusted_proxy());
    let given = header.and_then(|name| request.header(name)).map(str::trim);
    match given {
        Some(text) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => {
            // Digits that do not parse as a cost are too large a number.
            let cost = text.parse().ok().and_then(|cost| Cost::new(cost).ok()).unwrap_or(Cost::MAX);
            cost.max(Cost::ONE)
        }
        _ => Cost::ONE,
    }
}

impl<'p> Plan<'p> {
    fn new() -> Self {
        Self {
            steps: StepList::None,
            denied: None,
            shadow_denied: Vec::new(),
            exempt: Vec::new(),
            missing: Vec::new(),
        }
    }

    fn deny_without_key(&mut self, rule: &'p PolicyRule, request: &impl Request) {
        let path = rule.matches.path.as_ref();
        let missing = rule.key.iter().find(|part| part.find(request, path).is_none());
        self.missing.extend(missing.map(|part| (rule, part)));
        self.deny(rule);
    }

    fn deny(&mut self, rule: &'p PolicyRule) {
        if rule.is_enforced() {
            self.denied.get_or_insert(rule);
        } else {
            self.shadow_denied.push(rule);
        }
    }

    /// Adds the charge of a request.
    fn charge(
        &mut self,
        rule: &'p PolicyRule,
        planned: PlannedLimits<'p>,
        key: Vec<String>,
        cost: Cost,
        now: Micros,
    ) -> Result<(), Refusal> {
        let made = Key::from(&*key);
        if made.is_valid() {
            let (limits, plan) = limits_and_plan(rule, planned, made, now);
            let key = PlanKey::Made(key);
            let (rule, concurrency) = (Cow::Borrowed(limits), ConcurrencyUse::Ignored);
            let per_unit = UnitCost::ZERO;
            self.steps.push(Step { rule, plan, key, cost, per_unit, concurrency });
        } else if rule.is_enforced() {
            return Err(Refusal::KeyTooLong);
        } else {
            self.shadow_denied.push(rule);
        }
        Ok(())
    }

    /// Adds the charge of a key named by the caller.
    fn charge_named(
        &mut self,
        rule: &'p PolicyRule,
        planned: PlannedLimits<'p>,
        key: Key<'p>,
        (cost, per_unit): (Cost, UnitCost),
        lists: ListMode,
        now: Micros,
    ) -> Result<(), Refusal> {
        if !key.is_valid() {
            return Err(Refusal::KeyTooLong);
        }
        let (key, client) = named_key(rule, key);
        let listed = match lists {
            ListMode::Evaluate => rule.listed(key.key(), client),
            ListMode::Ignore => ListMatch::NotListed,
        };
        match listed {
            ListMatch::Denied => self.deny(rule),
            ListMatch::Allowed => self.exempt.push(rule),
            ListMatch::NotListed => {
                let (limits, plan) = limits_and_plan(rule, planned, key.key(), now);
                let (rule, concurrency) = (Cow::Borrowed(limits), ConcurrencyUse::AtCost);
                self.steps.push(Step { rule, plan, key, cost, per_unit, concurrency });
            }
        }
        Ok(())
    }

    fn check_size(self) -> Result<Self, Refusal> {
        let charges = self.steps().iter().flat_map(Step::limits).count();
        if charges > Call::MAX_CHARGES { Err(Refusal::ChargeCount(charges)) } else { Ok(self) }
    }

    /// The plan with one slot of each `concurrency` limit, whatever the cost. Such limits are added
    /// if they were left out; a plan that exceeds [`Call::MAX_CHARGES`] by that is refused.
    ///
    /// Use it if the end of the work is known: see [`op`](Self::op).
    pub fn with_slots(mut self) -> Result<Self, Refusal> {
        for step in self.steps.as_mut_slice() {
            step.concurrency = ConcurrencyUse::One;
        }
        self.check_size()
    }

    /// The plan at these costs of its rules.
    pub fn with_costs(
        mut self,
        cost: impl Fn(&Rule) -> Result<Cost, Refusal>,
    ) -> Result<Self, Refusal> {
        for step in self.steps.as_mut_slice() {
            step.cost = cost(&step.rule)?;
        }
        Ok(self)
    }

    /// The plan at the costs of a quantity, for [`Quantity`](crate::Quantity) with
    /// [`unit_charges`](Self::unit_charges). A rule that it depends on takes one slot of each of its
    /// `concurrency` limits.
    pub fn with_quantity(mut self, min: Cost) -> Result<Self, Refusal> {
        for step in self.steps.as_mut_slice() {
            if !step.per_unit.is_zero() {
                if step.counts_only_slots() {
                    return Err(Refusal::NotHeld(step.rule.name().into()));
                }
                step.cost = Cost::new(step.cost.saturating_add(step.per_unit.of(min)).get())?;
                step.concurrency = ConcurrencyUse::One;
            }
        }
        Ok(self)
    }

    /// The plan in which a quantity is the cost of every rule that does not count requests; those
    /// cost 1.
    #[must_use]
    pub(crate) fn per_unit_of_each_rule(mut self) -> Self {
        for step in self.steps.as_mut_slice() {
            let unit = step.rule.limits().first().and_then(|limit| limit.unit());
            (step.cost, step.per_unit) = match unit {
                Some(Unit::Requests) => (Cost::ONE, UnitCost::ZERO),
                _ if step.counts_only_slots() => (Cost::ONE, UnitCost::ZERO),
                _ => (Cost::ZERO, UnitCost::ONE),
            };
        }
        self
    }

    /// The charges whose cost depends on the quantity that a reservation is granted.
    pub fn unit_charges(&self) -> Vec<UnitCharge<'_>> {
        let steps = self.steps().iter().filter(|step| !step.per_unit.is_zero());
        let charges = steps.flat_map(|step| {
            let counted = step.limits().filter(|limit| limit.limit().lease().is_none());
            let (key, per_unit) = (step.key.key(), step.per_unit);
            counted.map(move |limit| UnitCharge { state: limit.state(), key, per_unit })
        });
        charges.collect()
    }

    /// The plan at a cost of 0, for a peek: its verdicts carry the wait for a cost of 1.
    #[must_use]
    pub fn without_costs(mut self) -> Self {
        self.steps.as_mut_slice().iter_mut().for_each(|step| step.cost = Cost::ZERO);
        self
    }

    /// The operation for this plan: [`Op::enter`] with a new id and the shortest
    /// [`lease`](Self::lease), if there is one, else [`Op::Check`].
    pub fn op(&self) -> Result<Op<'static>, EngineError> {
        Ok(match self.lease().filter(|_| self.denied.is_none()) {
            Some(ttl) => Op::enter(HoldId::random()?, ttl),
            None => Op::Check,
        })
    }

    /// How long a slot is held without renewal: the shortest lease among the `concurrency` limits,
    /// if there are any.
    pub fn lease(&self) -> Option<Micros> {
        self.limits().filter_map(|limit| limit.limit().lease()).min()
    }

    /// The rules that apply, each with its key, in order.
    pub fn steps(&self) -> &[Step<'p>] {
        self.steps.as_slice()
    }

    /// The limits that decide, for [`Decision::pair`]: those of the charges in order, or the first
    /// of the rule that denies without an engine.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<RuleLimit>> + Clone {
        let of_list = self.denied.and_then(|rule| rule.rule().limits().first());
        let steps = self.steps().iter().filter(|_| self.denied.is_none());
        of_list.into_iter().chain(steps.flat_map(Step::limits))
    }

    /// The charges for an engine; a `sliding-log` stores `caller` with them.
    pub fn charges<'a>(&'a self, caller: Option<&'a str>) -> SmallVec<[Charge<'a>; 2]> {
        let of = |step: &'a Step<'p>| {
            let key = step.key.key();
            step.limits().map(move |limit| Charge { limit, key, cost: step.cost_to(limit), caller })
        };
        self.steps().iter().flat_map(of).collect()
    }

    /// The rule that denies without an engine: by its list, or because of a missing key.
    pub fn denied_by(&self) -> Option<&'p PolicyRule> {
        self.denied
    }

    /// Rules whose allow list exempts the request.
    pub fn exempted_by(&self) -> &[&'p PolicyRule] {
        &self.exempt
    }

    /// The part of the key that the request does not have, if that is why this rule denies it.
    pub fn missing_part(&self, rule: &PolicyRule) -> Option<&'p KeyPart> {
        let found = self.missing.iter().find(|(of, _)| of.name() == rule.name());
        found.map(|(_, part)| *part)
    }

    /// Shadow rules that would have denied the request without an engine: by a list, because of a
    /// missing key, or a key that is too long.
    pub fn shadow_denied_by(&self) -> &[&'p PolicyRule] {
        &self.shadow_denied
    }

    /// The decision, if it needs no engine: denied by a list, or nothing to charge.
    pub fn decision(&self) -> Option<Decision> {
        if let Some(rule) = self.denied {
            let limit = rule.rule().limits().first();
            let verdict = Verdict {
                allowed: false,
                retry_after: Wait::Never,
                delay: Micros::ZERO,
                limit: limit.map_or(0, |limit| limit.limit().capacity()),
                remaining: 0,
                reset_after: Micros::ZERO,
            };
            return Some(Decision::new(Source::Policy, [verdict].into_iter().collect()));
        }
        self.limits().next().is_none().then(|| Decision::new(Source::Policy, SmallVec::new()))
    }
}

impl<'p> Step<'p> {
    /// The rule, with the limits that apply to the key.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The plan whose limits apply; `None` if the rule has no plans, or the key has an override.
    pub fn plan(&self) -> Option<&'p str> {
        self.plan
    }

    /// The key to count under.
    pub fn key(&self) -> Key<'_> {
        self.key.key()
    }

    /// The cost. In a plan [with slots](Plan::with_slots), `concurrency` limits are charged one
    /// slot instead.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    fn counts_only_slots(&self) -> bool {
        self.rule.limits().iter().all(|limit| limit.limit().lease().is_some())
    }

    fn cost_to(&self, limit: &RuleLimit) -> Cost {
        match self.concurrency {
            ConcurrencyUse::One if limit.limit().lease().is_some() => Cost::ONE,
            _ => self.cost,
        }
    }

    /// The limits that are charged.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<RuleLimit>> + Clone {
        let ignored = self.concurrency == ConcurrencyUse::Ignored;
        let counts = move |limit: &&Arc<RuleLimit>| !ignored || limit.limit().lease().is_none();
        self.rule.limits().iter().filter(counts)
    }
}

impl PlanKey<'_> {
    fn key(&self) -> Key<'_> {
        match self {
            Self::Given(key) => *key,
            Self::Made(parts) => Key::from(&**parts),
        }
    }
}
