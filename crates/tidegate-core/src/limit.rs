//! A limit, and the steps of a decision: check every rule, then charge all of them or none.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use crate::algorithm_params::AlgorithmParams;
use crate::arithmetic::Arithmetic;
use crate::builder::LimitBuilder;
use crate::forecast::Forecast;
use crate::sliding_log::{Log, SlidingLog};
use crate::state::Kind;
use crate::{Algorithm, Cost, Holds, Micros, Moment, Span, State, Tick, Verdict, Wait};

/// A limit: how much may pass, and how it is counted.
///
/// Parse one from the notation (`"100/s burst 20".parse()`) or build one ([`Limit::per_second`] and
/// others). It has no clock and no storage: state, holds and the instant are arguments.
///
/// ```
/// use tidegate_core::{Cost, Holds, Limit, Micros, Moment};
///
/// let limit: Limit = "5/m".parse()?;
/// let now = Moment::new(Micros::from_secs(1_700_000_000));
/// let mut state = None;
/// let verdict = limit.look(state.as_ref(), Holds::NONE, &now, Cost::ONE);
/// if verdict.allowed {
///     limit.charge(&mut state, &now, Cost::ONE, None);
/// }
/// assert_eq!(limit.standing(state.as_ref(), Holds::NONE, &now).remaining, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limit {
    pub(crate) builder: LimitBuilder,
    pub(crate) params: AlgorithmParams,
}

/// Evaluates an expression with the algorithm of a limit.
macro_rules! with {
    ($params:expr, $algorithm:ident => $call:expr) => {
        match $params {
            AlgorithmParams::Bucket($algorithm) => $call,
            AlgorithmParams::Steps($algorithm) => $call,
            AlgorithmParams::Fixed($algorithm) => $call,
            AlgorithmParams::Logged($algorithm) => $call,
            AlgorithmParams::Approximate($algorithm) => $call,
            AlgorithmParams::Concurrency($algorithm) => $call,
        }
    };
}

/// The usage of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Consumption, rounded up; above the limit's capacity in debt.
    pub used: u64,
    /// Permits held and not yet charged.
    pub held: u64,
    /// What is left, rounded down.
    pub remaining: u64,
    /// Time until the limit is fully recovered.
    pub reset_after: Micros,
}

/// After `after`, `fits` permits are available, if no request comes in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecoveryPoint {
    /// Time from now; never if only a release of a hold can free the permits.
    pub after: Wait,
    /// Permits that are available then.
    pub fits: u64,
}

impl RecoveryPoint {
    /// The largest number of points of one key.
    pub const MAX: usize = 32;
}

impl Limit {
    /// The largest count of a `sliding-log`, which stores every request.
    pub const MAX_LOG: u64 = 1_000_000;
    /// The largest number of sub-windows of a `sliding-window`.
    pub const MAX_SUB_WINDOWS: u64 = 1_000;

    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.builder.algorithm
    }

    /// The most that fits at once: burst or capacity of a bucket, count of a window, slots of
    /// `concurrency`.
    pub fn capacity(&self) -> u64 {
        match &self.params {
            AlgorithmParams::Bucket(bucket) => bucket.size,
            AlgorithmParams::Steps(steps) => steps.size,
            AlgorithmParams::Fixed(fixed) => fixed.limit,
            AlgorithmParams::Logged(logged) => logged.limit,
            AlgorithmParams::Approximate(approximate) => approximate.limit,
            AlgorithmParams::Concurrency(concurrency) => concurrency.limit,
        }
    }

    /// How long an exhausted limit takes to recover fully: the length of a window, the time to
    /// refill a bucket. `None` if that is not a fixed and whole number of microseconds, as for a
    /// month, or if time does not recover it: `concurrency`, a limit of 0.
    pub fn recovery(&self) -> Option<Micros> {
        if self.capacity() == 0 {
            return None;
        }
        let span = self.builder.span.length()?;
        match &self.params {
            AlgorithmParams::Bucket(bucket) => {
                let count = u128::from(self.builder.count);
                let product = u128::from(bucket.size) * u128::from(span.get());
                product.is_multiple_of(count).then(|| Micros::saturating_from(product / count))
            }
            AlgorithmParams::Steps(steps) => {
                let count = steps.size.div_ceil(steps.amount);
                Some(Micros::saturating_from(u128::from(count) * u128::from(steps.every)))
            }
            AlgorithmParams::Concurrency(_) => None,
            AlgorithmParams::Fixed(_)
            | AlgorithmParams::Logged(_)
            | AlgorithmParams::Approximate(_) => Some(span),
        }
    }

    /// The span of the count; for `concurrency` the default lease.
    pub fn span(&self) -> Span {
        self.builder.span
    }

    /// The resolution of waits.
    pub fn tick(&self) -> Tick {
        match &self.params {
            AlgorithmParams::Bucket(bucket) => bucket.tick,
            AlgorithmParams::Approximate(approximate) => approximate.tick,
            _ => Tick::Micro,
        }
    }

    /// How long a slot is held without a renewal; `None` except for `concurrency`.
    pub fn lease(&self) -> Option<Micros> {
        match &self.params {
            AlgorithmParams::Concurrency(concurrency) => Some(concurrency.lease),
            _ => None,
        }
    }

    /// Does it delay requests that it allows?
    pub fn is_queue(&self) -> bool {
        matches!(&self.params, AlgorithmParams::Bucket(bucket) if bucket.queue)
    }

    /// Does its state consist of a log of entries?
    pub fn is_log(&self) -> bool {
        matches!(self.params, AlgorithmParams::Logged(_))
    }

    /// Would `cost` be allowed now? Reads only. A cost of zero peeks.
    ///
    /// `remaining` and `reset_after` describe the state before any charge.
    pub fn look(&self, state: Option<&State>, holds: &Holds, at: &Moment, cost: Cost) -> Verdict {
        Forecast::new(self, state, holds, at).look(cost)
    }

    /// The verdict for a call under another limit of this `capacity`, whose calls share the state:
    /// what is used under this limit must leave room in that capacity, and recovers as this limit
    /// says until the other one has charged.
    pub fn look_within(
        &self,
        capacity: u64,
        state: Option<&State>,
        holds: &Holds,
        at: &Moment,
        cost: Cost,
    ) -> Verdict {
        Forecast::new(self, state, holds, at).within(capacity).look(cost)
    }

    /// How long a charge made now would be delayed; only a queue delays.
    pub fn turn_after(&self, state: Option<&State>, holds: &Holds, at: &Moment) -> Micros {
        Forecast::new(self, state, holds, at).delay()
    }

    /// The usage of the key. Reads only.
    pub fn standing(&self, state: Option<&State>, holds: &Holds, at: &Moment) -> Standing {
        Forecast::new(self, state, holds, at).standing()
    }

    /// The usage of the key, and how it recovers, for calls as in
    /// [`look_within`](Self::look_within).
    pub fn standing_within(
        &self,
        capacity: u64,
        state: Option<&State>,
        holds: &Holds,
        at: &Moment,
    ) -> (Standing, Vec<RecoveryPoint>) {
        let forecast = Forecast::new(self, state, holds, at).within(capacity);
        (forecast.standing(), forecast.recovery())
    }

    /// How the key recovers without further requests, soonest first; empty if nothing is used. Each
    /// point has all permits that fit then. Small steps are left out, not moved.
    pub fn recovery_points(
        &self,
        state: Option<&State>,
        holds: &Holds,
        at: &Moment,
    ) -> Vec<RecoveryPoint> {
        Forecast::new(self, state, holds, at).recovery()
    }

    /// The live charges of a `sliding-log`, oldest first: the caller, if it was given, and the
    /// permits. Other algorithms store no entries.
    pub fn entries<'a>(
        &self,
        state: Option<&'a State>,
        at: &Moment,
    ) -> impl Iterator<Item = (Option<&'a str>, u64)> + use<'a> {
        let entries = match (&self.params, state.map(|state| &state.0)) {
            (AlgorithmParams::Logged(logged), Some(Kind::Log(log))) => {
                Some(logged.entries(log, at))
            }
            _ => None,
        };
        entries.into_iter().flatten()
    }

    /// Bytes that the next charge may allocate on the heap.
    pub fn growth(&self, state: Option<&State>, who: Option<&str>) -> usize {
        let who = who.filter(|_| self.algorithm() == Algorithm::SlidingLog);
        match (&self.params, state.map(|state| &state.0)) {
            (AlgorithmParams::Logged(_), Some(Kind::Log(log))) => log.growth(who),
            (AlgorithmParams::Logged(_), _) => Log::default().growth(who),
            _ => 0,
        }
    }

    /// Halves a log by merging neighbouring entries at the instant of the later one: it recovers
    /// later than it would have, never earlier. `false` if there is nothing to merge.
    pub fn compact(&self, state: &mut Option<State>, at: &Moment) -> bool {
        self.rebase_state(state, at);
        let (AlgorithmParams::Logged(logged), Some(State(Kind::Log(_)))) = (&self.params, &state)
        else {
            return false;
        };
        let mut log = state.take().and_then(SlidingLog::take);
        let halved = logged.compact(&mut log, at);
        *state = log.map(SlidingLog::wrap);
        halved
    }

    /// Charges `cost`, whether or not it fits: consumption may reach twice the capacity, a debt of
    /// one more limit. Only a `sliding-log` stores `who`.
    pub fn charge(&self, state: &mut Option<State>, at: &Moment, cost: Cost, who: Option<&str>) {
        if cost.is_zero() || self.capacity() == 0 {
            return;
        }
        self.rebase_state(state, at);
        let who = who.filter(|_| self.algorithm() == Algorithm::SlidingLog);
        *state = with!(&self.params, a => charged(a, state.take(), at, cost.get(), who));
    }

    /// Refunds at most `cost` of the present consumption, the oldest first, and returns how much
    /// was refunded. A queue refunds only its latest charge.
    pub fn refund(&self, state: &mut Option<State>, at: &Moment, cost: Cost) -> Cost {
        self.rebase_state(state, at);
        let Some(old) = state.take() else { return Cost::ZERO };
        let (left, given) = with!(&self.params, a => refunded(a, old, at, cost.get()));
        *state = left;
        Cost::total(given)
    }

    /// Converts a state of `old`, the limit before this one: consumption is brought to now at the
    /// old rate, rounded up, and at most the capacity of this limit.
    ///
    /// `old_at` and `at` are the same instant; they differ if the two limits use different zones.
    pub fn carry(&self, old: &Self, old_at: &Moment, state: State, at: &Moment) -> Option<State> {
        let mut state = Some(state);
        old.rebase_state(&mut state, old_at);
        let state = state?;
        let used = old.standing(Some(&state), Holds::NONE, old_at).used.min(self.capacity());
        if used == 0 {
            return None;
        }
        let kind = match (&old.params, &self.params, state.0) {
            (AlgorithmParams::Bucket(old), AlgorithmParams::Bucket(new), Kind::Level(level)) => {
                new.carry(old, &level, at).map(Kind::Level)
            }
            (AlgorithmParams::Logged(old), AlgorithmParams::Logged(new), Kind::Log(log)) => {
                new.carry(old, log, at).map(Kind::Log)
            }
            (AlgorithmParams::Fixed(old), AlgorithmParams::Fixed(new), Kind::Count(count)) => {
                Some(Kind::Count(new.carry(old, &count, at, used)))
            }
            (
                AlgorithmParams::Approximate(old),
                AlgorithmParams::Approximate(new),
                Kind::Pair(pair),
            ) if new.carry(old, &pair, at).is_some() => {
                new.carry(old, &pair, at).flatten().map(Kind::Pair)
            }
            _ => {
                let mut fresh = None;
                self.charge(&mut fresh, at, Cost::total(used), None);
                return fresh;
            }
        };
        kind.map(State)
    }

    /// Was the state written, or a hold granted, after this moment? If so, the clock has stepped
    /// back, and [`Limit::rebase`] has to be called, even if the request is denied: recovery then
    /// starts from the present.
    pub fn is_ahead(&self, state: Option<&State>, holds: &Holds, at: &Moment) -> bool {
        holds.ahead(at.now()) || state.is_some_and(|s| with!(&self.params, a => is_ahead(a, s, at)))
    }

    /// Moves state and holds that are ahead of the clock to now. Consumption is kept.
    pub fn rebase(&self, state: &mut Option<State>, holds: &mut Holds, at: &Moment) {
        self.rebase_state(state, at);
        if holds.ahead(at.now()) {
            holds.rebase(at.now());
        }
    }

    /// Drops expired holds, charging those that are charged at their deadline, and drops a state
    /// without consumption. Call it before every write.
    pub fn expire(&self, state: &mut Option<State>, holds: &mut Holds, at: &Moment) {
        self.rebase(state, holds, at);
        for end in holds.take_ended(at.now()) {
            self.charge(state, &at.moved_to(end.deadline), Cost::total(end.charged), None);
        }
        state.take_if(|state| self.used(state, at) == 0);
    }

    fn rebase_state(&self, state: &mut Option<State>, at: &Moment) {
        if let Some(ahead) = state.take_if(|s| with!(&self.params, a => is_ahead(a, s, at))) {
            *state = with!(&self.params, a => rebased(a, ahead, at));
        }
    }

    pub(crate) fn rebased<'a>(
        &self,
        state: Option<&'a State>,
        at: &Moment,
    ) -> Option<Cow<'a, State>> {
        let state = state?;
        if with!(&self.params, a => is_ahead(a, state, at)) {
            let mut copy = Some(state.clone());
            self.rebase_state(&mut copy, at);
            return copy.map(Cow::Owned);
        }
        Some(Cow::Borrowed(state))
    }

    pub(crate) fn used(&self, state: &State, at: &Moment) -> u64 {
        with!(&self.params, a => read(a, state, 0, |a, s| a.used(s, at)))
    }

    pub(crate) fn wait(&self, state: &State, at: &Moment, target: u64) -> Micros {
        with!(&self.params, a => read(a, state, Micros::ZERO, |a, s| a.wait(s, at, target)))
    }

    pub(crate) fn reset_after(&self, state: &State, at: &Moment) -> Micros {
        with!(&self.params, a => read(a, state, Micros::ZERO, |a, s| a.reset_after(s, at)))
    }

    pub(crate) fn delay(&self, state: &State, at: &Moment) -> Micros {
        with!(&self.params, a => read(a, state, Micros::ZERO, |a, s| a.delay(s, at)))
    }
}

/// Limits are equal if they have the same meaning, however they were written.
impl PartialEq for Limit {
    fn eq(&self, other: &Self) -> bool {
        self.builder == other.builder
    }
}

impl Eq for Limit {}

impl core::hash::Hash for Limit {
    fn hash<H: core::hash::Hasher>(&self, hasher: &mut H) {
        self.builder.hash(hasher);
    }
}

fn read<A: Arithmetic, T>(
    algorithm: &A,
    state: &State,
    unused: T,
    f: impl FnOnce(&A, &A::State) -> T,
) -> T {
    A::read(state).map_or(unused, |state| f(algorithm, state))
}

fn charged<A: Arithmetic>(
    algorithm: &A,
    state: Option<State>,
    at: &Moment,
    permits: u64,
    who: Option<&str>,
) -> Option<State> {
    algorithm.charge(state.and_then(A::take), at, permits, who).map(A::wrap)
}

fn refunded<A: Arithmetic>(
    algorithm: &A,
    state: State,
    at: &Moment,
    permits: u64,
) -> (Option<State>, u64) {
    let Some(state) = A::take(state) else { return (None, 0) };
    let (left, given) = algorithm.refund(state, at, permits);
    (left.map(A::wrap), given)
}

fn is_ahead<A: Arithmetic>(algorithm: &A, state: &State, at: &Moment) -> bool {
    A::read(state).is_some_and(|state| algorithm.ahead(state, at))
}

fn rebased<A: Arithmetic>(algorithm: &A, state: State, at: &Moment) -> Option<State> {
    let mut state = A::take(state)?;
    algorithm.rebase(&mut state, at);
    Some(A::wrap(state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_algorithms_state_counts_as_none() {
        let (bucket, log): (Limit, Limit) =
            ("10/s".parse().unwrap(), "sliding-log 10/s".parse().unwrap());
        let now = Moment::new(Micros::from_secs(1));
        let mut state = None;
        log.charge(&mut state, &now, Cost::ONE, None);
        let standing = bucket.standing(state.as_ref(), Holds::NONE, &now);
        assert_eq!(
            (standing.used, standing.remaining, standing.reset_after),
            (0, 10, Micros::ZERO)
        );
        assert_eq!(bucket.refund(&mut state, &now, Cost::ONE), Cost::ZERO);
        assert_eq!(state, None);
        assert_eq!(bucket.growth(None, Some("caller-1")), 0);
        assert!(log.growth(None, Some("caller-1")) >= 8);
        let windows: Limit = "sliding-window 10/s".parse().unwrap();
        let unnamed = windows.growth(None, None);
        assert_eq!(windows.growth(None, Some("caller-1")), unnamed, "only a log keeps names");
    }

    #[test]
    fn a_full_refund_leaves_no_state() {
        for limit in [
            "5/s",
            "5/s every 1s",
            "leaky-bucket 5/s queue",
            "fixed-window 5/s",
            "sliding-log 5/s",
            "sliding-window 5/s",
            "sliding-window 5/s approximate",
        ] {
            let parsed: Limit = limit.parse().unwrap();
            let now = Moment::new(Micros::from_secs(1));
            let mut state = None;
            parsed.charge(&mut state, &now, Cost::total(3), None);
            assert_eq!(parsed.refund(&mut state, &now, Cost::total(3)), Cost::total(3), "{limit}");
            assert_eq!(state, None, "{limit}");
        }
    }

    #[test]
    fn recovery_is_a_windows_length_or_the_time_a_bucket_takes_to_refill() {
        for (limit, micros) in [
            ("100/s", Some(1_000_000)),
            ("1/s", Some(1_000_000)),
            ("100/s burst 20", Some(200_000)),
            ("10/s burst 15", Some(1_500_000)),
            ("3/s burst 10", None),
            ("3/s burst 9", Some(3_000_000)),
            ("leaky-bucket 10/s capacity 30", Some(3_000_000)),
            ("leaky-bucket 10/s capacity 30 queue", Some(3_000_000)),
            ("1/36500d burst 100", Some(Micros::MAX.get())),
            ("token-bucket 10/s burst 50 every 1s", Some(5_000_000)),
            ("token-bucket 20/s burst 50 every 1s", Some(3_000_000)),
            ("fixed-window 100/60s first-hit", Some(60_000_000)),
            ("fixed-window 100/90s", Some(90_000_000)),
            ("fixed-window 100/d", Some(86_400_000_000)),
            ("fixed-window 100/d tz Asia/Shanghai", Some(86_400_000_000)),
            ("fixed-window 100/w", Some(604_800_000_000)),
            ("fixed-window 100/month", None),
            ("sliding-log 5/1m", Some(60_000_000)),
            ("sliding-window 240/1h precision 1m", Some(3_600_000_000)),
            ("sliding-window 240/1h approximate", Some(3_600_000_000)),
            ("concurrency 20 lease 30s", None),
            ("0/s", None),
            ("fixed-window 0/d", None),
            ("token-bucket 0/s every 1s", None),
        ] {
            let parsed: Limit = limit.parse().unwrap();
            assert_eq!(parsed.recovery(), micros.map(Micros::new), "{limit}");
        }
    }

    #[test]
    fn the_finest_precision_is_named_where_one_is_too_fine() {
        for (limit, finest) in [
            ("sliding-window 10/1s precision 1us", 1_000),
            ("sliding-window 10/1001us precision 1us", 2),
            ("sliding-window 10/1s precision 999us", 1_000),
        ] {
            let refused = limit.parse::<Limit>().unwrap_err().invalid();
            assert_eq!(refused, Some(crate::InvalidLimit::PrecisionTooFine { finest }), "{limit}");
        }
        assert!("sliding-window 10/1s precision 1ms".parse::<Limit>().is_ok());
    }

    #[test]
    fn a_zone_is_a_name_of_at_most_64_characters() {
        let zone = |zone: &str| Limit::fixed_window(1, crate::Span::DAY).tz(zone).build().is_ok();
        let long = "Z".repeat(64);
        assert!(zone("Europe/Berlin") && zone("Etc/GMT+1") && zone("a_b-c") && zone(&long));
        for bad in ["", "1", "/", "-Zone", "Zone!", "Zo ne", "Zöne", &(long + "Z")] {
            assert!(!zone(bad), "{bad:?}");
        }
    }
}
