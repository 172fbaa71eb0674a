//! What came of the requests of a log under one policy.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::policy::Step;
use tidegate::{Call, Decision, Engine, Key, Memory, Micros, Op, Plan, RuleLimit, Verdict, Wait};

use super::need::{Needs, Room};
use super::timeline::Timeline;
use super::top::Top;
use crate::config::Loaded;
use crate::hottest::Hottest;

/// What came of all requests.
#[derive(Debug)]
pub(super) struct Tally {
    questions: Questions,
    by_name: HashMap<Box<str>, usize>,
    /// In the order of the policy.
    pub(super) rules: Vec<RuleTally>,
    /// Requests that at least one rule was about.
    pub(super) matched: u64,
    pub(super) denied: u64,
    /// Requests that passed and would not have, if the limits that look on decided.
    pub(super) would_deny: u64,
    /// Requests with a key that is too long: they would be turned away as faulty.
    pub(super) refused: u64,
    /// Requests that the engine had no room to count.
    pub(super) undecided: u64,
    pub(super) timeline: Timeline,
    pub(super) denied_keys: Top,
    pub(super) would_deny_keys: Top,
    /// For what keys need.
    room: Room,
}

/// What came of the requests that a rule was about.
#[derive(Debug)]
pub(super) struct RuleTally {
    pub(super) name: String,
    pub(super) matched: u64,
    /// Those that the rule itself denied.
    pub(super) denied: u64,
    pub(super) would_deny: u64,
    pub(super) exempt: u64,
    /// By its lists, or for want of a key.
    pub(super) denied_by_list: u64,
    pub(super) first_denial: Option<Micros>,
    pub(super) last_denial: Option<Micros>,
    pub(super) longest_wait: Option<Wait>,
    /// Its limits, and how often each denied, or would have. Those of overrides are not among them.
    pub(super) limits: Vec<(Arc<RuleLimit>, u64)>,
    /// For each of its limits, if somebody asks.
    pub(super) needs: Vec<Option<Needs>>,
}

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Pass,
    /// By whom, if somebody asks.
    Deny(Option<Denial>),
    /// Nobody knows: it was turned away as faulty, or could not be counted.
    Unknown,
}

/// Who was denied, and by which rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Denial {
    /// The place of the rule in the policy.
    pub(super) rule: usize,
    /// The key for people to read.
    pub(super) key: String,
    pub(super) wait: Wait,
}

/// What is to be found out beside the counts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Questions {
    /// What every key would have needed?
    pub(super) needs: bool,
    /// Who was denied, at each denial?
    pub(super) denials: bool,
}

impl Tally {
    pub(super) fn new(
        by_name: HashMap<Box<str>, usize>,
        rules: Vec<RuleTally>,
        questions: Questions,
    ) -> Self {
        Self {
            questions,
            by_name,
            rules,
            matched: 0,
            denied: 0,
            would_deny: 0,
            refused: 0,
            undecided: 0,
            timeline: Timeline::new(),
            denied_keys: Top::default(),
            would_deny_keys: Top::default(),
            room: Room::default(),
        }
    }

    fn place(&self, rule: &str) -> usize {
        self.by_name.get(rule).copied().unwrap_or_default()
    }

    /// Counts the rules that a request comes under.
    pub(super) fn note_plan(&mut self, plan: &Plan<'_>) {
        let (exempt, would_deny) = (plan.exempted_by(), plan.would_be_denied_by());
        let is_matched = plan.denied_by().is_some()
            || !(plan.steps().is_empty() && exempt.is_empty() && would_deny.is_empty());
        self.matched += u64::from(is_matched);
        for step in plan.steps() {
            let place = self.place(step.rule().name());
            self.rules[place].matched += 1;
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

    /// Finds out what keys need under the limits of their rule. Keys with limits of their own are left out.
    pub(super) fn note_needs(&mut self, plan: &Plan<'_>, loaded: &Loaded, now: Micros) {
        for step in plan.steps() {
            let place = self.by_name.get(step.rule().name()).copied().unwrap_or_default();
            let needs = &mut self.rules[place].needs;
            if needs.is_empty() || !std::ptr::eq(step.rule(), loaded.policy.rules()[place].rule()) {
                continue;
            }
            for needs in needs.iter_mut().flatten() {
                needs.charge(step.key(), step.cost(), now, &mut self.room);
            }
        }
    }

    pub(super) fn deny_by_list(&mut self, rule: &str, key: Key<'_>, now: Micros) -> Fate {
        let place = self.place(rule);
        let rule = &mut self.rules[place];
        rule.matched += 1;
        rule.denied_by_list += 1;
        rule.deny(Wait::Never, now);
        self.denied_keys.note(place, key);
        let denial = || Denial { rule: place, key: Hottest::shown(key), wait: Wait::Never };
        Fate::Deny(self.questions.denials.then(denial))
    }

    /// Has a plan decided and counts what each of its rules says.
    pub(super) fn settle(&mut self, plan: &Plan<'_>, engine: &Memory, now: Micros) -> Fate {
        let charges = plan.charges();
        let decision = if charges.is_empty() {
            plan.decision()
        } else {
            engine.decide(Call { op: Op::Check, charges: &charges, once: None }).now().ok()
        };
        let Some(decision) = decision else {
            self.undecided += 1;
            return Fate::Unknown;
        };
        let would_deny = self.count(plan, &decision, now);
        if !decision.allowed() {
            return Fate::Deny(if self.questions.denials {
                self.denial(plan, &decision)
            } else {
                None
            });
        }
        let by_list = plan.would_be_denied_by().iter().map(|rule| self.place(rule.name()));
        let by_list: Vec<usize> = by_list.collect();
        for place in &by_list {
            self.rules[*place].would_deny += 1;
        }
        self.would_deny += u64::from(would_deny || !by_list.is_empty());
        Fate::Pass
    }

    /// Counts the verdicts. Says whether a limit that looks on would have denied what passed.
    fn count(&mut self, plan: &Plan<'_>, decision: &Decision, now: Micros) -> bool {
        if decision.allowed() && decision.shadow().iter().all(|verdict| verdict.allowed) {
            return false;
        }
        let is_denied = !decision.allowed();
        let (mut deciding, mut looking_on) = (decision.verdicts.iter(), decision.shadow().iter());
        let mut would_deny_any = false;
        for step in plan.steps() {
            let place = self.place(step.rule().name());
            let rule = &mut self.rules[place];
            let (mut denies, mut would_deny) = (None, false);
            for limit in step.limits() {
                let verdict = if limit.is_shadow() { looking_on.next() } else { deciding.next() };
                let Some(verdict) = verdict.filter(|verdict| !verdict.allowed) else { continue };
                // What was denied anyway is nothing that a candidate would have changed.
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

    /// The rule that speaks, and its key.
    fn denial(&self, plan: &Plan<'_>, decision: &Decision) -> Option<Denial> {
        let limits = |step: &&Step<'_>| step.limits().filter(|limit| !limit.is_shadow()).count();
        let steps = plan.steps().iter().flat_map(|step| std::iter::repeat_n(step, limits(&step)));
        let step = steps.into_iter().nth(decision.speaker())?;
        let Verdict { retry_after: wait, .. } = decision.verdict();
        Some(Denial { rule: self.place(step.rule().name()), key: Hottest::shown(step.key()), wait })
    }
}

impl RuleTally {
    pub(super) fn new(name: &str, limits: &[Arc<RuleLimit>], questions: Questions) -> Self {
        let needs =
            if questions.needs { limits.iter().map(Needs::new).collect() } else { Vec::new() };
        Self {
            name: name.into(),
            matched: 0,
            denied: 0,
            would_deny: 0,
            exempt: 0,
            denied_by_list: 0,
            first_denial: None,
            last_denial: None,
            longest_wait: None,
            limits: limits.iter().map(|limit| (limit.clone(), 0)).collect(),
            needs,
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
