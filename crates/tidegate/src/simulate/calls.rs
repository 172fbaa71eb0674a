//! Calls that reserve an estimate, take a while, and cost what is known at their end.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tidegate_core::{Cost, Expiry, Hold, Holds, Micros, Span, State};

use super::arrivals::Arrival;
use super::candidate::Candidate;
use super::guarantee::Guarantee;
use super::rng::Rng;
use super::time_axis::START;
use super::worst_window::{AdmittedAt, most_consumed};
use crate::RuleLimit;

/// What a simulated request reserves, what it really costs, and how long it takes; each is uniform
/// in a range.
///
/// ```
/// use tidegate::simulate::CallProfile;
/// let calls: CallProfile = "estimate 800 cost 100..4000 takes 2s..90s".parse()?;
/// assert_eq!(calls.to_string(), "estimate 800 cost 100..4000 takes 2s..90s");
/// # Ok::<(), tidegate::simulate::ParseCallsError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallProfile {
    estimate: (u64, u64),
    cost: (u64, u64),
    /// In microseconds.
    takes: (u64, u64),
}

/// Why a text is no [`CallProfile`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseCallsError(String);

impl fmt::Display for ParseCallsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; write calls like estimate 800 cost 100..4000 takes 2s..90s", self.0)
    }
}

impl std::error::Error for ParseCallsError {}

/// The longest call.
const MAX_TAKES: Micros = Micros::from_secs(86_400);

impl FromStr for CallProfile {
    type Err = ParseCallsError;

    fn from_str(text: &str) -> Result<Self, ParseCallsError> {
        let wrong = |why: String| Err(ParseCallsError(why));
        let (mut estimate, mut cost, mut takes) = (None, None, None);
        let words: Vec<&str> = text.split_whitespace().collect();
        for pair in words.chunks(2) {
            let (name, value) = (pair[0], pair.get(1).copied().unwrap_or_default());
            let before = match name {
                "estimate" => estimate.replace(range(value, permits)?),
                "cost" => cost.replace(range(value, permits)?),
                "takes" => takes.replace(range(value, length)?),
                _ => return wrong(format!("unknown word {name:?}")),
            };
            if before.is_some() {
                return wrong(format!("{name} is there twice"));
            }
        }
        let (Some(estimate), Some(cost), Some(takes)) = (estimate, cost, takes) else {
            return wrong("estimate, cost and takes are required".into());
        };
        if estimate.0 == 0 {
            return wrong("an estimate is at least 1".into());
        }
        Ok(Self { estimate, cost, takes })
    }
}

/// `A` or `A..B`.
fn range(text: &str, number: impl Fn(&str) -> Option<u64>) -> Result<(u64, u64), ParseCallsError> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    match (number(from), number(to)) {
        (Some(from), Some(to)) if from <= to => Ok((from, to)),
        _ => Err(ParseCallsError(format!("{text:?} is no number or range"))),
    }
}

fn permits(text: &str) -> Option<u64> {
    text.parse().ok().filter(|permits| *permits <= Cost::MAX.get())
}

fn length(text: &str) -> Option<u64> {
    let span = text.parse::<Span>().ok()?.length()?;
    Some(span).filter(|span| *span <= MAX_TAKES).map(Micros::get)
}

impl fmt::Display for CallProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |(from, to): (u64, u64), text: &dyn Fn(u64) -> String| match from == to {
            true => text(from),
            false => format!("{}..{}", text(from), text(to)),
        };
        let permits = |permits: u64| permits.to_string();
        let span = |micros: u64| Span::Plain(Micros::new(micros)).to_string();
        let (estimate, cost) = (range(self.estimate, &permits), range(self.cost, &permits));
        write!(f, "estimate {estimate} cost {cost} takes {}", range(self.takes, &span))
    }
}

/// How a gateway spends a budget of which it learns the costs late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum BudgetMethod {
    /// Reserves the estimate, and commits the cost at the end.
    Reserve,
    /// Charges the estimate, and refunds or records the difference at the end.
    RefundDifference,
    /// Looks whether anything is left, and charges the cost at the end.
    ChargeAfter,
}

impl BudgetMethod {
    /// All methods, in the order of reports.
    pub const ALL: [Self; 3] = [Self::Reserve, Self::RefundDifference, Self::ChargeAfter];

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reserve => "reserve and commit",
            Self::RefundDifference => "refund the difference",
            Self::ChargeAfter => "check before, charge after",
        }
    }
}

/// The calls of one candidate, if budgets are spent by one method.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct MethodReport {
    /// The method.
    pub method: BudgetMethod,
    /// Calls admitted.
    pub admitted: u64,
    /// Calls denied.
    pub denied: u64,
    /// The cost of all admitted calls.
    pub consumed: u64,
    /// For each limit the most that calls of one key cost whose end is in one window; 0 for a
    /// `concurrency` limit.
    pub worst: Vec<u64>,
}

/// One request with its random numbers.
#[derive(Clone, Copy)]
struct SimulatedCall {
    estimate: Cost,
    cost: Cost,
    takes: Micros,
}

impl CallProfile {
    /// Runs the requests under one candidate by every method. They are the same for all candidates.
    pub(super) fn run(
        &self,
        candidate: &Candidate,
        arrivals: &[Arrival],
        keys: usize,
        seed: u64,
    ) -> Vec<MethodReport> {
        // Not the numbers that have chosen the arrivals.
        let mut rng = Rng::new(seed ^ 0x5bd1_e995_9d1b_54a5);
        let mut between = |(from, to): (u64, u64)| from + rng.below(to - from + 1);
        let calls: Vec<SimulatedCall> = arrivals
            .iter()
            .map(|_| SimulatedCall {
                estimate: Cost::total(between(self.estimate)),
                cost: Cost::total(between(self.cost)),
                takes: Micros::new(between(self.takes)),
            })
            .collect();
        BudgetMethod::ALL
            .map(|method| MethodRun::new(method, candidate, keys).run(arrivals, &calls))
            .into()
    }
}

/// The state of all limits while one method is simulated.
struct MethodRun {
    method: BudgetMethod,
    limits: Vec<LimitBudget>,
}

/// One limit with the state of every key.
struct LimitBudget {
    rule: Arc<RuleLimit>,
    keys: Vec<(Option<State>, Holds)>,
    consumed: Vec<(AdmittedAt, u64)>,
}

impl MethodRun {
    fn new(method: BudgetMethod, candidate: &Candidate, keys: usize) -> Self {
        let limits = candidate.rule().limits().iter().map(|rule| LimitBudget {
            rule: rule.clone(),
            keys: vec![(None, Holds::default()); keys],
            consumed: Vec::new(),
        });
        Self { method, limits: limits.collect() }
    }

    fn run(mut self, arrivals: &[Arrival], calls: &[SimulatedCall]) -> MethodReport {
        let mut report = MethodReport {
            method: self.method,
            admitted: 0,
            denied: 0,
            consumed: 0,
            worst: Vec::new(),
        };
        let mut ends: BinaryHeap<Reverse<(Micros, usize)>> = BinaryHeap::new();
        for (i, (arrival, call)) in arrivals.iter().zip(calls).enumerate() {
            while let Some(Reverse((at, ended))) = ends.peek().copied()
                && at <= arrival.at()
            {
                ends.pop();
                self.end(arrivals[ended].key(), &calls[ended], at);
            }
            if self.admit(arrival.key() as usize, call, arrival.at()) {
                report.admitted += 1;
                report.consumed += call.cost.get();
                ends.push(Reverse((arrival.at().saturating_add(call.takes), i)));
            } else {
                report.denied += 1;
            }
        }
        while let Some(Reverse((at, ended))) = ends.pop() {
            self.end(arrivals[ended].key(), &calls[ended], at);
        }
        report.worst = self.limits.iter_mut().map(LimitBudget::worst).collect();
        report
    }

    /// Takes what the call is expected to cost, if every limit allows it.
    fn admit(&mut self, key: usize, call: &SimulatedCall, at: Micros) -> bool {
        let (now, method) = (START.saturating_add(at), self.method);
        let allows = |limit: &LimitBudget| {
            let (state, holds) = &limit.keys[key];
            let moment = limit.rule.moment(now);
            let look = |cost| limit.rule.limit().look(state.as_ref(), holds, &moment, cost);
            match method {
                _ if limit.is_slot() => look(Cost::ONE).allowed,
                BudgetMethod::ChargeAfter => look(Cost::ZERO).remaining > 0,
                _ => look(call.estimate).allowed,
            }
        };
        let is_allowed = self.limits.iter().all(allows);
        for limit in self.limits.iter_mut().filter(|_| is_allowed) {
            match method {
                _ if limit.is_slot() => limit.hold(key, |held| held + 1),
                BudgetMethod::Reserve => limit.hold(key, |held| held + call.estimate.get()),
                BudgetMethod::RefundDifference => limit.charge(key, now, call.estimate),
                BudgetMethod::ChargeAfter => {}
            }
        }
        is_allowed
    }

    /// Charges what the call has cost.
    fn end(&mut self, key: u32, call: &SimulatedCall, at: Micros) {
        let (now, place) = (START.saturating_add(at), key as usize);
        let &SimulatedCall { estimate, cost, .. } = call;
        for limit in &mut self.limits {
            if limit.is_slot() {
                limit.hold(place, |held| held - 1);
                continue;
            }
            match self.method {
                BudgetMethod::Reserve => {
                    limit.hold(place, |held| held - estimate.get());
                    limit.charge(place, now, cost);
                }
                BudgetMethod::RefundDifference => {
                    limit.refund(place, now, estimate.saturating_sub(cost));
                    limit.charge(place, now, cost.saturating_sub(estimate));
                }
                BudgetMethod::ChargeAfter => limit.charge(place, now, cost),
            }
            limit.consumed.extend(AdmittedAt::new(key, at).map(|end| (end, cost.get())));
        }
    }
}

impl LimitBudget {
    fn is_slot(&self) -> bool {
        self.rule.limit().lease().is_some()
    }

    /// Changes what is held. All holds of a key are one that never expires: each call ends its own.
    fn hold(&mut self, key: usize, change: impl Fn(u64) -> u64) {
        let holds = &mut self.keys[key].1;
        let cost = Cost::total(change(holds.held()));
        holds.remove(0);
        if !cost.is_zero() {
            let (deadline, ttl) = (Micros::MAX, Micros::MAX);
            holds.insert(Hold { id: 0, cost, deadline, ttl, expiry: Expiry::Release });
        }
    }

    fn charge(&mut self, key: usize, now: Micros, cost: Cost) {
        self.rule.limit().charge(&mut self.keys[key].0, &self.rule.moment(now), cost, None);
    }

    fn refund(&mut self, key: usize, now: Micros, cost: Cost) {
        if !cost.is_zero() {
            self.rule.limit().refund(&mut self.keys[key].0, &self.rule.moment(now), cost);
        }
    }

    fn worst(&mut self) -> u64 {
        self.consumed.sort_unstable();
        most_consumed(&self.consumed, Guarantee::of(self.rule.limit(), Micros::ZERO).window)
    }
}
