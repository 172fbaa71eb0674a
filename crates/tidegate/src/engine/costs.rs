//! The costs of a hold by rule: the actual ones when it is settled, and totals to extend it to.

use smallvec::SmallVec;
use tidegate_core::{Cost, Micros};

use super::error::Refusal;
use super::rule_limit::RuleLimit;
use crate::Key;

/// What the limits of a hold are charged when it is settled. `concurrency` limits are released, and
/// limits that were charged when the hold was made stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Costs<'a> {
    /// What was held.
    AsHeld,
    /// Each limit the same; zero cancels. Refused if the limits were held at different costs,
    /// except for zero.
    All(Cost),
    /// The limits of these rules; those of other rules what was held.
    Each(&'a [RuleCost<'a>]),
}

/// What a hold is extended to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extension<'a> {
    /// What the limits of these rules hold then in total, not in addition; a limit that holds more
    /// keeps it. The limits of other rules stay as they are.
    pub totals: &'a [RuleCost<'a>],
    /// If the totals do not fit, as much as fits is held, but at least this. All totals must be
    /// equal then: one quantity is granted to all rules. `None` grants all or nothing.
    pub min: Option<Cost>,
    /// The hold lasts this long from now. `None` keeps its deadline.
    pub ttl: Option<Micros>,
}

/// The actual cost of one rule, or the total that it is extended to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RuleCost<'a> {
    /// The name of the rule.
    pub rule: &'a str,
    /// The key, if the hold has several of this rule.
    pub key: Option<Key<'a>>,
    /// The cost of each limit of the rule.
    pub cost: Cost,
    /// Left out if the rule is not held, and the cost of each of its keys: for a caller that does
    /// not know what is held.
    pub if_held: bool,
}

impl<'a> RuleCost<'a> {
    /// The cost of a rule that is held with one key.
    pub fn new(rule: &'a str, cost: Cost) -> Self {
        Self { rule, key: None, cost, if_held: false }
    }

    /// The same, unless the rule is not held, and for each of its keys.
    #[must_use]
    pub fn if_held(self) -> Self {
        Self { if_held: true, ..self }
    }
}

/// One limit and key of a hold.
#[derive(Clone, Copy, Debug)]
pub struct HeldPart<'a> {
    /// The limit.
    pub limit: &'a RuleLimit,
    /// The cost when the hold was made.
    pub cost: Cost,
    /// Whether it is held. Otherwise it was charged when the hold was made.
    pub is_held: bool,
}

impl HeldPart<'_> {
    /// Whether the settlement decides what is charged.
    fn is_settled(&self) -> bool {
        self.is_held && self.limit.limit().lease().is_none()
    }
}

/// What settling a hold has charged to one limit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SettledCost {
    /// What was held, or charged when the hold was made.
    pub reserved: Cost,
    /// What the limit was charged in total, for the hold and its settlement.
    pub charged: Cost,
    /// What was not charged, because the limit takes on debt up to twice its capacity.
    pub uncharged: Cost,
}

impl<'a> Costs<'a> {
    /// The cost of each part that is named; `None` is what is held. `is_of(i, key)` is whether the
    /// i-th part is of this key. An engine calls it before it settles.
    pub fn of_parts(
        &self,
        parts: &[HeldPart<'_>],
        is_of: impl Fn(usize, Key<'a>) -> bool,
    ) -> Result<SmallVec<[Option<Cost>; 2]>, Refusal> {
        let mut costs: SmallVec<[Option<Cost>; 2]> = SmallVec::from_elem(None, parts.len());
        let settled = || parts.iter().filter(|part| part.is_settled());
        match self {
            Self::AsHeld => {}
            Self::All(cost) => {
                let first = settled().next();
                let differs = first.is_some_and(|f| settled().any(|part| part.cost != f.cost));
                if differs && !cost.is_zero() {
                    let mut rules: Vec<&str> = settled().map(|part| part.limit.rule()).collect();
                    rules.sort_unstable();
                    rules.dedup();
                    return Err(Refusal::DifferentCosts(rules.len()));
                }
                for (part, named) in parts.iter().zip(&mut costs) {
                    *named = part.is_settled().then_some(*cost);
                }
            }
            Self::Each(each) => {
                for RuleCost { rule, key, cost, if_held } in *each {
                    let is_meant = |i: &usize| {
                        let part = &parts[*i];
                        let is_key = key.is_none_or(|key| is_of(*i, key));
                        part.is_settled() && part.limit.rule() == *rule && is_key
                    };
                    let meant: SmallVec<[usize; 2]> = (0..parts.len()).filter(is_meant).collect();
                    if meant.is_empty() && *if_held {
                        continue;
                    }
                    if meant.is_empty() {
                        return Err(Refusal::NotHeld((*rule).into()));
                    }
                    let states = meant.iter().map(|i| parts[*i].limit.state());
                    let is_twice = states.clone().enumerate();
                    let mut is_twice =
                        is_twice.map(|(n, state)| states.clone().take(n).any(|s| s == state));
                    let is_unclear = !if_held && is_twice.any(|twice| twice);
                    if is_unclear || meant.iter().any(|i| costs[*i].is_some()) {
                        return Err(Refusal::CostOfSeveral((*rule).into()));
                    }
                    meant.iter().for_each(|i| costs[*i] = Some(*cost));
                }
            }
        }
        Ok(costs)
    }
}

impl<'a> Extension<'a> {
    /// Refuses totals above [`Cost::MAX`], and a minimum that is no part of one total.
    pub fn validate(&self) -> Result<(), Refusal> {
        for total in self.totals {
            Cost::new(total.cost.get()).map_err(Refusal::Cost)?;
        }
        let (Some(min), Some(RuleCost { cost: first, .. })) = (self.min, self.totals.first())
        else {
            return Ok(());
        };
        let is_one = self.totals.iter().all(|total| total.cost == *first);
        if is_one && (Cost::ONE..=*first).contains(&min) { Ok(()) } else { Err(Refusal::MinCost) }
    }

    /// The largest total.
    pub fn want(&self) -> Cost {
        self.totals.iter().map(|total| total.cost).max().unwrap_or_default()
    }

    /// The total of each part that is named, as [`Costs::of_parts`]. A queue is refused.
    pub(super) fn of_parts(
        &self,
        parts: &[HeldPart<'_>],
        is_of: impl Fn(usize, Key<'a>) -> bool,
    ) -> Result<SmallVec<[Option<Cost>; 2]>, Refusal> {
        let totals = Costs::Each(self.totals).of_parts(parts, is_of)?;
        let named = parts.iter().zip(&totals).filter(|(_, total)| total.is_some());
        let mut limits = named.map(|(part, _)| part.limit);
        match limits.find(|limit| limit.limit().is_queue() && !limit.is_shadow()) {
            Some(queue) => Err(Refusal::QueueExtended(queue.rule().into())),
            None => Ok(totals),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Rule;

    fn limit(rule: &str, text: &str) -> Arc<RuleLimit> {
        Rule::new(rule, [text.parse().unwrap()]).unwrap().limits()[0].clone()
    }

    #[test]
    fn costs_are_resolved_by_rule_and_key_and_refused_if_they_are_not_clear() {
        let (requests, tokens) = (limit("requests", "60/m"), limit("tokens", "9/m"));
        let slots = limit("slots", "concurrency 3");
        let part = |limit, cost, is_held| HeldPart { limit, cost: Cost::total(cost), is_held };
        let parts = [part(&*requests, 1, false), part(&*tokens, 15, true), part(&*slots, 1, true)];
        let of = |costs: Costs<'_>| costs.of_parts(&parts, |_, _| true).map(|found| found.to_vec());
        let three = Cost::total(3);
        assert_eq!(of(Costs::AsHeld), Ok(vec![None; 3]));
        assert_eq!(of(Costs::All(three)), Ok(vec![None, Some(three), None]));
        let each = [RuleCost::new("tokens", three)];
        assert_eq!(of(Costs::Each(&each)), Ok(vec![None, Some(three), None]));
        for rule in ["requests", "slots", "unknown"] {
            let refused = of(Costs::Each(&[RuleCost::new(rule, three)]));
            assert_eq!(refused, Err(Refusal::NotHeld(rule.into())));
        }
        let known =
            ["requests", "unknown", "tokens"].map(|rule| RuleCost::new(rule, three).if_held());
        assert_eq!(of(Costs::Each(&known)), Ok(vec![None, Some(three), None]));
        let twice = [each[0], each[0]];
        assert_eq!(of(Costs::Each(&twice)), Err(Refusal::CostOfSeveral("tokens".into())));
    }

    #[test]
    fn one_cost_needs_equal_costs_and_a_rule_with_several_keys_needs_the_key() {
        let (a, b) = (limit("a", "9/m"), limit("b", "9/m"));
        let part = |limit, cost| HeldPart { limit, cost: Cost::total(cost), is_held: true };
        let two = Cost::total(2);
        let unequal = [part(&*a, 1), part(&*b, 5)];
        let of = |costs: Costs<'_>, parts: &[HeldPart<'_>]| costs.of_parts(parts, |i, _| i == 1);
        assert_eq!(of(Costs::All(two), &unequal), Err(Refusal::DifferentCosts(2)));
        assert!(of(Costs::All(Cost::ZERO), &unequal).is_ok());
        assert!(of(Costs::All(two), &[part(&*a, 5), part(&*b, 5)]).is_ok());
        let keys = [part(&*a, 1), part(&*a, 5)];
        let of_rule = [RuleCost::new("a", two)];
        assert_eq!(of(Costs::Each(&of_rule), &keys), Err(Refusal::CostOfSeveral("a".into())));
        let of_each = [of_rule[0].if_held()];
        assert_eq!(of(Costs::Each(&of_each), &keys).unwrap()[..], [Some(two), Some(two)]);
        let of_key = [RuleCost { key: Some(Key::from("k")), ..of_rule[0] }];
        assert_eq!(of(Costs::Each(&of_key), &keys).unwrap()[..], [None, Some(two)]);
    }
}
