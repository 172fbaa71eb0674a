//! What several limits on one key promise, on the reference model alone: the table "Several limits
//! on one key" of `docs/understand/algorithms.md`.

#![expect(clippy::unwrap_used, reason = "a test")]

use tidegate_model::{
    BucketKind, CellEvent, CellState, EntriesCell, MAX, SharingClass, Spec, TraceRng, WindowKind,
    print_line, run_size,
};

const CLASSES: [SharingClass; 2] = [SharingClass::Policies, SharingClass::Calls];

/// Calls on one key, with limits that take turns.
struct LimitHistory {
    rng: TraceRng,
    cell: EntriesCell,
    limits: Vec<Spec>,
    turn: usize,
    /// A call in so many changes the limit: alternation, at random, in phases.
    one_in: u64,
    by_turns: bool,
    now: i128,
    /// The longest step of time.
    scale: u64,
    admitted: Vec<(i128, i128)>,
    /// Limits that have had an entry.
    had_entry: Vec<bool>,
}

impl LimitHistory {
    fn new(seed: u64, class: SharingClass, draw: impl Fn(&mut TraceRng) -> Spec) -> Self {
        let mut rng = TraceRng::new(seed);
        let limits: Vec<Spec> = (0..rng.between(2, 4)).map(|_| draw(&mut rng)).collect();
        Self {
            cell: EntriesCell::new(limits[0], class),
            turn: 0,
            one_in: rng.pick(&[1, 1, 2, 10]),
            by_turns: rng.one_in(2),
            now: 1_000_000 + i128::from(rng.below(100_000)),
            scale: rng.pick(&[10, 300, 3_000, 30_000]),
            admitted: Vec::new(),
            had_entry: vec![false; limits.len()],
            limits,
            rng,
        }
    }

    fn limit(&self) -> Spec {
        self.limits[self.turn]
    }

    fn capacity(&self) -> i128 {
        self.limits.iter().map(Spec::capacity).max().unwrap()
    }

    /// Changes the limit and moves the time, or neither.
    fn advance(&mut self) {
        if self.rng.one_in(self.one_in) {
            let count = self.limits.len();
            self.turn = if self.by_turns { (self.turn + 1) % count } else { self.rng.index(count) };
            self.cell.set_limit(self.limit());
        }
        if self.rng.one_in(2) {
            self.now += i128::from(self.rng.magnitude(self.scale));
        }
    }

    fn cost(&mut self) -> i128 {
        let most = self.limit().capacity().max(1);
        let remaining = self.cell.at(self.now).remaining().max(1);
        match self.rng.below(4) {
            0 => 1,
            1 => i128::from(self.rng.between(1, most as u64)),
            _ => remaining,
        }
    }

    /// Does the limit return after its entry was dropped?
    fn is_return(&self) -> bool {
        self.had_entry[self.turn] && !self.cell.has_entry(self.limit())
    }

    /// A check; if it is denied, the wait. `None` if the cost never fits.
    fn check(&mut self, cost: i128) -> Result<(), Option<i128>> {
        let found = self.cell.at(self.now);
        let result = if found.allows(cost) {
            self.cell.apply(self.now, CellEvent::Charge(cost));
            self.admitted.push((self.now, cost));
            Ok(())
        } else {
            self.cell.touch(self.now);
            Err(wait(&found, cost))
        };
        for (had_entry, limit) in self.had_entry.iter_mut().zip(&self.limits) {
            *had_entry |= self.cell.has_entry(*limit);
        }
        result
    }

    /// Checks `bound` for the permits of every interval, given the first and the last instant.
    fn check_intervals(&self, bound: impl Fn(i128, i128) -> i128) -> Result<(), String> {
        for (index, (first, _)) in self.admitted.iter().enumerate() {
            let mut sum = 0;
            for (last, cost) in &self.admitted[index..] {
                sum += cost;
                let most = bound(*first, *last);
                if sum > most {
                    return Err(format!(
                        "{sum} permits, at most {most}, from {first} to {last}: {:?} {:?}",
                        self.limits, self.admitted
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The least span after which the cost fits, without further calls.
fn wait(found: &CellState, cost: i128) -> Option<i128> {
    if cost > found.spec().capacity() {
        return None;
    }
    if let Some(wait) = found.decided_anew_after(cost) {
        return Some(wait);
    }
    let (mut too_short, mut enough) = (0, 1);
    while !found.after(enough).fits(cost) {
        (too_short, enough) = (enough, 2 * enough);
        assert!(enough < 4 * MAX, "{cost} never fits: {found:?}");
    }
    while enough - too_short > 1 {
        let middle = (too_short + enough) / 2;
        if found.after(middle).fits(cost) {
            enough = middle;
        } else {
            too_short = middle;
        }
    }
    Some(enough)
}

fn histories() -> u64 {
    run_size(200, 3_000, 100_000)
}

fn small(rng: &mut TraceRng) -> u64 {
    if rng.one_in(3) { rng.between(1, 5) } else { rng.between(1, 40) }
}

fn span(rng: &mut TraceRng) -> u64 {
    rng.pick(&[10, 60, 200, 1_000, 1_000, 5_000, 20_000])
}

/// A bucket that counts microseconds.
fn bucket(rng: &mut TraceRng) -> Spec {
    let size = Some(small(rng)).filter(|_| !rng.one_in(3));
    Spec::Bucket { kind: BucketKind::Token, count: small(rng), period: span(rng), size }
}

fn steps(rng: &mut TraceRng) -> Spec {
    let (every, parts) = (span(rng), rng.between(1, 5));
    let burst = Some(small(rng));
    Spec::Steps { count: small(rng) * parts, period: every * parts, every, burst }
}

fn fixed(rng: &mut TraceRng) -> Spec {
    let length = span(rng);
    let window =
        if rng.one_in(2) { WindowKind::Aligned(length) } else { WindowKind::FirstHit(length) };
    Spec::Fixed { count: small(rng), window }
}

fn sliding(rng: &mut TraceRng) -> Spec {
    let window = span(rng);
    match rng.below(3) {
        0 => Spec::Approximate { count: small(rng), window },
        _ => Spec::SubWindows {
            count: small(rng),
            window,
            precision: Some(window / rng.between(1, 9)),
        },
    }
}

fn log(rng: &mut TraceRng) -> Spec {
    Spec::Log { count: small(rng), window: span(rng) }
}

type Draw = fn(&mut TraceRng) -> Spec;

const FAMILIES: [(&str, Draw); 6] = [
    ("token-bucket", bucket),
    ("token-bucket, some with steps", |rng| if rng.one_in(2) { steps(rng) } else { bucket(rng) }),
    ("fixed-window", fixed),
    ("sliding-window", sliding),
    ("sliding-log", log),
    ("leaky-bucket, some as a queue", |rng| match bucket(rng) {
        Spec::Bucket { count, period, size, .. } => {
            let kind = rng.pick(&[BucketKind::Meter, BucketKind::Queue]);
            Spec::Bucket { kind, count, period, size }
        }
        spec => spec,
    }),
];

#[test]
fn a_retry_after_the_wait_is_allowed_whatever_limits_take_turns() {
    for class in CLASSES {
        for (name, draw) in FAMILIES {
            let mut retries = 0_u64;
            for seed in 0..histories() {
                let mut history = LimitHistory::new(seed, class, draw);
                for _ in 0..60 {
                    history.advance();
                    let cost = history.cost();
                    let Err(Some(wait)) = history.check(cost) else { continue };
                    let is_decided_anew =
                        history.cell.at(history.now).decided_anew_after(cost).is_some();
                    if history.rng.one_in(2) || is_decided_anew {
                        continue;
                    }
                    history.now += wait;
                    let found = history.cell.at(history.now);
                    assert!(
                        history.check(cost).is_ok(),
                        "{class:?} {name}, seed {seed}: {cost} after {wait}: {found:?}"
                    );
                    retries += 1;
                }
            }
            print_line(&format!("{class:?} {name}: {retries} retries, all allowed"));
            assert!(retries > histories(), "{class:?} {name}: {retries}");
        }
    }
}

/// `K_max + r_max * t`.
fn bucket_bound(limits: &[Spec], from: i128, to: i128) -> i128 {
    let drained = limits.iter().map(|limit| match *limit {
        Spec::Bucket { count, period, .. } => i128::from(count) * (to - from) / i128::from(period),
        _ => unreachable!("only buckets"),
    });
    limits.iter().map(Spec::capacity).max().unwrap() + drained.max().unwrap()
}

#[test]
fn buckets_that_take_turns_admit_no_more_than_the_largest_burst_and_rate() {
    for class in CLASSES {
        let (mut admitted, mut full) = (0_usize, 0_usize);
        for seed in 0..histories() {
            let mut history = LimitHistory::new(seed, class, bucket);
            for _ in 0..100 {
                history.advance();
                if history.is_return() && class == SharingClass::Policies {
                    break;
                }
                let cost = history.cost();
                let _ = history.check(cost);
            }
            let limits = history.limits.clone();
            let within = history.check_intervals(|from, to| bucket_bound(&limits, from, to));
            within.unwrap_or_else(|why| panic!("{class:?}, seed {seed}: {why}"));
            let tight = history.check_intervals(|from, to| bucket_bound(&limits, from, to) - 1);
            (admitted, full) =
                (admitted + history.admitted.len(), full + usize::from(tight.is_err()));
        }
        print_line(&format!(
            "{class:?}: {admitted} permits within the bound, {full} histories fill it"
        ));
        assert!(full > 0, "{class:?}: the bound is never reached");
    }
}

#[test]
fn windows_that_differ_in_the_count_admit_no_more_than_the_larger_count() {
    for seed in 0..histories() {
        let length = TraceRng::new(seed).pick(&[50, 1_000, 20_000]);
        let draw = |rng: &mut TraceRng| Spec::Fixed {
            count: small(rng),
            window: WindowKind::Aligned(length),
        };
        let mut history = LimitHistory::new(seed, SharingClass::Policies, draw);
        for _ in 0..100 {
            history.advance();
            if history.is_return() {
                break;
            }
            let cost = history.cost();
            let _ = history.check(cost);
        }
        let (length, most) = (i128::from(length), history.capacity());
        let within =
            history.check_intervals(
                |from, to| {
                    if from / length == to / length { most } else { i128::MAX }
                },
            );
        within.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
}

/// What a limit admits by itself between two instants, both included.
fn alone(limit: &Spec, from: i128, to: i128) -> i128 {
    let span = to - from;
    let capacity = limit.capacity();
    match *limit {
        Spec::Bucket { count, period, .. } => {
            capacity + i128::from(count) * span / i128::from(period)
        }
        Spec::Steps { count, period, every, .. } => {
            let steps = to / i128::from(every) - from / i128::from(every);
            capacity + steps * i128::from(count) * i128::from(every) / i128::from(period)
        }
        Spec::Fixed { window: WindowKind::Aligned(length), .. } => {
            (to / i128::from(length) - from / i128::from(length) + 1) * capacity
        }
        Spec::Fixed { window: WindowKind::FirstHit(length), .. } => {
            (span / i128::from(length) + 2) * capacity
        }
        Spec::Log { window, .. } | Spec::SubWindows { window, .. } => {
            (span / i128::from(window) + 1) * capacity
        }
        Spec::Approximate { window, .. } => (span / i128::from(window) + 2) * capacity,
        Spec::Fixed { .. } | Spec::Concurrency { .. } => unreachable!("never drawn"),
    }
}

#[test]
fn limits_that_take_turns_admit_no_more_than_side_by_side() {
    for class in CLASSES {
        for (name, draw) in FAMILIES {
            for seed in 0..histories() {
                let mut history = LimitHistory::new(seed, class, draw);
                for _ in 0..100 {
                    history.advance();
                    let cost = history.cost();
                    let _ = history.check(cost);
                }
                let limits = history.limits.clone();
                let within = history.check_intervals(|from, to| {
                    limits.iter().map(|limit| alone(limit, from, to)).sum()
                });
                within.unwrap_or_else(|why| panic!("{class:?} {name}, seed {seed}: {why}"));
            }
        }
    }
}

#[test]
fn a_limit_in_use_waits_no_longer_than_it_takes_to_pay_its_own_debt() {
    for (name, draw) in FAMILIES {
        let mut waits = 0_u64;
        for seed in 0..histories() {
            let mut history = LimitHistory::new(seed, SharingClass::Policies, draw);
            for _ in 0..60 {
                history.advance();
                let cost = history.cost();
                let result = history.check(cost);
                let (Err(Some(wait)), true) = (result, history.cell.has_entry(history.limit()))
                else {
                    continue;
                };
                let own = history.limit();
                // Twice the capacity recovers in two recoveries, and a window in one.
                let most = 2 * recovery(&own);
                assert!(wait <= most, "{name}, seed {seed}: {wait} above {most} under {own:?}");
                waits += 1;
            }
        }
        assert!(waits > histories(), "{name}: {waits}");
    }
}

fn recovery(limit: &Spec) -> i128 {
    let capacity = limit.capacity();
    let ceil = |a: i128, b: i128| (a + b - 1) / b;
    match *limit {
        Spec::Bucket { count, period, .. } => {
            ceil(capacity * i128::from(period), i128::from(count))
        }
        Spec::Steps { count, period, every, .. } => {
            let amount = i128::from(count) * i128::from(every) / i128::from(period);
            ceil(capacity, amount) * i128::from(every)
        }
        Spec::Fixed {
            window: WindowKind::Aligned(length) | WindowKind::FirstHit(length), ..
        } => i128::from(length),
        Spec::Log { window, .. } | Spec::Approximate { window, .. } => i128::from(window),
        Spec::SubWindows { window, .. } => 3 * i128::from(window),
        Spec::Fixed { .. } | Spec::Concurrency { .. } => unreachable!("never drawn"),
    }
}
