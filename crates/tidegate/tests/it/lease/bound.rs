//! Random leased limits with their bounds, and the check of the log of admissions.

use std::sync::Arc;

use tidegate::{LeaseSize, RuleLimit};
use tidegate_model::TraceRng;

use super::cluster_of_processes::{Event, leased};
pub(crate) use testkit::bounds::families::LIMIT_FAMILIES;
use testkit::bounds::families::{GuaranteedBound, LimitFamily};

/// A leased limit of a family, and its bound for any capacity.
pub(crate) struct Case {
    pub(crate) limits: Vec<Arc<RuleLimit>>,
    pub(crate) bound: GuaranteedBound,
}

impl Case {
    /// Draws a case whose capacity changes `changes` times.
    pub(crate) fn draw(family: &LimitFamily, rng: &mut TraceRng, changes: u64) -> Self {
        let length = rng.pick(&[300_000, 1_000_000, 2_500_000, 6_000_000]);
        let size = if rng.one_in(2) { rng.between(200, 4_000) } else { rng.between(4_000, 40_000) };
        let lease = match rng.below(3) {
            0 => LeaseSize::Of(u32::try_from(rng.between(1, 300)).unwrap().try_into().unwrap()),
            _ => LeaseSize::Auto,
        };
        let (first, bound) = family.1(size, length);
        let mut limits = vec![leased(&first, lease)];
        for _ in 0..changes {
            // The rate of a bucket follows its size, so the smaller bucket never has the larger
            // rate.
            limits.push(leased(&family.1(rng.between(size / 4, size), length).0, lease));
        }
        Self { limits, bound }
    }

    /// Compares every interval that begins with an admission with the bound. Returns the number of
    /// intervals, and how many of them had no room for one more permit.
    pub(crate) fn check_intervals(&self, log: &[Event]) -> (u64, u64) {
        let (mut intervals, mut full) = (0, 0);
        let log = &join_admissions(log);
        let mut capacity = Capacity::new(self.limits[0].limit().capacity());
        for (index, first) in log.iter().enumerate() {
            capacity.follow(first);
            let &Event::Admit { at: start, .. } = first else { continue };
            let (mut admitted, mut refunded) = (0, 0);
            let mut capacity_bound = capacity.max_recent(start);
            for event in &log[index..] {
                if event.at() - start > self.bound.max_interval() {
                    break;
                }
                match *event {
                    Event::Refund { permits, .. } => refunded += permits,
                    Event::Change { from, to, .. } => capacity_bound += to.saturating_sub(from),
                    Event::Admit { at, permits } => {
                        admitted += permits;
                        intervals += 1;
                        let is_within = |admitted| {
                            self.bound.allows(admitted, capacity_bound, (start, at), refunded)
                        };
                        full += u64::from(!is_within(admitted + 1));
                        assert!(
                            is_within(admitted),
                            "{admitted} from {start} to {at} with {capacity_bound} and {refunded}: {:?}",
                            self.bound
                        );
                    }
                }
            }
        }
        (intervals, full)
    }
}

/// Joins the admissions of one instant.
fn join_admissions(log: &[Event]) -> Vec<Event> {
    let mut joined: Vec<Event> = Vec::new();
    for event in log {
        match (joined.last_mut(), event) {
            (Some(Event::Admit { at, permits }), Event::Admit { at: same, permits: more })
                if at == same =>
            {
                *permits += more;
            }
            _ => joined.push(*event),
        }
    }
    joined
}

/// The capacity that applies: permits lent under a limit may be spent until the loan ends, even
/// after the limit has changed.
struct Capacity {
    now: u64,
    /// Earlier capacities, each with the instant until which it applied.
    before: Vec<(u64, u64)>,
}

impl Capacity {
    fn new(now: u64) -> Self {
        Self { now, before: Vec::new() }
    }

    fn follow(&mut self, event: &Event) {
        if let Event::Change { at, from, to } = *event {
            self.before.push((at, from));
            self.now = to;
        }
    }

    fn max_recent(&self, start: u64) -> u64 {
        let lent =
            |(until, capacity): &(u64, u64)| (start - until < 2_000_000).then_some(*capacity);
        self.before.iter().filter_map(lent).chain([self.now]).max().unwrap()
    }
}
