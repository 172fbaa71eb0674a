//! Limits that change ten thousand times.
//!
//! A limit that grows admits what it grew by, and a limit that shrinks forgives nothing that it
//! would not have forgiven anyway. So what passes in any interval is at most the capacity at its
//! beginning, and the sum of `max(0, new - old)` over the changes inside, and for a bucket what
//! drained meanwhile, at the rate of the day.

use tidegate_core::{Limit, Micros, Span};
use tidegate_model::{Rng, say};

use crate::histories;
use crate::promise::{Case, FAMILIES, case};
use crate::traffic::{Event, Traffic};

const DAY: u64 = 86_400_000_000;

fn changes() -> u64 {
    histories(10_000).min(10_000)
}

#[test]
fn ten_thousand_changes_at_one_instant_add_no_more_than_the_growth() {
    for (name, draw) in FAMILIES {
        let mut rng = Rng::new(50);
        let first = case(draw, &mut rng);
        let mut traffic = Traffic::new(rng, first);
        let mut changed = Changed::new(&traffic.case.limit);
        changed.attack(&mut traffic);
        for _ in 0..changes() {
            let Case { limit, .. } = case(draw, &mut traffic.rng);
            changed.change(&mut traffic, limit);
            changed.attack(&mut traffic);
        }
        changed.judge(&format!("changes at one instant: {name}"), |_, _| true);
    }
}

#[test]
fn a_bucket_that_changes_adds_no_more_than_the_growth_and_the_rates() {
    let mut rng = Rng::new(51);
    let (limit, mut per_day) = bucket(&mut rng);
    let case = case(FAMILIES[0].1, &mut rng);
    let mut traffic = Traffic::new(rng, Case { limit, ..case });
    let mut changed = Changed::new(&traffic.case.limit);
    for _ in 0..changes() {
        let limit = &traffic.case.limit;
        let refill = u128::from(limit.capacity()) * u128::from(DAY) / u128::from(per_day);
        traffic.case.edge = limit.tick().span().get();
        traffic.case.recovery = u64::try_from(refill).unwrap().clamp(1, 1 << 38);
        traffic.case.scale = traffic.case.recovery.div_ceil(4);
        let before = traffic.now;
        traffic.wait();
        changed.drained += u128::from(per_day) * u128::from(traffic.now - before);
        changed.attack(&mut traffic);
        let (limit, next_per_day) = bucket(&mut traffic.rng);
        changed.change(&mut traffic, limit);
        per_day = next_per_day;
    }
    changed.judge("changes over time: token-bucket", |_, _| true);
}

/// A bucket, and how much it drains in a day. The periods divide a day, so that it is whole.
fn bucket(rng: &mut Rng) -> (Limit, u64) {
    loop {
        let parts = rng.pick(&[1, 24, 1_440, 86_400, 8_640_000, DAY]);
        let number =
            |rng: &mut Rng| if rng.one_in(2) { rng.between(1, 20) } else { rng.between(1, 9_999) };
        let (count, size) = (number(rng), number(rng));
        let draft = Limit::per(count, Span::Plain(Micros::new(DAY / parts))).burst(size);
        if let Ok(limit) = draft.build() {
            return (limit, count * parts);
        }
    }
}

#[test]
fn a_window_that_changes_adds_no_more_than_the_growth() {
    let length = 60_000;
    let span = Span::Plain(Micros::new(length));
    let log = |rng: &mut Rng| Limit::sliding_log(rng.magnitude(50), span);
    let sub_windows = |rng: &mut Rng| {
        let precision = Span::Plain(Micros::new(rng.between(60, length)));
        Limit::sliding_window(rng.magnitude(50), span).precision(precision)
    };
    let fixed = |rng: &mut Rng| Limit::fixed_window(rng.magnitude(50), span);
    let in_an_interval = |first: u64, last: u64| last - first < length;
    let in_a_window = |first: u64, last: u64| first / length == last / length;

    let mut rng = Rng::new(52);
    let case = case(FAMILIES[6].1, &mut rng);
    let case = Case { edge: length, scale: length / 4, recovery: length, ..case };
    let attack = |limit: &dyn Fn(&mut Rng) -> Limit| {
        let mut rng = Rng::new(53);
        let limit_now = limit(&mut rng);
        let mut traffic = Traffic::new(rng, Case { limit: limit_now, ..case.clone() });
        let mut changed = Changed::new(&traffic.case.limit);
        for _ in 0..changes() {
            traffic.wait();
            changed.attack(&mut traffic);
            let next = limit(&mut traffic.rng);
            changed.change(&mut traffic, next);
        }
        changed
    };
    attack(&|rng| log(rng).build().unwrap())
        .judge("changes over time: sliding-log", in_an_interval);
    attack(&|rng| sub_windows(rng).build().unwrap())
        .judge("changes over time: sliding-window", in_an_interval);
    attack(&|rng| fixed(rng).build().unwrap())
        .judge("changes over time: fixed-window", in_a_window);
}

/// What passed, and what was allowed up to then.
struct Changed {
    log: Vec<Admission>,
    seen: usize,
    capacity: u64,
    grown: u64,
    /// In parts of a permit; a day has so many.
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

    fn attack(&mut self, traffic: &mut Traffic) {
        traffic.attack();
        for event in &traffic.log[self.seen..] {
            if let Event::Admit { at, permits } = *event {
                let Self { capacity, grown, drained, .. } = *self;
                self.log.push(Admission { at, permits, capacity, grown, drained });
            }
        }
        self.seen = traffic.log.len();
    }

    fn change(&mut self, traffic: &mut Traffic, limit: Limit) {
        self.grown += limit.capacity().saturating_sub(self.capacity);
        self.capacity = limit.capacity();
        traffic.change(limit);
    }

    /// Every interval of those that `applies` to, given its first and its last instant.
    fn judge(&self, what: &str, applies: impl Fn(u64, u64) -> bool) {
        let (mut intervals, mut full) = (0_u64, 0_u64);
        for (place, first) in self.log.iter().enumerate() {
            let mut admitted = 0;
            for last in self.log[place..].iter().take_while(|last| applies(first.at, last.at)) {
                admitted += last.permits;
                let allowed = u128::from(first.capacity + last.grown - first.grown)
                    * u128::from(DAY)
                    + (last.drained - first.drained);
                let keeps = |admitted: u64| u128::from(admitted) * u128::from(DAY) <= allowed;
                assert!(keeps(admitted), "{what}: {admitted} from {} to {}", first.at, last.at);
                intervals += 1;
                full += u64::from(!keeps(admitted + 1));
            }
        }
        let changes = changes();
        say(&format!("{what}: {changes} changes, {intervals} intervals ({full} full), 0 broken"));
    }
}
