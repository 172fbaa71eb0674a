//! Requests of callers, and when they are sent.

use tidegate::HoldId;
use tidegate_model::TraceRng;

use crate::fault_simulation::plan::{LENGTH, Subject};
use crate::fault_simulation::time::BEGIN;

/// One request to a process.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) node: usize,
    pub(crate) kind: Kind,
    /// Subjects by number, each with a cost.
    pub(crate) charges: Vec<(usize, u64)>,
    /// The caller drops the request after so many microseconds.
    pub(crate) gives_up_after: Option<u64>,
    /// Seed for values that are drawn during the request.
    pub(crate) salt: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Check,
    /// Tries the fast path first.
    Quick,
    Peek,
    Record,
    Refund,
    Reset,
    /// With an idempotency key, repeated until there is a decision of the store.
    Once(String),
    /// Takes a slot, holds it for `stay`, renews it if that is long, and releases it if `leaves`.
    Enter {
        stay: u64,
        leaves: bool,
    },
    /// Makes a reservation, and later charges `used` of it.
    Reserve {
        after: u64,
        used: u64,
    },
    /// The end of one of the two: not drawn, but made as a follow-up.
    Settle {
        hold: HoldId,
        used: u64,
        tries: u32,
    },
    Renew {
        hold: HoldId,
    },
    /// All faults have ended: the store must decide it, or a decision of the store must be cached.
    Probe,
    /// The whole capacity, after a long time without traffic: it must be granted.
    All,
    /// The whole share of a process that is cut off, after a long time without traffic.
    AllAlone,
}

pub(crate) fn draw(rng: &mut TraceRng, nodes: usize, subjects: &[Subject]) -> Vec<(u64, Request)> {
    let mut requests = Vec::new();
    let any_node = |rng: &mut TraceRng| usize::try_from(rng.below(nodes as u64)).unwrap();
    // One hot key with steady traffic to one process.
    let (hot, node) = (usize::try_from(rng.below(subjects.len() as u64)).unwrap(), any_node(rng));
    let capacity = subjects[hot].capacity;
    if !subjects[hot].counts_holders() {
        let max_pause = rng.pick(&[4_000, 12_000, 50_000]);
        let earliest = rng.pick(&[LENGTH / 20, LENGTH / 2]);
        let (from, pause) = (rng.below(earliest), rng.between(max_pause / 4, max_pause));
        // Slow traffic has small costs, so that loans last.
        let cost = if max_pause == 50_000 { 1 } else { capacity / rng.between(20, 200) }.max(1);
        for step in 0..rng.between(50, 200) {
            let at = from + step * pause + rng.below(pause);
            let charges = vec![(hot, cost)];
            let kind = if rng.one_in(2) { Kind::Quick } else { Kind::Check };
            requests.push((at, request(rng, node, kind, charges)));
        }
    }
    for _ in 0..rng.between(8, 30) {
        let (at, hot_node) = (rng.below(LENGTH), node);
        let node = any_node(rng);
        if rng.one_in(5) && !subjects[hot].counts_holders() {
            // A burst for the whole capacity: some of these fit into any remainder.
            let other = rng.one_in(2).then(|| (hot_node + 1) % nodes);
            let halves = std::iter::successors(Some(capacity / 2), |cost| Some(cost / 2));
            for (index, cost) in halves.take_while(|cost| *cost > 0).chain([1]).enumerate() {
                for _ in 0..2 {
                    let at = at + index as u64 * 300 + rng.below(300);
                    let node = other.unwrap_or_else(|| any_node(rng));
                    let check = request(rng, node, Kind::Check, vec![(hot, cost)]);
                    requests.push((at, check));
                }
            }
        }
        for _ in 0..rng.magnitude(16) {
            let at = at + rng.below(3_000);
            let node = if rng.one_in(4) { any_node(rng) } else { node };
            let (kind, charges) = draw_kind(rng, subjects, requests.len());
            requests.push((at, request(rng, node, kind, charges)));
        }
    }
    requests.retain(|(at, _)| *at < LENGTH);
    requests.iter_mut().for_each(|(at, _)| *at += BEGIN);
    requests
}

pub(crate) fn request(
    rng: &mut TraceRng,
    node: usize,
    kind: Kind,
    charges: Vec<(usize, u64)>,
) -> Request {
    let gives_up_after = rng.one_in(20).then(|| rng.below(30_000));
    Request { node, kind, charges, gives_up_after, salt: rng.any() }
}

fn draw_kind(rng: &mut TraceRng, subjects: &[Subject], number: usize) -> (Kind, Vec<(usize, u64)>) {
    let any = usize::try_from(rng.below(subjects.len() as u64)).unwrap();
    if subjects[any].counts_holders() {
        let stay = if rng.one_in(4) { rng.between(0, 1_500_000) } else { rng.between(0, 100_000) };
        let mut charges = vec![(any, 1)];
        if rng.one_in(3) {
            charges.push((0, 1));
        }
        return (Kind::Enter { stay, leaves: !rng.one_in(5) }, charges);
    }
    let capacity = subjects[any].capacity;
    let cost = match rng.below(8) {
        0 => rng.magnitude(capacity),
        1 => capacity,
        2..5 => (capacity / 20).max(1),
        _ => 1,
    };
    let one = vec![(any, cost)];
    match rng.below(40) {
        0 => (Kind::Peek, one),
        1 => (Kind::Record, one),
        2 => (Kind::Refund, one),
        3..6 => {
            (Kind::Once(format!("id {} of {any} {cost}", rng.below(1 + number as u64 / 4))), one)
        }
        6..8 => {
            let used = rng.below(cost + 1);
            (Kind::Reserve { after: rng.below(300_000), used }, one)
        }
        8..13 if subjects.len() > 1 && !subjects[1].counts_holders() => {
            (Kind::Check, vec![(0, cost.min(subjects[0].capacity)), (1, 1)])
        }
        13 if rng.one_in(3) => (Kind::Reset, one),
        _ => (if rng.one_in(2) { Kind::Quick } else { Kind::Check }, one),
    }
}
