//! Bounds of limits that change 10,000 times.
//!
//! A limit that grows admits what it grew by. A limit that shrinks forgives nothing that it would
//! not have forgiven anyway. So an interval admits at most the capacity at its beginning plus the
//! sum of `max(0, new - old)` over the changes inside. A bucket adds what drained meanwhile at its
//! current rate.

use tidegate_core::{Limit, Micros, Span};
use tidegate_model::{TraceRng, print_line};

use super::attacker::{Attacker, Event};
use super::bound::{Case, FAMILIES, case};
use super::histories;

const DAY: u64 = 86_400_000_000;

fn changes() -> u64 {
    histories(10_000).min(10_000)
}

#[test]
fn ten_thousand_changes_at_one_instant_add_no_more_than_the_growth() {
    for (name, draw) in FAMILIES {
        let mut rng = TraceRng::new(50);
        let first = case(draw, &mut rng);
        let mut attacker = Attacker::new(rng, first);
        let mut changed = Changed::new(&attacker.case.limit);
        changed.attack(&mut attacker);
        for _ in 0..changes() {
            let Case { limit, .. } = case(draw, &mut attacker.rng);
            changed.change(&mut attacker, limit);
            changed.attack(&mut attacker);
        }
        changed.check_intervals(&format!("changes at one instant: {name}"), |_, _| true);
    }
}

#[test]
fn a_bucket_that_changes_adds_no_more_than_the_growth_and_the_rates() {
    let mut rng = TraceRng::new(51);
    let (limit, mut per_day) = bucket(&mut rng);
    let case = case(FAMILIES[0].1, &mut rng);
    let mut attacker = Attacker::new(rng, Case { limit, ..case });
    let mut changed = Changed::new(&attacker.case.limit);
    for _ in 0..changes() {
        let limit = &attacker.case.limit;
        let refill = u128::from(limit.capacity()) * u128::from(DAY) / u128::from(per_day);
        attacker.case.edge = limit.tick().span().get();
        attacker.case.recovery = u64::try_from(refill).unwrap().clamp(1, 1 << 38);
        attacker.case.scale = attacker.case.recovery.div_ceil(4);
        let before = attacker.now;
        attacker.wait();
        changed.drained += u128::from(per_day) * u128::from(attacker.now - before);
        changed.attack(&mut attacker);
        let (limit, next_per_day) = bucket(&mut attacker.rng);
        changed.change(&mut attacker, limit);
        per_day = next_per_day;
    }
    changed.check_intervals("changes over time: token-bucket", |_, _| true);
}

/// A bucket, and how much it drains in a day. The periods divide a day, so that the drain is whole.
fn bucket(rng: &mut TraceRng) -> (Limit, u64) {
    loop {
        let parts = rng.pick(&[1, 24, 1_440, 86_400, 8_640_000, DAY]);
        let number = |rng: &mut TraceRng| {
            if rng.one_in(2) { rng.between(1, 20) } else { rng.between(1, 9_999) }
        };
        let (count, size) = (number(rng), number(rng));
        let builder = Limit::per(count, Span::Plain(Micros::new(DAY / parts))).burst(size);
        if let Ok(limit) = builder.build() {
            return (limit, count * parts);
        }
    }
}

#[test]
fn a_window_that_changes_adds_no_more_than_the_growth() {
    let length = 60_000;
    let span = Span::Plain(Micros::new(length));
    let log = |rng: &mut TraceRng| Limit::sliding_log(rng.magnitude(50), span);
    let sub_windows = |rng: &mut TraceRng| {
        let precision = Span::Plain(Micros::new(rng.between(60, length)));
        Limit::sliding_window(rng.magnitude(50), span).precision(precision)
    };
    let fixed = |rng: &mut TraceRng| Limit::fixed_window(rng.magnitude(50), span);
    let in_an_interval = |first: u64, last: u64| last - first < length;
    let in_a_window = |first: u64, last: u64| first / length == last / length;

    let mut rng = TraceRng::new(52);
    let case = case(FAMILIES[6].1, &mut rng);
    let case = Case { edge: length, scale: length / 4, recovery: length, ..case };
    let attack = |limit: &dyn Fn(&mut TraceRng) -> Limit| {
        let mut rng = TraceRng::new(53);
        let limit_now = limit(&mut rng);
        let mut attacker = Attacker::new(rng, Case { limit: limit_now, ..case.clone() });
        let mut changed = Changed::new(&attacker.case.limit);
        for _ in 0..changes() {
            attacker.wait();
            changed.attack(&mut attacker);
            let next = limit(&mut attacker.rng);
            changed.change(&mut attacker, next);
        }
        changed
    };
    attack(&|rng| log(rng).build().unwrap())
        .check_intervals("changes over time: sliding-log", in_an_interval);
    attack(&|rng| sub_windows(rng).build().unwrap())
        .check_intervals("changes over time: sliding-window", in_an_interval);
    attack(&|rng| fixed(rng).build().unwrap())
        .check_intervals("changes over time: fixed-window", in_a_window);
}

/// Log of admissions, each with the capacity, growth and drain up to then.
struct Changed {
    log: Vec<Admission>,
    seen: usize,
    capacity: u64,
    grown: u64,
    /// In fractions of a permit: one permit is `DAY` of them.
    drained: u128,
}

struct Admission {
    at: u64,
    permits: u64,
    capacity: u64,
    grown: u64,
    drained: u128,
}

impl Changed {
    fn new(limit: &Limit) -> Self {
        Self { log: Vec::new(), seen: 0, capacity: limit.capacity(), grown: 0, drained: 0 }
    }

    fn attack(&mut self, attacker: &mut Attacker) {
        attacker.attack();
        for event in &attacker.log[self.seen..] {
            if let Event::Admit { at, permits } = *event {
                let Self { capacity, grown, drained, .. } = *self;
                self.log.push(Admission { at, permits, capacity, grown, drained });
            }
        }
        self.seen = attacker.log.len();
    }

    fn change(&mut self, attacker: &mut Attacker, limit: Limit) {
        self.grown += limit.capacity().saturating_sub(self.capacity);
        self.capacity = limit.capacity();
        attacker.change(limit);
    }

    /// Checks every interval that `applies` selects by its first and its last instant.
    fn check_intervals(&self, what: &str, applies: impl Fn(u64, u64) -> bool) {
        let (mut intervals, mut full) = (0_u64, 0_u64);
        for (index, first) in self.log.iter().enumerate() {
            let mut admitted = 0;
            for last in self.log[index..].iter().take_while(|last| applies(first.at, last.at)) {
                admitted += last.permits;
                let allowed = u128::from(first.capacity + last.grown - first.grown)
                    * u128::from(DAY)
                    + (last.drained - first.drained);
                let is_within = |admitted: u64| u128::from(admitted) * u128::from(DAY) <= allowed;
                assert!(is_within(admitted), "{what}: {admitted} from {} to {}", first.at, last.at);
                intervals += 1;
                full += u64::from(!is_within(admitted + 1));
            }
        }
        let changes = changes();
        print_line(&format!(
            "{what}: {changes} changes, {intervals} intervals ({full} full), 0 broken"
        ));
    }
}
