//! The core compared with the reference model of `docs/understand/algorithms.md` on random traces.
//!
//! `TIDEGATE_SEED=n` runs one trace, `TIDEGATE_LONG=1` runs 10^9 decisions.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate_core::{
    Cost, Expiry, Hold, Holds, InvalidLimit, Limit, LimitField, Micros, Moment, State, Verdict,
    Wait,
};
use tidegate_model::{
    BucketKind, ChangeModel, ExpectedWorld, MAX, ModelAnswer, ModelCall, ModelCharge, ModelOp,
    ModelSettled, Profile, Spec, Stats, System, TraceRng, print_line, run, run_size,
};

/// The core, used as an engine uses it.
struct Core {
    cells: Vec<Cell>,
}

struct Cell {
    spec: Spec,
    limit: Limit,
    state: Option<State>,
    holds: Holds,
}

impl Core {
    fn new(specs: &[Spec]) -> Self {
        let cell = |&spec: &Spec| {
            let limit = spec.limit().unwrap();
            Cell { spec, limit, state: None, holds: Holds::default() }
        };
        Self { cells: specs.iter().map(cell).collect() }
    }

    /// Looks at every state, then writes all or none.
    fn decide(&mut self, call: &ModelCall, costs: &[(usize, Cost)]) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        for &(index, cost) in costs {
            let cell = &mut self.cells[index];
            let at = cell.spec.moment(call.now);
            let verdict = cell.limit.look(cell.state.as_ref(), &cell.holds, &at, cost);
            cell.check_standing(&at, cost, &verdict);
            // The one case in which a denial writes.
            if cell.limit.is_ahead(cell.state.as_ref(), &cell.holds, &at) {
                cell.limit.rebase(&mut cell.state, &mut cell.holds, &at);
                assert!(!cell.limit.is_ahead(cell.state.as_ref(), &cell.holds, &at));
                let again = cell.limit.look(cell.state.as_ref(), &cell.holds, &at, cost);
                assert_eq!(again, verdict, "a look does not see the effect of a rebase");
            }
            cell.check_wait(&at, cost, &verdict);
            verdicts.push(verdict);
        }
        if matches!(call.op, ModelOp::Peek) || verdicts.iter().any(|verdict| !verdict.allowed) {
            return verdicts;
        }
        for (&(index, cost), verdict) in costs.iter().zip(&mut verdicts) {
            let cell = &mut self.cells[index];
            let at = cell.spec.moment(call.now);
            if let Some((id, ttl, expiry)) = call.op.hold_on(index, &cell.spec) {
                cell.limit.expire(&mut cell.state, &mut cell.holds, &at);
                let ttl = Micros::new(ttl);
                let deadline = at.now().saturating_add(ttl);
                cell.holds.insert(Hold { id, cost, deadline, ttl, expiry });
            } else if !cost.is_zero() {
                cell.limit.expire(&mut cell.state, &mut cell.holds, &at);
                cell.limit.charge(&mut cell.state, &at, cost, None);
            } else {
                continue;
            }
            let standing = cell.limit.standing(cell.state.as_ref(), &cell.holds, &at);
            verdict.remaining = standing.remaining;
            verdict.reset_after = standing.reset_after;
            if cost.is_zero() {
                *verdict = cell.limit.look(cell.state.as_ref(), &cell.holds, &at, cost);
            }
        }
        verdicts
    }

    /// Writes, and returns the verdict of a peek.
    fn write(
        &mut self,
        call: &ModelCall,
        index: usize,
        cost: Cost,
        answer: &mut ModelAnswer,
    ) -> Verdict {
        let cell = &mut self.cells[index];
        let at = cell.spec.moment(call.now);
        let Cell { spec, limit, state, holds } = cell;
        match call.op {
            // A part that is not held is only reported.
            ModelOp::Settle { uses, .. } | ModelOp::Renew { uses, .. } if uses[index].is_none() => {
                limit.rebase(state, holds, &at);
            }
            _ => limit.expire(state, holds, &at),
        }
        let mut turn = Micros::ZERO;
        match call.op {
            ModelOp::Record => limit.charge(state, &at, cost, None),
            ModelOp::Refund => {
                let back = limit.refund(state, &at, cost).get();
                answer.refunded = answer.refunded.max(back);
            }
            ModelOp::Reset => {
                *state = None;
                holds.release();
            }
            ModelOp::Settle { id, uses, costs } => match uses[index] {
                Some(expiry) => {
                    let actual = costs[index].unwrap_or(cost.get());
                    let is_held = holds.remove(id).is_some();
                    answer.expired |= !is_held;
                    let is_charged = !is_held && expiry == Expiry::Charge;
                    let at_end = if is_charged { cost.get() } else { 0 };
                    let due = actual.min(cost.get().max(Cost::MAX.get())).saturating_sub(at_end);
                    if due > 0 {
                        turn = limit.turn_after(state.as_ref(), holds, &at);
                    }
                    let used = |state: &Option<_>| limit.standing(state.as_ref(), holds, &at).used;
                    let before = used(state);
                    limit.charge(state, &at, self::cost(due), None);
                    let added = used(state).saturating_sub(before).min(due);
                    let charged = at_end + added;
                    let (charged, uncharged) = match spec.is_held() {
                        true => (0, 0),
                        false => (charged, actual.saturating_sub(charged)),
                    };
                    answer.settled.push(ModelSettled { reserved: cost.get(), charged, uncharged });
                }
                None => answer.settled.push(ModelSettled {
                    reserved: cost.get(),
                    charged: cost.get(),
                    uncharged: 0,
                }),
            },
            ModelOp::Renew { id, ttl, uses } => match holds.remove(id) {
                Some(hold) => {
                    let ttl = Micros::new(ttl);
                    let deadline = at.now().saturating_add(ttl);
                    holds.insert(Hold { deadline, ttl, ..hold });
                }
                None => answer.expired |= uses[index].is_some(),
            },
            ModelOp::Change(new) | ModelOp::Swap(new) => {
                let new_limit = new.limit().unwrap();
                let new_at = new.moment(call.now);
                *state = state.take().and_then(|state| new_limit.carry(limit, &at, state, &new_at));
                *limit = new_limit;
                *spec = new;
            }
            ModelOp::Check
            | ModelOp::Peek
            | ModelOp::Hold { .. }
            | ModelOp::Enter { .. }
            | ModelOp::Extend { .. } => {
                unreachable!("handled by `decide`")
            }
        }
        let at = cell.spec.moment(call.now);
        let peek = cell.limit.look(cell.state.as_ref(), &cell.holds, &at, Cost::ZERO);
        Verdict { delay: turn, ..peek }
    }
}

impl Cell {
    /// A look and a standing of one state must agree.
    fn check_standing(&self, at: &Moment, cost: Cost, verdict: &Verdict) {
        let standing = self.limit.standing(self.state.as_ref(), &self.holds, at);
        let capacity = self.limit.capacity();
        let taken = standing.used + standing.held;
        assert_eq!(verdict.limit, capacity);
        assert_eq!(verdict.remaining, standing.remaining);
        assert_eq!(verdict.reset_after, standing.reset_after);
        assert_eq!(standing.remaining, capacity.saturating_sub(taken));
        assert_eq!(standing.reset_after == Micros::ZERO, taken == 0);
        // A step back inside a window can make an approximate one weigh more than it charged.
        if !matches!(self.spec, Spec::Approximate { .. }) {
            assert!(standing.used <= 2 * capacity);
        }
        let allowed =
            if cost.is_zero() { standing.used <= capacity } else { taken + cost.get() <= capacity };
        assert_eq!(verdict.allowed, allowed);
    }

    /// The cost fits after exactly `retry_after`, and not a tick earlier.
    fn check_wait(&self, at: &Moment, cost: Cost, verdict: &Verdict) {
        let Wait::For(wait) = verdict.retry_after else { return };
        let cost = cost.max(Cost::ONE);
        let look = |span: u64| {
            let later = at.now().saturating_add(Micros::new(span));
            let at = self.spec.moment(later.get());
            self.limit.look(self.state.as_ref(), &self.holds, &at, cost).allowed
        };
        // Beyond the window that was passed in, the core can only estimate when the next one ends.
        let end = i128::from(at.now().get()) + i128::from(wait.get());
        let known = self.spec.window_end(at.now().get()).is_none_or(|known| end <= known);
        if end > MAX || wait == Micros::MAX || self.spec.zone().is_some() && !known {
            return;
        }
        assert!(look(wait.get()), "{cost} does not fit after {wait:?}");
        let tick = self.limit.tick().span().get();
        if wait.get() > 0 {
            assert!(!look(wait.get() - 1), "{cost} fits before {wait:?}");
        }
        if wait.get() > tick {
            assert!(!look(wait.get() - tick), "{cost} fits a tick before {wait:?}");
        }
    }
}

impl System for Core {
    fn apply(&mut self, call: &ModelCall) -> ModelAnswer {
        let mut costs: Vec<(usize, Cost)> = Vec::new();
        for part in &call.parts {
            let cost = cost(part.cost);
            match costs.iter_mut().find(|(cell, _)| *cell == part.cell) {
                Some((_, sum)) => *sum = sum.saturating_add(cost),
                None => costs.push((part.cell, cost)),
            }
        }
        let mut answer = ModelAnswer::default();
        let by_cell = match call.op {
            ModelOp::Check | ModelOp::Peek | ModelOp::Hold { .. } | ModelOp::Enter { .. } => {
                self.decide(call, &costs)
            }
            _ => {
                let verdicts =
                    costs.iter().map(|&(cell, cost)| self.write(call, cell, cost, &mut answer));
                verdicts.collect()
            }
        };
        for part in &call.parts {
            let index = costs.iter().position(|(cell, _)| *cell == part.cell).unwrap();
            answer.verdicts.push(by_cell[index]);
        }
        answer
    }
}

/// Builds a cost that may exceed `Cost::MAX`, as the sum of several charges does.
fn cost(mut permits: u64) -> Cost {
    let mut cost = Cost::ZERO;
    while permits > 0 {
        let part = permits.min(Cost::MAX.get());
        cost = cost.saturating_add(Cost::new(part).unwrap());
        permits -= part;
    }
    cost
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn the_core_decides_as_the_model_does() {
    if let Some(seed) = variable("TIDEGATE_SEED") {
        match run(seed, Profile::EVERYTHING, Core::new) {
            Ok(stats) => print_line(&format!("seed {seed}: {stats:?}")),
            Err(mismatch) => panic!("{mismatch}"),
        }
        return;
    }
    let (stats, seeds) = run_until(run_size(60_000, 1_500_000, 1_000_000_000));
    let verdicts: u64 = stats.verdicts.values().sum();
    for (name, count) in &stats.verdicts {
        print_line(&format!("core = model: {name}: {count} verdicts, 0 mismatches"));
    }
    let Stats { calls, denied, steps_back, .. } = stats;
    print_line(&format!(
        "core = model: {calls} decisions in {seeds} traces: {verdicts} verdicts, {denied} denials, \
         {steps_back} steps back, 0 mismatches"
    ));
}

/// Runs traces on two threads until `wanted` decisions were compared, or one did not match.
fn run_until(wanted: u64) -> (Stats, u64) {
    const STEP: u64 = 10_000_000;
    let next_seed = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let all = Mutex::new(Stats::default());
    let work = || {
        let _stops_the_other = Stop(&stop);
        while !stop.load(Ordering::Relaxed) {
            let mut stats = Stats::default();
            let first = next_seed.fetch_add(100, Ordering::Relaxed);
            for seed in first..first + 100 {
                match run(seed, Profile::EVERYTHING, Core::new) {
                    Ok(one) => stats.add(&one),
                    Err(mismatch) => panic!("{mismatch}"),
                }
            }
            let mut all = all.lock().unwrap();
            let before = all.calls;
            all.add(&stats);
            if before / STEP != all.calls / STEP {
                print_line(&format!("core = model: {} of {wanted} decisions", all.calls));
            }
            if all.calls >= wanted {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    (all.into_inner().unwrap(), next_seed.into_inner())
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_debt_that_one_tick_would_drain_drains_from_the_next_tick() {
    // On a tick of 1 ms, which drains three times the capacity. Random traces rarely reach this
    // case.
    let period = 10_000_000;
    let size = (1 << 52) / period + 500;
    let count = size * (period / 1_000) * 3 + 1;
    let spec = Spec::Bucket { kind: BucketKind::Token, count, period, size: Some(size) };
    assert_eq!(spec.tick(), 1_000);
    let now = 1_700_000_000_000_500;
    let call = |now, op, cost| ModelCall { now, op, parts: vec![ModelCharge { cell: 0, cost }] };
    follow(
        spec,
        &[
            call(now, ModelOp::Record, 1 << 32),
            call(now + 1_000, ModelOp::Record, 1),
            call(now + 2_000, ModelOp::Check, 1),
            call(now + 3_000, ModelOp::Check, size),
        ],
    );
}

#[test]
fn a_changed_approximate_window_cuts_what_the_previous_one_weighs() {
    // Two windows filled to the limit, then another count. Random traces rarely reach this case.
    let mut rng = TraceRng::new(2);
    for _ in 0..2_000 {
        let window = rng.between(1, 50);
        let count = rng.between(1, 30);
        let spec = Spec::Approximate { count, window };
        let call =
            |now, op, cost| ModelCall { now, op, parts: vec![ModelCharge { cell: 0, cost }] };
        let start = 1_700_000_000_000_000 / window * window;
        let (first, second) = (rng.below(window), window + rng.below(window));
        let changed = Spec::Approximate { count: rng.between(1, 30), window };
        let mut calls = vec![
            call(start + first, ModelOp::Record, rng.between(1, 2 * count)),
            call(start + second, ModelOp::Record, rng.between(1, count)),
            call(start + second, ModelOp::Refund, rng.between(1, count)),
            call(start + second, ModelOp::Change(changed), 0),
        ];
        calls.extend((second..3 * window).map(|now| call(start + now, ModelOp::Peek, 1)));
        follow(spec, &calls);
    }
}

/// Compares the core with the model on these calls.
fn follow(spec: Spec, calls: &[ModelCall]) {
    let (mut core, mut world) =
        (Core::new(&[spec]), ExpectedWorld::new(&[spec], ChangeModel::Ordered));
    for call in calls {
        let answer = core.apply(call);
        world.judge(call, &answer).unwrap_or_else(|why| panic!("{call:?}: {why}, got {answer:?}"));
    }
}

#[test]
fn a_limit_is_refused_exactly_if_the_definition_refuses_it() {
    let wanted = run_size(20_000, 300_000, 300_000);
    let mut rng = TraceRng::new(1);
    let mut refused = 0;
    for _ in 0..wanted {
        let spec = Spec::draw(&mut rng);
        match spec.limit() {
            Ok(limit) => {
                assert!(!spec.refused(), "{spec:?} must be refused");
                assert_eq!(i128::from(limit.capacity()), spec.capacity(), "{spec:?}");
                assert_eq!(i128::from(limit.tick().span().get()), spec.tick(), "{spec:?}");
            }
            Err(why) => {
                refused += 1;
                assert!(spec.refused(), "{spec:?} must not be refused: {why}");
                if let InvalidLimit::Inexact { part, nearest } = why {
                    is_nearest(&spec, part, nearest);
                }
            }
        }
    }
    print_line(&format!("refusals: {wanted} limits, {refused} refused, 0 mismatches"));
}

/// `nearest` is accepted, and no closer number is: the closest and the farthest of them are tried.
fn is_nearest(spec: &Spec, part: LimitField, nearest: u64) {
    let number = spec.number(part);
    let fits = |number: u64| !spec.with(part, number).refused();
    assert!(spec.with(part, nearest).limit().is_ok(), "{spec:?}: {part:?} {nearest} is refused");
    let distance = number.abs_diff(nearest);
    for nearer in (0..distance).take(20).chain((0..distance).rev().take(20)) {
        for number in [number.saturating_sub(nearer), number + nearer] {
            assert!(!fits(number), "{spec:?}: {part:?} {number} is nearer than {nearest}");
        }
    }
}

#[test]
fn a_look_writes_nothing() {
    // Guaranteed by its type: all arguments are shared references.
    let _: fn(&Limit, Option<&State>, &Holds, &Moment, Cost) -> Verdict = Limit::look;
}
