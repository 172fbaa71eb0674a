//! What one decision adds to metrics, hot keys, recent denials and the trace.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate::policy::Step;
use tidegate::{Decision, EngineError, Extension, Key, Micros, Outcome, Plan, Rule, Source};

use super::active_policy::ActivePolicy;
use super::decision::{CheckDecision, CheckError};
use crate::observe::hot_keys::HotKeys;
use crate::observe::metrics::Metrics;
use crate::observe::otlp::{self, DecisionNote, Tracer};
use crate::observe::traffic::TrafficStats;
use crate::observe::traffic::denials::DenialCause;

/// Where a service counts its decisions.
pub(super) struct Accounting {
    pub(super) metrics: Arc<Metrics>,
    pub(super) hot_keys: HotKeys,
    pub(super) traffic: Arc<TrafficStats>,
    pub(super) tracer: Option<Arc<Tracer>>,
}

impl Accounting {
    /// Counts the outcome of each rule once per call, even if the call has several keys for it.
    /// `key` is the key of the request, if it has exactly one.
    pub(super) fn count(
        &self,
        plan: &Plan<'_>,
        decision: &Decision,
        key: Option<Key<'_>>,
        active: &ActivePolicy,
        now: Micros,
    ) {
        if let Some(rule) = plan.denied_by() {
            active.metrics(rule.rule()).count(Outcome::Never, decision.source);
            self.traffic.denied().record(now, DenialCause::Rule(rule.rule().name(), key));
            return;
        }
        for rule in plan.exempted_by() {
            active.metrics(rule.rule()).count(Outcome::Allow, Source::Policy);
        }
        let mut verdicts = decision.pair_all(plan.limits());
        let mut outcomes: SmallVec<[(&Rule, Outcome); 2]> = SmallVec::new();
        let mut would_deny: SmallVec<[&Rule; 2]> =
            plan.shadow_denied_by().iter().map(|rule| rule.rule()).collect();
        for step in plan.steps() {
            let (mut outcome, mut by) = (Outcome::Allow, None);
            for (limit, verdict) in verdicts.by_ref().take(step.limits().count()) {
                let Some(verdict) = verdict else { continue };
                if !limit.is_shadow() {
                    let before = outcome;
                    outcome = more_restrictive(before, verdict.outcome());
                    by = if outcome == before { by } else { Some(limit) };
                } else if !verdict.allowed {
                    would_deny.push(step.rule());
                    if decision.allowed() {
                        let denied = DenialCause::Limit(limit, step.key(), verdict.outcome());
                        self.traffic.would_deny().record(now, denied);
                    }
                }
            }
            if let Some(limit) = by {
                active.metrics(step.rule()).denials().count(step.rule(), limit);
                self.traffic.denied().record(now, DenialCause::Limit(limit, step.key(), outcome));
            }
            self.hot_keys.record(step.rule().name(), step.key(), outcome, now);
            match outcomes.iter_mut().find(|(rule, _)| rule.name() == step.rule().name()) {
                Some((_, before)) => *before = more_restrictive(*before, outcome),
                None => outcomes.push((step.rule(), outcome)),
            }
        }
        for (rule, outcome) in outcomes {
            active.metrics(rule).count(outcome, decision.source);
        }
        // Enforcing a shadow limit would not change a call that is denied anyway.
        if decision.allowed() {
            for rule in plan.shadow_denied_by() {
                self.traffic.would_deny().record(now, DenialCause::Rule(rule.rule().name(), key));
            }
            dedup_rules(would_deny).for_each(|rule| active.metrics(rule).count_shadow_denied());
        }
    }

    /// Counts the outcome of an extension once for each rule that it names.
    pub(super) fn count_extension(&self, to: &Extension<'_>, decision: &Decision) {
        let mut counted: SmallVec<[(&str, Outcome); 2]> = SmallVec::new();
        for (limit, verdict) in decision.held().iter().zip(&decision.verdicts) {
            let (rule, outcome) = (limit.rule(), verdict.outcome());
            match counted.iter_mut().find(|(name, _)| *name == rule) {
                Some((_, before)) => *before = more_restrictive(*before, outcome),
                None if to.totals.iter().any(|total| total.rule == rule) => {
                    counted.push((rule, outcome));
                }
                None => {}
            }
        }
        for (rule, outcome) in counted {
            self.metrics.rule(rule).count(outcome, decision.source);
        }
    }

    /// Counts a failed call once for each of its rules. A refusal is an error of the caller and is
    /// not counted.
    pub(super) fn count_failed_call(
        &self,
        plan: &Plan<'_>,
        error: &EngineError,
        active: &ActivePolicy,
    ) {
        if error.refusal().is_none() {
            let rules = plan.steps().iter().map(Step::rule);
            dedup_rules(rules).for_each(|rule| active.metrics(rule).count_error());
        }
    }

    /// Counts an error of the store and notes it in the trace. A refusal is neither counted nor
    /// noted.
    pub(super) fn count_error(&self, error: EngineError) -> CheckError {
        if error.refusal().is_none() {
            self.metrics.count_store_error(&error);
            if self.tracer.is_some() {
                otlp::record(DecisionNote::store_error);
            }
        }
        error.into()
    }

    /// Notes a decision in the span of its call, if calls are traced.
    pub(super) fn trace(&self, decision: &CheckDecision) {
        if self.tracer.is_some() {
            otlp::record(|| decision.into());
        }
    }
}

/// Each rule once, at its first position.
fn dedup_rules<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> impl Iterator<Item = &'a Rule> {
    let mut seen: SmallVec<[&str; 4]> = SmallVec::new();
    rules.into_iter().filter(move |rule| {
        let is_new = !seen.contains(&rule.name());
        if is_new {
            seen.push(rule.name());
        }
        is_new
    })
}

fn more_restrictive(one: Outcome, other: Outcome) -> Outcome {
    match (one, other) {
        (Outcome::Never, _) | (_, Outcome::Never) => Outcome::Never,
        (Outcome::RetryAfter(a), Outcome::RetryAfter(b)) => Outcome::RetryAfter(a.max(b)),
        (Outcome::Allow, other) => other,
        (one, Outcome::Allow) => one,
    }
}
