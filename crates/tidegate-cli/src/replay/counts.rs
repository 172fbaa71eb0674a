//! Decisions of one policy, counted by rule, limit, key and time.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::policy::{MISSING, Step};
use tidegate::{Decision, Key, Limiter, Micros, Op, Plan, RuleLimit, Wait};

use super::sizing::{MemoryBudget, SizeEstimates};
use super::timeline::Timeline;
use super::top_keys::TopKeys;
use tidegate_config::LoadedPolicy;
use tidegate_server::internal::text::escape::display_key;

#[derive(Debug)]
pub(crate) struct PolicyCounts {
    options: CountOptions,
    by_name: HashMap<Box<str>, usize>,
    /// In the order of the policy.
    pub(crate) rules: Vec<RuleCounts>,
    /// Requests that at least one rule matches.
    pub(crate) matched: u64,
    pub(crate) denied: u64,
    /// Allowed requests that shadow limits would deny.
    pub(crate) would_deny: u64,
    /// Requests with a key that is too long; a server refuses them.
    pub(crate) refused: u64,
    /// Requests without a decision because the memory cap was reached.
    pub(crate) undecided: u64,
    pub(crate) timeline: Timeline,
    pub(crate) denied_keys: TopKeys,
    pub(crate) would_deny_keys: TopKeys,
    /// Shared by the size estimates of all limits.
    budget: MemoryBudget,
}

/// Counts of one rule.
#[derive(Debug)]
pub(crate) struct RuleCounts {
    pub(crate) name: String,
    pub(crate) matched: u64,
    /// Requests denied by this rule, not by another.
    pub(crate) denied: u64,
    pub(crate) would_deny: u64,
    pub(crate) exempt: u64,
    /// Requests that lack a part of the key.
    pub(crate) without_key: u64,
    /// Denied by its deny list or because the key is missing.
    pub(crate) denied_by_list: u64,
    pub(crate) first_denial: Option<Micros>,
    pub(crate) last_denial: Option<Micros>,
    pub(crate) longest_wait: Option<Wait>,
    /// Its limits with the number of denials, or of would-be denials for shadow limits. Limits of
    /// overrides are not included.
    pub(crate) limits: Vec<(Arc<RuleLimit>, u64)>,
    /// One per limit; empty unless [`CountOptions::sizes`] is set.
    pub(crate) sizes: Vec<Option<SizeEstimates>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RequestOutcome {
    Pass,
    /// With details if [`CountOptions::denials`] is set.
    Deny(Option<ReplayDenial>),
    /// Refused as invalid, or not decided because the memory cap was reached.
    Unknown,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReplayDenial {
    /// Index of the rule in the policy.
    pub(crate) rule: usize,
    /// As displayed.
    pub(crate) key: String,
    pub(crate) wait: Wait,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct CountOptions {
    /// Estimate the limit size that each key needs.
    pub(crate) sizes: bool,
    /// Record rule, key and wait of each denial.
    pub(crate) denials: bool,
}

impl PolicyCounts {
    pub(crate) fn new(
        by_name: HashMap<Box<str>, usize>,
        rules: Vec<RuleCounts>,
        options: CountOptions,
    ) -> Self {
        Self {
            options,
            by_name,
            rules,
            matched: 0,
            denied: 0,
            would_deny: 0,
            refused: 0,
            undecided: 0,
            timeline: Timeline::new(),
            denied_keys: TopKeys::default(),
            would_deny_keys: TopKeys::default(),
            budget: MemoryBudget::default(),
        }
    }

    /// Index of a rule.
    fn place(&self, rule: &str) -> usize {
        self.by_name.get(rule).copied().unwrap_or_default()
    }

    /// Counts the rules that match a request.
    pub(crate) fn note_plan(&mut self, plan: &Plan<'_>) {
        let (exempt, would_deny) = (plan.exempted_by(), plan.shadow_denied_by());
        let is_matched = plan.denied_by().is_some()
            || !(plan.steps().is_empty() && exempt.is_empty() && would_deny.is_empty());
        self.matched += u64::from(is_matched);
        for step in plan.steps() {
            let place = self.place(step.rule().name());
            self.rules[place].matched += 1;
            let is_missing = step.key().parts().any(|part| part == MISSING.as_bytes());
            self.rules[place].without_key += u64::from(is_missing);
        }
        for rule in plan.denied_by().into_iter().chain(would_deny.iter().copied()) {
            let place = self.place(rule.name());
            self.rules[place].without_key += u64::from(plan.missing_part(rule).is_some());
        }
        for rule in exempt {
            let place = self.place(rule.name());
            self.rules[place].matched += 1;
            self.rules[place].exempt += 1;
        }
        for rule in would_deny {
            let place = self.place(rule.name());
            self.rules[place].matched += 1;
        }
    }

    /// Updates the size estimates of the rule's limits. Keys with an override are skipped.
    pub(crate) fn note_sizes(&mut self, plan: &Plan<'_>, loaded: &LoadedPolicy, now: Micros) {
        for step in plan.steps() {
            let place = self.by_name.get(step.rule().name()).copied().unwrap_or_default();
            let sizes = &mut self.rules[place].sizes;
            if sizes.is_empty() || !std::ptr::eq(step.rule(), loaded.policy.rules()[place].rule()) {
                continue;
            }
            for estimates in sizes.iter_mut().flatten() {
                estimates.charge(step.key(), step.cost(), now, &mut self.budget);
            }
        }
    }

    pub(crate) fn deny_by_list(&mut self, rule: &str, key: Key<'_>, now: Micros) -> RequestOutcome {
        let place = self.place(rule);
        let rule = &mut self.rules[place];
        rule.matched += 1;
        rule.denied_by_list += 1;
        rule.deny(Wait::Never, now);
        self.denied_keys.note(place, key);
        let denial = || ReplayDenial { rule: place, key: display_key(key), wait: Wait::Never };
        RequestOutcome::Deny(self.options.denials.then(denial))
    }

    /// Decides a plan and counts the verdicts of its rules.
    pub(crate) fn settle(
        &mut self,
        plan: &Plan<'_>,
        limiter: &Limiter,
        now: Micros,
    ) -> RequestOutcome {
        let Ok(decision) = limiter.decide(Op::Check, plan).now() else {
            self.undecided += 1;
            return RequestOutcome::Unknown;
        };
        let would_deny = self.count(plan, &decision, now);
        if !decision.allowed() {
            return RequestOutcome::Deny(if self.options.denials {
                self.denial(plan, &decision)
            } else {
                None
            });
        }
        let by_list = plan.shadow_denied_by().iter().map(|rule| self.place(rule.name()));
        let by_list: Vec<usize> = by_list.collect();
        for place in &by_list {
            self.rules[*place].would_deny += 1;
        }
        self.would_deny += u64::from(would_deny || !by_list.is_empty());
        RequestOutcome::Pass
    }

    /// Counts the verdicts. Returns whether a shadow limit would deny a request that is allowed.
    fn count(&mut self, plan: &Plan<'_>, decision: &Decision, now: Micros) -> bool {
        if decision.allowed() && decision.shadow().iter().all(|verdict| verdict.allowed) {
            return false;
        }
        let is_denied = !decision.allowed();
        let mut verdicts = decision.pair_all(plan.limits());
        let mut would_deny_any = false;
        for step in plan.steps() {
            let place = self.place(step.rule().name());
            let rule = &mut self.rules[place];
            let (mut denies, mut would_deny) = (None, false);
            for (limit, verdict) in verdicts.by_ref().take(step.limits().count()) {
                let Some(verdict) = verdict.filter(|verdict| !verdict.allowed) else { continue };
                // A shadow limit would not change the result of a denied request.
                if limit.is_shadow() && is_denied {
                    continue;
                }
                rule.note_limit(limit);
                if limit.is_shadow() {
                    would_deny = true;
                } else {
                    denies = denies.max(Some(verdict.retry_after));
                }
            }
            if let Some(wait) = denies {
                rule.deny(wait, now);
                self.denied_keys.note(place, step.key());
            }
            if would_deny {
                rule.would_deny += 1;
                self.would_deny_keys.note(place, step.key());
            }
            would_deny_any |= would_deny;
        }
        would_deny_any
    }

    /// Rule and key of the most restrictive limit.
    fn denial(&self, plan: &Plan<'_>, decision: &Decision) -> Option<ReplayDenial> {
        let (most, verdict) = decision.pair(plan.limits()).nth(decision.most_restrictive())?;
        let has = |step: &&Step<'_>| step.limits().any(|limit| std::ptr::eq(limit, most));
        let (step, wait) = (plan.steps().iter().find(has)?, verdict.retry_after);
        Some(ReplayDenial {
            rule: self.place(step.rule().name()),
            key: display_key(step.key()),
            wait,
        })
    }
}

impl RuleCounts {
    pub(crate) fn new(name: &str, limits: &[Arc<RuleLimit>], options: CountOptions) -> Self {
        let sizes = if options.sizes {
            limits.iter().map(SizeEstimates::new).collect()
        } else {
            Vec::new()
        };
        Self {
            name: name.into(),
            matched: 0,
            denied: 0,
            would_deny: 0,
            exempt: 0,
            without_key: 0,
            denied_by_list: 0,
            first_denial: None,
            last_denial: None,
            longest_wait: None,
            limits: limits.iter().map(|limit| (limit.clone(), 0)).collect(),
            sizes,
        }
    }

    fn deny(&mut self, wait: Wait, now: Micros) {
        self.denied += 1;
        self.first_denial.get_or_insert(now);
        self.last_denial = Some(now);
        self.longest_wait = self.longest_wait.max(Some(wait));
    }

    fn note_limit(&mut self, limit: &Arc<RuleLimit>) {
        let known = self.limits.iter_mut().find(|(known, _)| Arc::ptr_eq(known, limit));
        known.into_iter().for_each(|(_, count)| *count += 1);
    }
}
