//! What may pass in an interval, and limits that promise it.

use std::sync::Arc;

use tidegate::{LeaseSize, RuleLimit};
use tidegate_model::Rng;

use crate::world::{Event, leased};

/// The most that may pass in any interval; `span` is from the first admission to the last.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Promise {
    /// The capacity and `count * span / period`.
    Rate { count: u64, period: u64 },
    /// The capacity and `amount * (floor(span / every) + 1)`; at one instant, the capacity.
    Steps { amount: u64, every: u64 },
    /// `times` the capacity, less `less`, if `span < length`.
    Window { times: u64, less: u64, length: u64 },
    /// The capacity in every window that begins at a multiple of `length`, and twice that in any interval.
    Aligned { length: u64 },
}

/// A family of limits: its name, and how to draw one of a capacity, in microseconds.
type Family = (&'static str, fn(u64, u64) -> (String, Promise));

/// Every algorithm that can be leased.
pub(crate) const FAMILIES: [Family; 8] = [
    ("token-bucket", |size, length| {
        let (count, period) = (size * 2, length);
        (format!("{count}/{period}us burst {size}"), Promise::Rate { count, period })
    }),
    ("token-bucket every", |size, length| {
        let (amount, every) = (size.div_ceil(3), length / 4);
        let notation = format!("{amount}/{every}us burst {size} every {every}us");
        (notation, Promise::Steps { amount, every })
    }),
    ("leaky-bucket", |size, length| {
        let (count, period) = (size, length);
        let notation = format!("leaky-bucket {count}/{period}us capacity {size}");
        (notation, Promise::Rate { count, period })
    }),
    ("fixed-window", |size, length| {
        (format!("fixed-window {size}/{length}us"), Promise::Aligned { length })
    }),
    ("fixed-window first-hit", |size, length| {
        let notation = format!("fixed-window {size}/{length}us first-hit");
        (notation, Promise::Window { times: 2, less: 1, length })
    }),
    ("sliding-log", |size, length| {
        let notation = format!("sliding-log {size}/{length}us");
        (notation, Promise::Window { times: 1, less: 0, length })
    }),
    ("sliding-window", |size, length| {
        let precision = length / 13;
        let notation = format!("sliding-window {size}/{length}us precision {precision}us");
        (notation, Promise::Window { times: 1, less: 0, length })
    }),
    ("sliding-window approximate", |size, length| {
        let notation = format!("sliding-window {size}/{length}us approximate");
        (notation, Promise::Window { times: 2, less: 1, length })
    }),
];

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
                            |admitted| self.promise.keeps(admitted, most, start, at, refunded);
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

impl Promise {
    fn keeps(&self, admitted: u64, capacity: u64, start: u64, end: u64, refunded: u64) -> bool {
        let span = end - start;
        let admitted = u128::from(admitted.saturating_sub(refunded));
        let capacity = u128::from(capacity);
        match *self {
            Self::Rate { count, period } => {
                let drained = u128::from(count) * u128::from(span);
                admitted.saturating_sub(capacity) * u128::from(period) <= drained
            }
            Self::Steps { amount, every } => {
                let steps = if span == 0 { 0 } else { span / every + 1 };
                admitted <= capacity + u128::from(amount) * u128::from(steps)
            }
            Self::Window { times, less, length } => {
                span >= length || admitted <= u128::from(times) * capacity - u128::from(less)
            }
            Self::Aligned { length } if start / length == end / length => admitted <= capacity,
            Self::Aligned { length } => span >= length || admitted <= 2 * capacity,
        }
    }

    /// Intervals longer than this have nothing to tell, or nothing new.
    fn reach(&self) -> u64 {
        match *self {
            Self::Rate { period, .. } => 3 * period,
            Self::Steps { every, .. } => 12 * every,
            Self::Window { length, .. } | Self::Aligned { length } => length,
        }
    }
}
