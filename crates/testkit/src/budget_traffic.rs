//! Calls to a language model under a budget of tokens, and what they really consume: calls outlive
//! the window, estimates are wrong by up to ten times in both directions, callers die between
//! reserve and commit, and requests are sent again under their ids.

use std::time::Duration;

use tidegate::{HoldId, Limiter, ManualClock, Memory, Micros, Rule, Unit};
use tidegate_model::TraceRng;

use crate::bounds::families::GuaranteedBound;

/// The capacity of the budget.
pub const BUDGET: u64 = 1_000;
/// Its length in microseconds.
pub const WINDOW: u64 = 60_000_000;
/// Time between two calls in microseconds.
const STEP: u64 = 250_000;

/// How a gateway spends a budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GatewayKind {
    /// Looks whether anything is left, and records what was used at the end.
    CheckThenCharge,
    /// Charges the estimate, and refunds or records the difference at the end.
    RefundDifference,
    /// Reserves the estimate, and commits what was used.
    Hold,
    /// Reserves as much of the estimate as is left, at least a tenth, and calls the model with that
    /// bound.
    AtMost,
}

/// What a call really costs, compared with its estimate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Estimates {
    /// From a tenth of the estimate to all of it; of half of the calls, all of it.
    TooHigh,
    /// Ten times the estimate.
    TooLow,
    /// Either.
    Mixed,
}

impl Estimates {
    pub const ALL: [Self; 3] = [Self::TooHigh, Self::TooLow, Self::Mixed];

    /// The largest real cost over the estimate.
    pub fn factor(self) -> u64 {
        if self == Self::TooHigh { 1 } else { 10 }
    }

    fn real(self, estimate: u64, rng: &mut TraceRng) -> u64 {
        match self {
            Self::TooLow => estimate * 10,
            Self::Mixed if rng.one_in(2) => estimate * 10,
            Self::TooHigh | Self::Mixed if rng.one_in(2) => estimate,
            Self::TooHigh | Self::Mixed => rng.between(estimate.div_ceil(10), estimate),
        }
    }
}

/// Instants in microseconds and tokens of all consumption, sorted.
pub type ConsumptionLog = Vec<(u64, u64)>;

struct CallInFlight {
    id: Option<HoldId>,
    estimate: u64,
    real: u64,
    start: u64,
    end: u64,
    /// The caller dies before it reports anything.
    dies: bool,
}

/// A limiter in memory with one rule that counts tokens.
pub fn limiter_in_memory(clock: &ManualClock, limit: &str) -> Limiter {
    let memory = Memory::builder().clock(clock.clone()).build();
    Limiter::with_rules(memory, [tokens(limit)]).unwrap()
}

/// A rule that counts tokens.
pub fn tokens(limit: &str) -> Rule {
    Rule::new("tokens", [limit.parse().unwrap()]).unwrap().unit(Unit::Tokens)
}

/// Lets calls arrive for this many windows, and returns what they consume. Its clock starts at a
/// multiple of the window.
pub async fn consumption(
    limiter: &Limiter,
    clock: &ManualClock,
    (gateway, estimates): (GatewayKind, Estimates),
    windows: u64,
    seed: u64,
) -> ConsumptionLog {
    let begin = Micros::from_secs(1_700_000_040).get();
    clock.set(Micros::new(begin));
    let mut rng = TraceRng::new(seed);
    let (mut flying, mut log): (Vec<CallInFlight>, ConsumptionLog) = (Vec::new(), Vec::new());
    for now in (begin..begin + windows * WINDOW).step_by(usize::try_from(STEP).unwrap()) {
        clock.set(Micros::new(now));
        let (ended, rest): (Vec<_>, Vec<_>) = flying.into_iter().partition(|call| call.end <= now);
        flying = rest;
        for call in ended {
            // Consumed at any instants of the call: hostile ones, at its ends.
            let within = rng.between(call.start, call.end - 1);
            let [first, second] = [(); 2].map(|()| rng.pick(&[call.start, call.end - 1, within]));
            log.extend([(first, call.real / 2), (second, call.real.div_ceil(2))]);
            finish(gateway, limiter, &call, &mut rng).await;
        }
        let estimate = rng.between(20, 200);
        let mut real = estimates.real(estimate, &mut rng);
        let longest = rng.pick(&[WINDOW / 10, 3 * WINDOW]);
        let (length, dies) = (rng.between(STEP / 2, longest), rng.one_in(10));
        // Some calls last to their deadline, and their commits are late.
        let spare = if rng.one_in(5) { 0 } else { rng.between(STEP, WINDOW) };
        let ttl = Duration::from_micros(length + spare);
        let (is_granted, id) = match gateway {
            GatewayKind::CheckThenCharge => {
                (limiter.check("k").peek().await.unwrap().remaining() > 0, None)
            }
            GatewayKind::RefundDifference => {
                (limiter.check("k").cost(estimate).await.unwrap().allowed(), None)
            }
            GatewayKind::Hold | GatewayKind::AtMost => {
                let name = now.to_string();
                let reserve = async || {
                    let reserve = match gateway {
                        GatewayKind::AtMost => {
                            limiter.reserve_at_most("k", estimate.div_ceil(10)..=estimate)
                        }
                        _ => limiter.reserve("k", estimate),
                    };
                    let made = reserve.ttl(ttl).idempotency_key(&name).await.ok()?;
                    Some((made.granted().unwrap_or(estimate), made.keep()))
                };
                let made = reserve().await;
                if rng.one_in(5) {
                    assert_eq!(reserve().await, made, "a retry holds nothing more");
                }
                if let Some((granted, _)) = made {
                    real = real * granted / estimate;
                }
                (made.is_some(), made.map(|(_, id)| id))
            }
        };
        if is_granted {
            let (start, end) = (now, now + length);
            flying.push(CallInFlight { id, estimate, real, start, end, dies });
        }
    }
    // Calls in flight at the end have consumed at their start.
    log.extend(flying.iter().map(|call| (call.start, call.real)));
    log.sort_unstable();
    log
}

async fn finish(gateway: GatewayKind, limiter: &Limiter, call: &CallInFlight, rng: &mut TraceRng) {
    let &CallInFlight { id, estimate, real, dies, .. } = call;
    match (gateway, id) {
        _ if dies => {}
        (GatewayKind::Hold | GatewayKind::AtMost, Some(id)) => {
            for _ in 0..rng.between(1, 2) {
                limiter.reservation(id).commit(real).await.expect("a repeated commit is the same");
            }
        }
        (GatewayKind::RefundDifference, _) if real <= estimate => {
            limiter.refund("k", estimate - real).await.expect("memory decides");
        }
        (GatewayKind::RefundDifference, _) => {
            limiter.record("k", real - estimate).await.expect("memory decides");
        }
        _ => drop(limiter.record("k", real).await.expect("memory decides")),
    }
}

/// The bound of consumption if calls cost up to `factor` times what they hold: more tokens for each
/// permit, and, of a bucket, half of what goes beyond its debt of one more capacity.
fn bound_with_factor(bound: GuaranteedBound, factor: u64) -> GuaranteedBound {
    let more = (factor / 2).max(1);
    match bound {
        GuaranteedBound::Rate { count, period } => {
            GuaranteedBound::Rate { count: more * count, period }
        }
        GuaranteedBound::Steps { amount, every } => {
            GuaranteedBound::Steps { amount: more * amount, every }
        }
        GuaranteedBound::Window { times, less, length } => {
            GuaranteedBound::Window { times, less: if factor == 1 { less } else { 0 }, length }
        }
        GuaranteedBound::Aligned { length } => GuaranteedBound::Aligned { length },
    }
}

/// What a log shows.
#[derive(Clone, Copy, Default, Debug)]
pub struct Overshoot {
    /// Intervals from one consumption to another with more than the bound.
    pub violations: usize,
    /// The most tokens within one length of the window, in percent of the budget.
    pub worst: u64,
}

impl Overshoot {
    /// Judges every interval of a log.
    pub fn of(log: &[(u64, u64)], bound: GuaranteedBound, estimates: Estimates) -> Self {
        let (bound, factor) = (bound_with_factor(bound, estimates.factor()), estimates.factor());
        let longest = bound.max_interval().max(WINDOW);
        let mut found = Self::default();
        for (i, &(start, _)) in log.iter().enumerate() {
            let mut sum = 0;
            for &(end, tokens) in log[i..].iter().take_while(|(end, _)| end - start <= longest) {
                sum += tokens;
                let is_allowed = bound.allows(sum, factor * BUDGET, (start, end), 0);
                found.violations += usize::from(!is_allowed);
                if end - start < WINDOW {
                    found.worst = found.worst.max(sum * 100 / BUDGET);
                }
            }
        }
        found
    }

    /// This and another log together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let violations = self.violations + other.violations;
        Self { violations, worst: self.worst.max(other.worst) }
    }
}
