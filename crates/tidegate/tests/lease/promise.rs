//! Cases of limits that promise something, and the log held to it.

use std::sync::Arc;

use tidegate::{LeaseSize, RuleLimit};
use tidegate_model::Rng;

pub(crate) use crate::bounds::FAMILIES;
use crate::bounds::{Family, Promise};
use crate::world::{Event, leased};

/// A leased limit of a family, and what it promises whatever its capacity is.
pub(crate) struct Case {
    pub(crate) limits: Vec<Arc<RuleLimit>>,
    pub(crate) promise: Promise,
}

impl Case {
    /// A case whose capacity changes so many times.
    pub(crate) fn draw(family: &Family, rng: &mut Rng, changes: u64) -> Self {
        let length = rng.pick(&[300_000, 1_000_000, 2_500_000, 6_000_000]);
        let size = if rng.one_in(2) { rng.between(200, 4_000) } else { rng.between(4_000, 40_000) };
        let lease = match rng.below(3) {
            0 => LeaseSize::Of(u32::try_from(rng.between(1, 300)).unwrap().try_into().unwrap()),
            _ => LeaseSize::Auto,
        };
        let (first, promise) = family.1(size, length);
        let mut limits = vec![leased(&first, lease)];
        for _ in 0..changes {
            // A bucket's rate goes with its size; the smaller never has the larger rate.
            limits.push(leased(&family.1(rng.between(size / 4, size), length).0, lease));
        }
        Self { limits, promise }
    }

    /// Compares every interval that begins with an admission with the promise: how many there were, and
    /// how many had no room for one more.
    pub(crate) fn judge(&self, log: &[Event]) -> (u64, u64) {
        let (mut intervals, mut full) = (0, 0);
        let log = &joined(log);
        let mut capacity = Capacity::new(self.limits[0].limit().capacity());
        for (place, first) in log.iter().enumerate() {
            capacity.follow(first);
            let &Event::Admit { at: start, .. } = first else { continue };
            let (mut admitted, mut refunded) = (0, 0);
            let mut most = capacity.lately(start);
            for event in &log[place..] {
                if event.at() - start > self.promise.reach() {
                    break;
                }
                match *event {
                    Event::Refund { permits, .. } => refunded += permits,
                    Event::Change { from, to, .. } => most += to.saturating_sub(from),
                    Event::Admit { at, permits } => {
                        admitted += permits;
                        intervals += 1;
                        let keeps =
                            |admitted| self.promise.keeps(admitted, most, (start, at), refunded);
                        full += u64::from(!keeps(admitted + 1));
                        assert!(
                            keeps(admitted),
                            "{admitted} from {start} to {at} with {most} and {refunded}: {:?}",
                            self.promise
                        );
                    }
                }
            }
        }
        (intervals, full)
    }
}

/// What was admitted at one instant is one admission.
fn joined(log: &[Event]) -> Vec<Event> {
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

/// The capacity that counts: what was lent under a limit may be spent until the loan ends, whatever the
/// limit is by then.
struct Capacity {
    now: u64,
    /// What it was before, and until when.
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

    fn lately(&self, start: u64) -> u64 {
        let lent =
            |(until, capacity): &(u64, u64)| (start - until < 2_000_000).then_some(*capacity);
        self.before.iter().filter_map(lent).chain([self.now]).max().unwrap()
    }
}
