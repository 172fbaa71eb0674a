//! Decides requests as an engine does: evaluates every limit, then charges all or none.

use std::collections::VecDeque;
use std::sync::Arc;

use tidegate_core::{Cost, Holds, Micros, Packed, State, Wait};

use super::candidate::Candidate;
use crate::RuleLimit;

/// The decision of one simulated request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimulatedDecision {
    /// Whether the request passes.
    pub allowed: bool,
    /// When to retry: the longest wait of the limits that deny it.
    pub retry_after: Wait,
    /// How long it waits for its turn in a queue.
    pub delay: Micros,
}

/// The limits of a candidate, with the states of every key.
#[derive(Debug)]
pub(super) struct Evaluator {
    limits: Vec<LimitEvaluator>,
}

/// One limit, with the states of every key.
#[derive(Debug)]
pub(super) struct LimitEvaluator {
    rule: Arc<RuleLimit>,
    states: KeyStates,
    /// The verdict on the present request.
    verdict: LimitVerdict,
}

#[derive(Clone, Copy, Debug)]
struct LimitVerdict {
    decision: SimulatedDecision,
    /// Permits used if the request is denied, and if it passes.
    used: [u64; 2],
    /// The state if the request passes.
    state_after: Option<Packed>,
}

#[derive(Debug)]
enum KeyStates {
    /// A packed state for each key.
    Packed(Vec<Option<Packed>>),
    /// A state for each key.
    Unpacked(Vec<Option<State>>),
    /// When the holders of each key release their slot, the next first: all hold for the same time.
    Held { hold_time: Micros, releases: Vec<VecDeque<Micros>> },
}

impl Evaluator {
    pub(super) fn new(candidate: &Candidate, keys: usize, hold_time: Micros) -> Self {
        let evaluator = |rule: &Arc<RuleLimit>| {
            let limit = rule.limit();
            let states = match limit.lease() {
                Some(lease) => KeyStates::Held {
                    hold_time: hold_time.min(lease),
                    releases: vec![VecDeque::new(); keys],
                },
                None if limit.packs() => KeyStates::Packed(vec![None; keys]),
                None => KeyStates::Unpacked(vec![None; keys]),
            };
            let decision =
                SimulatedDecision { allowed: true, retry_after: Wait::NONE, delay: Micros::ZERO };
            LimitEvaluator {
                rule: rule.clone(),
                states,
                verdict: LimitVerdict { decision, used: [0; 2], state_after: None },
            }
        };
        Self { limits: candidate.rule().limits().iter().map(evaluator).collect() }
    }

    /// Decides a request, and charges it if it passes.
    pub(super) fn decide(&mut self, key: usize, now: Micros) -> SimulatedDecision {
        let mut all =
            SimulatedDecision { allowed: true, retry_after: Wait::NONE, delay: Micros::ZERO };
        for limit in &mut self.limits {
            limit.evaluate(key, now);
            let decision = &limit.verdict.decision;
            all.allowed &= decision.allowed;
            all.retry_after = all.retry_after.max(decision.retry_after);
            all.delay = all.delay.max(decision.delay);
        }
        if all.allowed {
            self.limits.iter_mut().for_each(|limit| limit.charge(key, now));
        } else {
            all.delay = Micros::ZERO;
        }
        all
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LimitEvaluator> {
        self.limits.iter()
    }
}

impl LimitEvaluator {
    /// Whether this limit allowed the last request.
    pub(super) fn allowed(&self) -> bool {
        self.verdict.decision.allowed
    }

    /// Whether this limit is a queue, which delays requests.
    pub(super) fn is_queue(&self) -> bool {
        self.rule.limit().is_queue()
    }

    /// The delay of the last request.
    pub(super) fn delay(&self) -> Micros {
        self.verdict.decision.delay
    }

    /// Permits used by the key after the last request.
    pub(super) fn used_after(&self, passed: bool) -> u64 {
        self.verdict.used[usize::from(passed)]
    }

    /// Permits used by a key now.
    pub(super) fn used(&self, key: usize, now: Micros) -> u64 {
        let (limit, at) = (self.rule.limit(), self.rule.moment(now));
        let used = |state: Option<&State>| limit.standing(state, Holds::NONE, &at).used;
        match &self.states {
            KeyStates::Packed(states) => {
                used(states[key].and_then(|packed| limit.unpack(packed)).as_ref())
            }
            KeyStates::Unpacked(states) => used(states[key].as_ref()),
            KeyStates::Held { releases, .. } => {
                releases[key].iter().filter(|release| **release > now).count() as u64
            }
        }
    }

    fn evaluate(&mut self, key: usize, now: Micros) {
        let (limit, capacity) = (self.rule.limit(), self.rule.limit().capacity());
        let at = self.rule.moment(now);
        if let KeyStates::Packed(states) = &mut self.states {
            if let Some((verdict, left)) = limit.decide(states[key], &at, Cost::ONE) {
                let used = capacity - verdict.remaining;
                let before = used.saturating_sub(u64::from(verdict.allowed));
                let decision = SimulatedDecision {
                    allowed: verdict.allowed,
                    retry_after: verdict.retry_after,
                    delay: verdict.delay,
                };
                self.verdict = LimitVerdict { decision, used: [before, used], state_after: left };
                return;
            }
            // States that cannot be packed are stored unpacked from here on.
            let unpacked = |packed: &Option<Packed>| packed.and_then(|packed| limit.unpack(packed));
            self.states = KeyStates::Unpacked(states.iter().map(unpacked).collect());
        }
        match &mut self.states {
            KeyStates::Packed(_) => {}
            KeyStates::Unpacked(states) => {
                let verdict = limit.look(states[key].as_ref(), Holds::NONE, &at, Cost::ONE);
                let used = capacity.saturating_sub(verdict.remaining);
                let decision = SimulatedDecision {
                    allowed: verdict.allowed,
                    retry_after: verdict.retry_after,
                    delay: verdict.delay,
                };
                self.verdict = LimitVerdict { decision, used: [used, used + 1], state_after: None };
            }
            KeyStates::Held { releases, .. } => {
                let releases = &mut releases[key];
                while releases.front().is_some_and(|release| *release <= now) {
                    releases.pop_front();
                }
                let held = releases.len() as u64;
                let retry_after = match releases.front() {
                    _ if held < capacity => Wait::NONE,
                    Some(release) => Wait::For(release.saturating_sub(now)),
                    None => Wait::Never,
                };
                let decision = SimulatedDecision {
                    allowed: held < capacity,
                    retry_after,
                    delay: Micros::ZERO,
                };
                self.verdict = LimitVerdict { decision, used: [held, held + 1], state_after: None };
            }
        }
    }

    fn charge(&mut self, key: usize, now: Micros) {
        match &mut self.states {
            KeyStates::Packed(states) => states[key] = self.verdict.state_after,
            KeyStates::Unpacked(states) => {
                self.rule.limit().charge(&mut states[key], &self.rule.moment(now), Cost::ONE, None);
            }
            KeyStates::Held { hold_time, releases } => {
                releases[key].push_back(now.saturating_add(*hold_time))
            }
        }
    }
}
