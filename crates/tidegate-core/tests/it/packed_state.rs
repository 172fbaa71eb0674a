//! Packed states and the one-step decision, compared with `look` and `charge`.
//!
//! Every limit that packs runs random traces twice: once by `decide` on two numbers, once by
//! `look`, `charge` and another `look` at a state that is never packed. `TIDEGATE_LONG=1` runs
//! longer traces.

use std::collections::BTreeMap;

use tidegate_core::{Cost, Holds, Limit, Micros, Moment, Packed, State, Verdict, Wait};
use tidegate_model::{BucketKind, MAX, Spec, TraceRng, WindowKind, print_line, run_size};

/// Some years. Zoned data after the last of them are unknown.
const YEARS: u64 = 1_000 * 86_400_000_000;

#[test]
fn one_step_on_two_numbers_decides_as_look_and_charge_do() {
    let wanted = run_size(5_000, 100_000, 10_000_000);
    let kinds = kinds_that_pack();
    let mut counts: BTreeMap<&str, Count> =
        kinds.iter().map(|kind| (*kind, <_>::default())).collect();
    let mut seed = 0;
    while counts.values().any(|count| count.decisions < wanted) {
        seed += 1;
        let mut rng = TraceRng::new(seed);
        let spec = draw(&mut rng);
        match counts.get_mut(spec.name()) {
            Some(count) if count.decisions < wanted => Trace::new(rng, spec, seed).follow(count),
            Some(_) => {}
            None => assert!(!spec.limit().unwrap().packs(), "{spec:?}"),
        }
    }
    for (kind, Count { decisions, denied, steps_back, unpackable, plain }) in &counts {
        print_line(&format!(
            "packed = look and charge: {kind}: {decisions} decisions, {denied} denials, \
             {steps_back} steps back, {unpackable} unpackable, {plain} also decided by the fast path, \
             0 mismatches"
        ));
        assert!(
            *denied > decisions / 100 && *steps_back > decisions / 100,
            "{kind} is not covered enough"
        );
    }
    let buckets = ["token-bucket", "leaky-bucket"].map(|kind| &counts[kind]);
    assert!(buckets.iter().all(|count| count.plain > count.decisions / 4), "{buckets:?}");
    let approximate = counts.remove("sliding-window approximate").unwrap();
    assert!(approximate.unpackable > 0, "no count was too large");
    assert!(counts.values().all(|count| count.unpackable == 0), "{counts:?}");
}

#[test]
fn a_state_of_more_than_two_numbers_does_not_pack() {
    let limits =
        ["leaky-bucket 5/s queue", "sliding-log 5/s", "sliding-window 5/s", "concurrency 5"];
    for notation in limits {
        let limit: Limit = notation.parse().unwrap();
        let at = Moment::new(Micros::from_secs(1));
        let mut state = None;
        limit.charge(&mut state, &at, Cost::ONE, None);
        assert!(!limit.packs(), "{notation}");
        assert!(state.is_none_or(|state| limit.pack(&state).is_none()), "{notation}");
        assert_eq!(limit.decide(None, &at, Cost::ONE), None, "{notation}");
        let zeroes = Packed::new([0, 0]).unwrap();
        assert_eq!(limit.unpack(zeroes), None, "{notation}");
        assert_eq!(limit.decide(Some(zeroes), &at, Cost::ZERO), None, "{notation}");
    }
}

#[test]
fn a_state_of_another_algorithm_is_not_packed() {
    let limits = ["5/s", "5/s every 1s", "fixed-window 5/s", "sliding-window 5/s approximate"];
    let limits = limits.map(|notation| notation.parse::<Limit>().unwrap());
    let at = Moment::new(Micros::from_secs(1));
    for (i, one) in limits.iter().enumerate() {
        let mut state = None;
        one.charge(&mut state, &at, Cost::ONE, None);
        for (j, other) in limits.iter().enumerate() {
            assert_eq!(other.pack(state.as_ref().unwrap()).is_some(), i == j, "{one} by {other}");
        }
    }
}

#[test]
fn numbers_have_53_bits() {
    let max = (1 << Packed::BITS) - 1;
    assert_eq!(Packed::new([max, max]).unwrap().numbers(), [max, max]);
    assert_eq!(Packed::new([max + 1, 0]), None);
    assert_eq!(Packed::new([0, max + 1]), None);
    // The last instant and the largest debt fit.
    assert_eq!(i128::from(max), MAX);
}

#[test]
fn an_approximate_count_packs_below_2_to_the_26() {
    let limit: Limit = "sliding-window 1000000000/s approximate".parse().unwrap();
    let second = |n: u64| Moment::new(Micros::from_secs(n));
    let max = (1 << 26) - 1;
    let (verdict, full) = limit.decide(None, &second(1), cost(max)).unwrap();
    assert!(verdict.allowed);
    assert_eq!(limit.decide(None, &second(1), cost(max + 1)), None);
    // In the current window, then in the previous one, then gone.
    assert_eq!(limit.decide(full, &second(1), Cost::ONE), None);
    assert!(limit.decide(full, &second(1), Cost::ZERO).is_some());
    let (_, both) = limit.decide(full, &second(2), cost(max)).unwrap();
    assert_eq!(limit.decide(both, &second(2), Cost::ONE), None);
    assert!(limit.decide(both, &second(3), cost(max)).is_some());
    // After a step back both counts are merged, which is too large even if nothing is charged.
    assert_eq!(limit.decide(both, &second(1), Cost::ZERO), None);
    assert_eq!(limit.decide(both, &second(1), Cost::MAX), None);
}

#[derive(Default, Debug)]
struct Count {
    decisions: u64,
    denied: u64,
    steps_back: u64,
    unpackable: u64,
    /// Also decided by `decide_plainly`.
    plain: u64,
}

/// One limit on one key, kept packed and unpacked.
struct Trace {
    rng: TraceRng,
    seed: u64,
    spec: Spec,
    limit: Limit,
    now: u64,
    last_instant: u64,
    /// Never packed.
    state: Option<State>,
    /// `None` while the state does not fit.
    packed: Option<Option<Packed>>,
}

impl Trace {
    fn new(mut rng: TraceRng, spec: Spec, seed: u64) -> Self {
        let limit = spec.limit().unwrap();
        assert!(limit.packs(), "{limit}");
        let end = MAX as u64;
        let last_instant = if spec.zone().is_some() { end - YEARS } else { end };
        let now = match rng.below(20) {
            0 => 0,
            1 => rng.magnitude(1 << 20),
            2 => last_instant - rng.magnitude(last_instant),
            _ => 1_700_000_000_000_000 + rng.below(YEARS),
        };
        Self { rng, seed, spec, limit, now, last_instant, state: None, packed: Some(None) }
    }

    fn follow(mut self, count: &mut Count) {
        let mut next_change = Micros::ZERO;
        for _ in 0..self.rng.between(20, 100) {
            count.steps_back += u64::from(self.move_time(next_change));
            let at = self.spec.moment(self.now);
            if self.rng.one_in(8) {
                self.write(&at);
            }
            let verdict = self.decide(&at, count);
            count.denied += u64::from(!verdict.allowed);
            next_change = match verdict.retry_after {
                Wait::For(wait) if wait > Micros::ZERO => wait,
                _ => verdict.reset_after,
            };
        }
    }

    /// Makes one decision in both ways and compares them.
    fn decide(&mut self, at: &Moment, count: &mut Count) -> Verdict {
        let cost = self.cost(at);
        let expected = look_and_charge(&self.limit, &mut self.state, at, cost);
        let Some(before) = self.packed else {
            self.packed = self.pack();
            return expected;
        };
        let decided = self.limit.decide(before, at, cost);
        self.packed = self.pack();
        count.decisions += 1;
        count.unpackable += u64::from(decided.is_none());
        let expects = self.packed.map(|packed| (expected, packed));
        assert_eq!(decided, expects, "cost {cost:?} on {before:?} at {at:?}: {self:?}");
        let plainly = before.and_then(|state| self.limit.decide_plainly(state, at.now(), cost));
        if let Some((verdict, left)) = plainly {
            count.plain += 1;
            assert!(
                verdict.reset_after > Micros::ZERO,
                "{cost:?} on {before:?} at {at:?}: {self:?}"
            );
            let plainly = Some((verdict, Some(left)));
            assert_eq!(plainly, decided, "plainly, {cost:?} on {before:?} at {at:?}: {self:?}");
        }
        expected
    }

    /// Other writes of an engine: it unpacks the state, changes it and packs it again.
    fn write(&mut self, at: &Moment) {
        let cost = self.cost(at);
        let mut unpacked = match self.packed {
            Some(packed) => packed.map(|packed| self.limit.unpack(packed).unwrap()),
            None => self.state.clone(),
        };
        let (records, resets) = (self.rng.one_in(2), self.rng.one_in(10));
        let refunded = [&mut self.state, &mut unpacked].map(|state| {
            self.limit.expire(state, &mut Holds::default(), at);
            match (resets, records) {
                (true, _) => state.take().map_or(Cost::ZERO, |_| Cost::ONE),
                (_, true) => {
                    self.limit.charge(state, at, cost, None);
                    Cost::ZERO
                }
                _ => self.limit.refund(state, at, cost),
            }
        });
        assert_eq!(refunded[0], refunded[1], "refunded at {at:?}: {self:?}");
        let look =
            |state: &Option<State>| self.limit.look(state.as_ref(), Holds::NONE, at, Cost::ZERO);
        assert_eq!(look(&self.state), look(&unpacked), "at {at:?}: {self:?}");
        self.packed = self.pack();
        let again = pack(&self.limit, unpacked.as_ref());
        assert_eq!(again, self.packed, "what was unpacked at {at:?}: {self:?}");
    }

    /// The state as two numbers, which survive an unpack and pack.
    fn pack(&self) -> Option<Option<Packed>> {
        let packed = pack(&self.limit, self.state.as_ref());
        if let Some(Some(packed)) = packed {
            let state = self.limit.unpack(packed).unwrap();
            assert_eq!(self.limit.pack(&state), Some(packed), "{self:?}");
        }
        packed
    }

    /// Moves the clock, mostly to an instant at which the state changes. Returns whether it stepped
    /// back.
    fn move_time(&mut self, next_change: Micros) -> bool {
        let rng = &mut self.rng;
        let tick = self.limit.tick().span().get();
        let scale = self.limit.recovery().map_or(YEARS, Micros::get).max(1);
        if rng.one_in(10) {
            let step = match rng.below(4) {
                0 => rng.between(1, 2 * tick + 2),
                1 | 2 => rng.magnitude(2 * scale),
                _ => rng.magnitude(self.now),
            };
            let before = self.now;
            self.now = before.saturating_sub(step);
            return self.now < before;
        }
        let to = match rng.below(16) {
            0..=5 => self.now,
            6 => self.now + 1,
            7 => self.now + rng.around(tick),
            8..=11 => rng.around(self.now.saturating_add(next_change.get())),
            12 => rng.around(self.spec.window_end(self.now).map_or(0, |end| end as u64)),
            13 => self.now.saturating_add(rng.magnitude(16 * scale)),
            _ => self.now.saturating_add(rng.magnitude(scale)),
        };
        self.now = to.clamp(self.now.min(self.last_instant), self.last_instant);
        false
    }

    fn cost(&mut self, at: &Moment) -> Cost {
        let rng = &mut self.rng;
        let capacity = self.limit.capacity();
        let left = self.limit.standing(self.state.as_ref(), Holds::NONE, at).remaining;
        cost(match rng.below(12) {
            0 | 1 => 0,
            2..=4 => 1,
            5 | 6 => rng.around(left),
            7 => rng.around(capacity),
            8 => rng.magnitude(capacity.max(1)),
            9 => rng.magnitude(Cost::MAX.get()),
            10 => Cost::MAX.get(),
            _ => rng.between(1, 5),
        })
    }
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, limit, state, .. } = self;
        write!(f, "seed {seed}: {limit} with {state:?}")
    }
}

/// The steps that `decide` combines. The state is rebased even if the request is denied.
fn look_and_charge(limit: &Limit, state: &mut Option<State>, at: &Moment, cost: Cost) -> Verdict {
    let before = limit.look(state.as_ref(), Holds::NONE, at, cost);
    limit.rebase(state, &mut Holds::default(), at);
    if before.allowed && !cost.is_zero() {
        limit.expire(state, &mut Holds::default(), at);
        limit.charge(state, at, cost, None);
    }
    let after = limit.look(state.as_ref(), Holds::NONE, at, Cost::ZERO);
    Verdict { remaining: after.remaining, reset_after: after.reset_after, ..before }
}

fn pack(limit: &Limit, state: Option<&State>) -> Option<Option<Packed>> {
    match state {
        Some(state) => limit.pack(state).map(Some),
        None => Some(None),
    }
}

/// A valid limit. Approximate windows are more frequent than elsewhere, because only some of them
/// reach large counts.
fn draw(rng: &mut TraceRng) -> Spec {
    if rng.one_in(16) {
        let window = rng.between(1, 1_000);
        let count = (1 << rng.between(24, 40)) + rng.below(3) - 1;
        return Spec::Approximate { count, window };
    }
    Spec::draw_good(rng)
}

fn kinds_that_pack() -> Vec<&'static str> {
    let (count, period) = (1, 1);
    let zone = tidegate_model::TestZone { page: 1, seed: 0 };
    let day = tidegate_core::CalendarUnit::Day;
    let windows = [
        WindowKind::Aligned(1),
        WindowKind::FirstHit(1),
        WindowKind::Calendar(day),
        WindowKind::Zoned(day, zone),
    ];
    let windows = windows.map(|window| Spec::Fixed { count, window });
    let kinds = [
        Spec::Bucket { kind: BucketKind::Token, count, period, size: None },
        Spec::Bucket { kind: BucketKind::Meter, count, period, size: None },
        Spec::Steps { count, period, every: 1, burst: None },
        Spec::Approximate { count, window: 1 },
    ];
    kinds.iter().chain(&windows).map(Spec::name).collect()
}

fn cost(permits: u64) -> Cost {
    Cost::new(permits.min(Cost::MAX.get())).unwrap()
}
