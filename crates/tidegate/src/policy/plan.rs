//! What a policy wants charged for one request or question.

use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Cost, Micros, Verdict, Wait};

use super::Policy;
use super::matching::Request;
use super::rule::{Listed, PolicyRule};
use super::subject::{KeyPart, MISSING, OnMissingKey};
use crate::engine::Refusal;
use crate::{Call, Charge, Decision, EngineError, HoldId, Key, Op, Rule, RuleLimit, Source};

/// The charges of one call.
pub(crate) type Charges<'a> = SmallVec<[Charge<'a>; 2]>;

/// The charges that a policy makes of one request: decided together by an engine, all or none.
#[derive(Clone, Debug)]
pub struct Plan<'p> {
    steps: Steps<'p>,
    denied: Option<&'p PolicyRule>,
    would_deny: Vec<&'p PolicyRule>,
    exempt: Vec<&'p PolicyRule>,
}

/// Most plans have one step, which then needs no allocation.
#[derive(Clone, Debug)]
enum Steps<'p> {
    None,
    One(Step<'p>),
    Many(Vec<Step<'p>>),
}

impl<'p> Steps<'p> {
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

/// One rule on one key.
#[derive(Clone, Debug)]
pub struct Step<'p> {
    rule: &'p Rule,
    key: SubjectKey<'p>,
    cost: Cost,
    holders: Holders,
}

/// What becomes of the limits that count holders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holders {
    /// They are left out: nobody would tell them when the request ends.
    LeftOut,
    /// They are asked for as many places as it costs.
    AtCost,
    /// They are asked for one place: whatever it costs, it is one holder.
    One,
}

#[derive(Clone, Debug)]
enum SubjectKey<'p> {
    Given(Key<'p>),
    Made(Vec<String>),
}

/// One rule or limit, one key, one cost.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// What is asked.
    pub about: About<'q>,
    /// Whom it concerns.
    pub key: Key<'q>,
    /// How much.
    pub cost: Cost,
}

/// What a question is about.
#[derive(Clone, Copy, Debug)]
pub enum About<'q> {
    /// The rule of this name.
    Rule(&'q str),
    /// Limits of the asker's own.
    Own(&'q Rule),
}

impl Policy {
    /// What is to be charged for a request that `request` describes.
    ///
    /// Every rule that matches applies, up to the first that stops or denies. Limits that count
    /// holders are left out. Lists come before the key: who is on one by address is denied or
    /// exempt with or without a key.
    ///
    /// A request whose key is longer than [`Key::MAX_LEN`] is refused as a whole, with
    /// [`Refusal::KeyTooLong`]. Whoever asks has to turn it away as a faulty request: it was
    /// neither allowed nor denied. Counting it under a shorter key would count it together with
    /// others, or let it choose whom it is counted with.
    pub fn plan_request(&self, request: &impl Request, now: Micros) -> Result<Plan<'_>, Refusal> {
        let mut plan = Plan::new();
        for rule in self.candidates(request.path()) {
            if !rule.matches.matches(request) {
                continue;
            }
            let key = key_of(rule, request);
            let applies = key.is_some() || rule.on_missing_key != OnMissingKey::Skip;
            match listed(rule, key.as_deref(), request) {
                Listed::Denied => plan.deny(rule),
                Listed::Allowed => plan.exempt.push(rule),
                Listed::Nowhere => match key {
                    Some(key) => plan.charge(rule, key, cost_of(rule, request), now)?,
                    None if applies => plan.deny(rule),
                    None => {}
                },
            }
            if plan.denied.is_some() || (applies && rule.stops()) {
                break;
            }
        }
        plan.check_size()
    }

    /// What is to be charged for questions that name their rules and keys.
    ///
    /// A rule takes whatever key it is given, also one of another number of parts than its own.
    pub fn plan_questions<'p>(
        &'p self,
        questions: &[Question<'p>],
        now: Micros,
    ) -> Result<Plan<'p>, Refusal> {
        self.plan_named(questions, Lists::Count, now)
    }

    /// What is to be told about keys that are named: what was used, given back or forgotten. Lists
    /// do not matter: somebody who is on one now may have used something before.
    pub fn plan_changes<'p>(
        &'p self,
        questions: &[Question<'p>],
        now: Micros,
    ) -> Result<Plan<'p>, Refusal> {
        self.plan_named(questions, Lists::Ignore, now)
    }

    fn plan_named<'p>(
        &'p self,
        questions: &[Question<'p>],
        lists: Lists,
        now: Micros,
    ) -> Result<Plan<'p>, Refusal> {
        let mut plan = Plan::new();
        for question in questions {
            let rule = match question.about {
                About::Rule(name) => self.rule(name),
                About::Own(rule) => {
                    let &Question { key, cost, .. } = question;
                    let key = SubjectKey::Given(key);
                    plan.steps.push(Step { rule, key, cost, holders: Holders::AtCost });
                    continue;
                }
            };
            let rule = rule.ok_or_else(|| question.unknown())?;
            plan.name(rule, question.key, question.cost, lists, now)?;
        }
        plan.check_size()
    }

    /// What is to be charged to one key under every rule.
    pub fn plan_key<'p>(
        &'p self,
        key: Key<'p>,
        cost: Cost,
        now: Micros,
    ) -> Result<Plan<'p>, Refusal> {
        self.plan_all(key, cost, Lists::Count, now)
    }

    pub(crate) fn plan_all<'p>(
        &'p self,
        key: Key<'p>,
        cost: Cost,
        lists: Lists,
        now: Micros,
    ) -> Result<Plan<'p>, Refusal> {
        let mut plan = Plan::new();
        for rule in self.rules() {
            plan.name(rule, key, cost, lists, now)?;
        }
        plan.check_size()
    }
}

/// Do the lists of a rule count?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lists {
    Count,
    Ignore,
}

impl Question<'_> {
    fn unknown(&self) -> Refusal {
        match self.about {
            About::Rule(name) => Refusal::UnknownRule(name.into()),
            About::Own(rule) => Refusal::UnknownRule(rule.name().into()),
        }
    }
}

/// The key of a request under a rule; `None` if it has none, and those without do not share one.
fn key_of(rule: &PolicyRule, request: &impl Request) -> Option<Vec<String>> {
    let shared = (rule.on_missing_key == OnMissingKey::Shared).then_some(MISSING);
    let find = |part: &KeyPart| {
        let found = part.find(request, rule.matches.path.as_ref());
        found.or_else(|| shared.map(str::to_string))
    };
    rule.key.iter().map(find).collect()
}

fn listed(rule: &PolicyRule, key: Option<&[String]>, request: &impl Request) -> Listed {
    if rule.has_lists() {
        rule.listed(key.map_or(Key::of(&[]), Key::from), request.client_ip())
    } else {
        Listed::Nowhere
    }
}

/// The key as a request would have it, and the address in it.
fn named_subject<'p>(rule: &PolicyRule, key: Key<'p>) -> (SubjectKey<'p>, Option<IpAddr>) {
    let given = SubjectKey::Given(key);
    if !rule.counts_addresses() && !rule.has_lists() {
        return (given, None);
    }
    let texts: Option<SmallVec<[&str; 4]>> =
        key.parts().map(|part| std::str::from_utf8(part).ok()).collect();
    let Some(texts) = texts else { return (given, None) };
    let client = rule.client_in(&texts);
    // There is one way to write an IPv4 address, so it is the key already.
    let may_change = rule.counts_addresses() && texts.iter().any(|text| text.contains(':'));
    let subject = if may_change { SubjectKey::Made(rule.normal(texts.into_iter())) } else { given };
    (subject, client)
}

fn cost_of(rule: &PolicyRule, request: &impl Request) -> Cost {
    if let Some(cost) = request.cost() {
        return cost;
    }
    let header = rule.cost_header.as_deref().filter(|_| request.is_vouched_for());
    let given = header.and_then(|name| request.header(name)).map(str::trim);
    match given {
        Some(text) if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => {
            // Digits that are no cost are too many of them.
            let cost = text.parse().ok().and_then(|cost| Cost::new(cost).ok()).unwrap_or(Cost::MAX);
            cost.max(Cost::ONE)
        }
        _ => Cost::ONE,
    }
}

impl<'p> Plan<'p> {
    fn new() -> Self {
        Self { steps: Steps::None, denied: None, would_deny: Vec::new(), exempt: Vec::new() }
    }

    fn deny(&mut self, rule: &'p PolicyRule) {
        if rule.decides() {
            self.denied.get_or_insert(rule);
        } else {
            self.would_deny.push(rule);
        }
    }

    /// Charges a request.
    fn charge(
        &mut self,
        rule: &'p PolicyRule,
        key: Vec<String>,
        cost: Cost,
        now: Micros,
    ) -> Result<(), Refusal> {
        let made = Key::from(&*key);
        if made.is_valid() {
            let limits = rule.limits_of(made, now);
            let key = SubjectKey::Made(key);
            self.steps.push(Step { rule: limits, key, cost, holders: Holders::LeftOut });
        } else if rule.decides() {
            return Err(Refusal::KeyTooLong);
        } else {
            self.would_deny.push(rule);
        }
        Ok(())
    }

    /// Charges a key that somebody names.
    fn name(
        &mut self,
        rule: &'p PolicyRule,
        key: Key<'p>,
        cost: Cost,
        lists: Lists,
        now: Micros,
    ) -> Result<(), Refusal> {
        if !key.is_valid() {
            return Err(Refusal::KeyTooLong);
        }
        let (key, client) = named_subject(rule, key);
        let listed = match lists {
            Lists::Count => rule.listed(key.key(), client),
            Lists::Ignore => Listed::Nowhere,
        };
        match listed {
            Listed::Denied => self.deny(rule),
            Listed::Allowed => self.exempt.push(rule),
            Listed::Nowhere => {
                let limits = rule.limits_of(key.key(), now);
                self.steps.push(Step { rule: limits, key, cost, holders: Holders::AtCost });
            }
        }
        Ok(())
    }

    fn check_size(self) -> Result<Self, Refusal> {
        let charges = self.limits().count();
        if charges > Call::MAX_CHARGES { Err(Refusal::ChargeCount(charges)) } else { Ok(self) }
    }

    /// The same with holders counted: one place in every limit that counts them, whatever the cost.
    /// A request that costs 5 is still one holder. Where such limits were left out they are put in,
    /// and a plan that grows beyond [`Call::MAX_CHARGES`] by that is refused.
    ///
    /// It is for whoever says when the work is done: see [`passing`](Self::passing).
    pub fn entering(mut self) -> Result<Self, Refusal> {
        for step in self.steps.as_mut_slice() {
            step.holders = Holders::One;
        }
        self.check_size()
    }

    /// The operation by which it passes: [`Op::Enter`] under a new name and for the shortest
    /// [`lease`](Self::lease), if there is one, else [`Op::Check`].
    pub fn passing(&self) -> Result<Op, EngineError> {
        Ok(match self.lease().filter(|_| self.denied.is_none()) {
            Some(ttl) => Op::Enter { id: HoldId::random()?, ttl },
            None => Op::Check,
        })
    }

    /// How long a holder may stay without renewing: the shortest lease among the planned limits, if
    /// any of them counts holders.
    pub fn lease(&self) -> Option<Micros> {
        self.limits().filter_map(|limit| limit.limit().lease()).min()
    }

    /// The rules that apply, each with its key, in order.
    pub fn steps(&self) -> &[Step<'p>] {
        self.steps.as_slice()
    }

    /// The limits in the order of the charges.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<RuleLimit>> {
        self.steps().iter().flat_map(Step::limits)
    }

    /// The limits that a decision about this plan has verdicts of, in order: those that decide, or
    /// the first of the rule that denies without asking an engine.
    pub fn deciding(&self) -> impl Iterator<Item = &Arc<RuleLimit>> {
        let of_list = self.denied.and_then(|rule| rule.rule().limits().first());
        let of_engine = self.limits().filter(|limit| self.denied.is_none() && !limit.is_shadow());
        of_list.into_iter().chain(of_engine)
    }

    /// The charges for an engine.
    pub fn charges(&self) -> SmallVec<[Charge<'_>; 2]> {
        self.charges_with(None)
    }

    pub(crate) fn charges_with<'a>(&'a self, who: Option<&'a str>) -> Charges<'a> {
        let of = |step: &'a Step<'p>| {
            let key = step.key.key();
            step.limits().map(move |limit| Charge { limit, key, cost: step.cost_to(limit), who })
        };
        self.steps().iter().flat_map(of).collect()
    }

    /// The rule that denies without asking an engine: by its list, or for want of a key.
    pub fn denied_by(&self) -> Option<&'p PolicyRule> {
        self.denied
    }

    /// The rules from which whoever asks is exempt.
    pub fn exempted_by(&self) -> &[&'p PolicyRule] {
        &self.exempt
    }

    /// The rules that only look on and would have turned it away without asking an engine: by a list,
    /// for want of a key, or for a key that is too long.
    pub fn would_be_denied_by(&self) -> &[&'p PolicyRule] {
        &self.would_deny
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
    /// The rule with the limits that the key is under.
    pub fn rule(&self) -> &'p Rule {
        self.rule
    }

    /// Whom it concerns.
    pub fn key(&self) -> Key<'_> {
        self.key.key()
    }

    /// How much is charged. In an [entering](Plan::entering) plan, limits that count holders are
    /// asked for one place instead.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    fn cost_to(&self, limit: &RuleLimit) -> Cost {
        match self.holders {
            Holders::One if limit.limit().lease().is_some() => Cost::ONE,
            _ => self.cost,
        }
    }

    /// The limits that are charged.
    pub fn limits(&self) -> impl Iterator<Item = &'p Arc<RuleLimit>> {
        let left_out = self.holders == Holders::LeftOut;
        let counts = move |limit: &&Arc<RuleLimit>| !left_out || limit.limit().lease().is_none();
        self.rule.limits().iter().filter(counts)
    }
}

impl SubjectKey<'_> {
    fn key(&self) -> Key<'_> {
        match self {
            Self::Given(key) => *key,
            Self::Made(parts) => Key::from(&**parts),
        }
    }
}
