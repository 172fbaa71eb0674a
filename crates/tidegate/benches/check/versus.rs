//! All contenders, in all cases.

use std::hint::black_box;

use governor::clock::{Clock as _, DefaultClock};
use tidegate::{Clock, SystemClock};
use tidegate_model::Rng;

use crate::contenders::{ALL, Allowance, Contender};
use crate::keys::{Keys, Kind, Spread};
use crate::rounds::{PARTS, fill, median, medians};
use crate::{Plan, say};

/// Contenders that have the same keys: their cases differ only in who comes when.
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
        let keys = (self.keys / plan.fewer).max(1);
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
        // One key has no spread.
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
    let governors = DefaultClock::default();
    let ours = clock(&|| _ = black_box(SystemClock.now()));
    let theirs = clock(&|| _ = black_box(governors.now()));
    say(&format!(
        "ns per check, medians of {} rounds of {} checks; reading the clock is {ours:.0} ns of ours \
         and {theirs:.0} ns of governor's,\na place in as much memory as 1M keys take, {:.0} ns\n",
        plan.rounds,
        plan.checks,
        far_read(plan)
    ));
    let names = ALL.map(|(name, _)| format!("{name:>9}")).concat();
    say(&format!("{:40}{names}   governor/table  governor/limiter", ""));
}

/// How long it takes to read a place in as much memory as a million keys take, on a walk on which only
/// each place tells the next.
fn far_read(plan: &Plan) -> f64 {
    const BYTES: u64 = 36 << 20;
    let places = u32::try_from(BYTES / 4 / plan.fewer).unwrap();
    let mut next: Vec<u32> = (0..places).collect();
    // Shuffled so that the walk comes to every place before it comes back.
    let mut rng = Rng::new(1);
    (1..next.len()).rev().for_each(|last| next.swap(last, rng.index(last)));
    let mut place = 0;
    let mut walk = |_| {
        let start = SystemClock.elapsed();
        (0..plan.checks).for_each(|_| place = next[place as usize]);
        black_box(place);
        let micros = SystemClock.elapsed().saturating_sub(start).get();
        1_000.0 * micros as f64 / plan.checks as f64
    };
    median((0..plan.rounds).map(&mut walk).collect())
}

fn row(name: &str, nanos: &[f64]) {
    let figures: String = nanos.iter().map(|nanos| format!("{nanos:9.0}")).collect();
    let [table, limiter, governor, ..] = nanos else { return };
    let (over_table, over_limiter) = (governor / table, governor / limiter);
    say(&format!("{name:40}{figures}{over_table:17.2}{over_limiter:18.2}"));
}
