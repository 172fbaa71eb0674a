//! All contenders, in all cases.

use std::hint::black_box;

use governor::clock::{Clock as _, DefaultClock};
use tidegate::{Clock, SystemClock};
use tidegate_model::TraceRng;

use crate::contenders::{ALL, Allowance, Contender};
use crate::keys::{Keys, Kind, Spread};
use crate::rounds::{PARTS, fill, median, medians};
use crate::{Plan, print_line};

/// Cases with the same keys; they differ only in the order of the checks.
struct Group {
    keys: u64,
    kind: Kind,
    denied: bool,
}

pub(crate) fn run(plan: &Plan) {
    let mut is_first = true;
    for keys in [1, 1_000, 1_000_000, 10_000_000] {
        for kind in [Kind::Number, Kind::Text] {
            for denied in [false, true] {
                let group = Group { keys, kind, denied };
                if group.wanted(plan).next().is_none() {
                    continue;
                }
                if std::mem::take(&mut is_first) {
                    headline(plan);
                }
                group.run(plan);
            }
        }
    }
}

impl Group {
    fn run(&self, plan: &Plan) {
        let allowance = if self.denied { Allowance::Once } else { Allowance::Ample };
        let contenders = ALL.map(|(_, make)| make(allowance));
        let contenders = contenders.each_ref().map(|contender| &**contender as &dyn Contender);
        let keys = (self.keys / plan.divisor).max(1);
        contenders.iter().for_each(|contender| fill(*contender, self.kind, keys));
        for (name, spread, threads) in self.wanted(plan) {
            let draw = |seed| Keys::draw(self.kind, spread, keys, PARTS * plan.checks, seed);
            let draws: Vec<Keys> = (0..threads).map(draw).collect();
            row(&name, &medians(plan, &contenders, &draws, !self.denied));
        }
    }

    fn wanted(&self, plan: &Plan) -> impl Iterator<Item = (String, Spread, u64)> {
        let takes_long = self.keys > 1_000_000;
        let spreads = [Spread::Uniform, Spread::Zipf];
        let cases = spreads.into_iter().flat_map(|spread| [(spread, 1), (spread, 2)]);
        // One key has no distribution.
        let cases = cases.filter(|(spread, _)| self.keys > 1 || *spread == Spread::Uniform);
        let cases = cases.map(|(spread, threads)| (self.name(spread, threads), spread, threads));
        cases.filter(move |(name, ..)| plan.wants(name, takes_long))
    }

    fn name(&self, spread: Spread, threads: u64) -> String {
        let keys = match self.keys {
            1 => "hot key".to_owned(),
            1_000 => format!("1k {spread}"),
            keys => format!("{}M {spread}", keys / 1_000_000),
        };
        let outcome = if self.denied { "denied" } else { "allowed" };
        let threads = if threads == 1 { "1 thread" } else { "2 threads" };
        format!("{keys}, {}, {threads}, {outcome}", self.kind)
    }
}

fn headline(plan: &Plan) {
    let clock = |read: &dyn Fn()| {
        let round = |_| {
            let start = SystemClock.elapsed();
            (0..plan.checks).for_each(|_| read());
            let micros = SystemClock.elapsed().saturating_sub(start).get();
            1_000.0 * micros as f64 / plan.checks as f64
        };
        median((0..plan.rounds).map(round).collect())
    };
    let governor_clock = DefaultClock::default();
    let tidegate_nanos = clock(&|| _ = black_box(SystemClock.now()));
    let governor_nanos = clock(&|| _ = black_box(governor_clock.now()));
    print_line(&format!(
        "ns per check, medians of {} rounds of {} checks; reading the clock takes {tidegate_nanos:.0} ns in tidegate \
         and {governor_nanos:.0} ns in governor,
a random read in the memory of 1M keys takes {:.0} ns
",
        plan.rounds,
        plan.checks,
        far_read(plan)
    ));
    let names = ALL.map(|(name, _)| format!("{name:>9}")).concat();
    print_line(&format!("{:40}{names}   limiter/table  governor/table", ""));
}

/// Nanoseconds of a random read in as much memory as a million keys use, along a chain in which
/// each slot holds the index of the next.
fn far_read(plan: &Plan) -> f64 {
    const BYTES: u64 = 36 << 20;
    let slots = u32::try_from(BYTES / 4 / plan.divisor).unwrap();
    let mut next: Vec<u32> = (0..slots).collect();
    // Shuffled so that the chain visits every slot before it repeats.
    let mut rng = TraceRng::new(1);
    (1..next.len()).rev().for_each(|last| next.swap(last, rng.index(last)));
    let mut slot = 0;
    let mut walk = |_| {
        let start = SystemClock.elapsed();
        (0..plan.checks).for_each(|_| slot = next[slot as usize]);
        black_box(slot);
        let micros = SystemClock.elapsed().saturating_sub(start).get();
        1_000.0 * micros as f64 / plan.checks as f64
    };
    median((0..plan.rounds).map(&mut walk).collect())
}

fn row(name: &str, nanos: &[f64]) {
    let figures: String = nanos.iter().map(|nanos| format!("{nanos:9.0}")).collect();
    let [table, limiter, governor, ..] = nanos else { return };
    let (limiter, governor) = (limiter / table, governor / table);
    print_line(&format!("{name:40}{figures}{limiter:16.2}{governor:16.2}"));
}
