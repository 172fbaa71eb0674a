//! Callers before, while and after something is wrong.

use std::ops::Range;
use std::time::Duration;

use tidegate::{Rule, Source};
use tokio::time::{Instant, sleep};

use super::Options;
use crate::checker::{Bound, by_source, quantile};
use crate::load::{Callers, Load, Timers};
use crate::log::{Entry, Log, Said};
use crate::stack::{Stack, Turn};
use crate::table::Table;

pub(super) const SECOND: Duration = Duration::from_secs(1);
/// What is later than its deadline by more than this is late.
pub(super) const SLACK: Duration = Duration::from_millis(5);

/// Each key is asked about more often than it may pass, so that some pass and some do not.
pub(super) const KEYS: Range<u32> = 0..40;
pub(super) const RATE: u64 = 2_000;
pub(super) const BOUND: Bound = Bound::Bucket { burst: 30, count: 30, period: 1_000_000 };

pub(super) fn rule() -> Rule {
    Rule::new("api", ["30/s".parse().unwrap()]).unwrap()
}

/// Callers that ask one stack.
pub(super) struct Scene {
    pub(super) log: Log,
    load: Load,
    bare: Log,
    timers: Timers,
}

impl Scene {
    pub(super) fn begin(stack: &Stack, options: &Options) -> Self {
        Self::begin_at(stack, options, options.rate(RATE))
    }

    pub(super) fn begin_at(stack: &Stack, options: &Options, rate: u64) -> Self {
        let log = Log::new();
        let limiter = stack.limiter([rule()]);
        let seed = options.seed;
        let load = Load::begin(Callers { limiter, keys: KEYS, rate, client: 0, seed }, &log);
        let bare = log.beside();
        Self { load, timers: Timers::begin(&bare), bare, log }
    }

    /// Everything that was said, with how many calls came and how many hang.
    pub(super) async fn end(self) -> Ended {
        let begun = self.load.begun();
        let hung = self.load.end().await;
        self.timers.end().await;
        Ended { log: self.log.read(), bare: self.bare.read(), begun, hung }
    }
}

/// What there is to say when all is over.
pub(super) struct Ended {
    pub(super) log: Vec<Entry>,
    /// What bare timers took meanwhile.
    bare: Vec<Entry>,
    /// At least: those who came in the end are not in it.
    pub(super) begun: u64,
    pub(super) hung: u64,
}

impl Ended {
    /// So many of a thousand calls that began in this time took no longer than `bound`. What timers without a
    /// limiter were late is the machine's, and taken off; both are told.
    pub(super) fn judge_took(
        &self,
        table: &mut Table,
        what: &str,
        during: Range<u64>,
        per_mille: usize,
        bound: Duration,
    ) {
        let [of_calls, of_timers] = [&self.log, &self.bare];
        let took = took_at(of_calls, during.clone(), per_mille);
        let bare = took_at(of_timers, during.clone(), per_mille);
        table.at_most(what, took.saturating_sub(bare.saturating_sub(Timers::SPAN)), bound);
        let longest = [of_calls, of_timers].map(|log| took_at(log, during.clone(), 1000));
        table.tell(
            "  as measured, and longest",
            format!("{:.2} ms, {:.2} ms", ms(took), ms(longest[0])),
        );
        table.tell(
            "  bare timers of 25 ms",
            format!("{:.2} ms, {:.2} ms", ms(bare), ms(longest[1])),
        );
    }

    /// What must hold whatever happens: everybody is answered, by somebody who is named, and within
    /// what was promised, if the store has forgotten everything so many times.
    pub(super) fn judge(&self, table: &mut Table, bound: Bound, forgotten: u64) {
        judge(&self.log, table, bound, forgotten);
        table.at_least("decisions in the log", self.log.len() as u64, self.begun);
        table.exactly("calls that hang", self.hung, 0);
    }
}

/// What must hold of any log.
pub(super) fn judge(log: &[Entry], table: &mut Table, bound: Bound, forgotten: u64) {
    let sources = by_source(log);
    let shown: Vec<String> = sources.iter().map(|(name, n)| format!("{name} {n}")).collect();
    table.tell("decisions by source", shown.join(", "));
    let errors = log.iter().filter(|entry| entry.said.source().is_none()).count();
    table.exactly("errors to callers", errors as u64, 0);
    let with_source: u64 = sources.iter().filter(|(name, _)| *name != "nobody").map(|s| s.1).sum();
    table.exactly("sum of sources", with_source, log.len() as u64);
    let local = |source: Source| source == Source::Fallback;
    let stored = bound.after(forgotten);
    for (what, bound, worst) in [
        ("worst interval, by the store", stored, bound.worst(log, |source| !local(source))),
        ("worst interval, by the fallback", bound.half(), bound.half().worst(log, local)),
        (
            "worst interval, by all",
            stored.and(bound.half()),
            bound.and(bound.half()).worst(log, |_| true),
        ),
    ] {
        table.at_most(what, worst.admitted, bound.at_once());
    }
}

/// How long the calls took that began in this time.
pub(super) fn took(log: &[Entry], during: Range<u64>) -> Vec<u64> {
    log.iter().filter(|entry| during.contains(&entry.begun)).map(Entry::took).collect()
}

/// So many of a thousand took no longer.
pub(super) fn took_at(log: &[Entry], during: Range<u64>, per_mille: usize) -> Duration {
    Duration::from_micros(quantile(&mut took(log, during), per_mille))
}

/// When the store decided first, since then.
pub(super) fn first_by_store(log: &[Entry], since: u64) -> Option<u64> {
    let stored = log.iter().filter(|entry| entry.is_from(Source::Redis) && entry.begun >= since);
    stored.map(|entry| entry.ended).min()
}

/// When the fallback decided last.
pub(super) fn last_by_fallback(log: &[Entry]) -> Option<u64> {
    log.iter().filter(|entry| entry.is_from(Source::Fallback)).map(|entry| entry.ended).max()
}

/// How late bare timers were, so many of a thousand not later.
pub(super) fn late(bare: &[Entry], per_mille: usize) -> Duration {
    took_at(bare, 0..u64::MAX, per_mille).saturating_sub(Timers::SPAN)
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// From the one to the other, and nothing if that was before.
pub(super) fn span(from: u64, to: u64) -> Duration {
    Duration::from_micros(to.saturating_sub(from))
}

/// How soon the store decides again: the first time, and from when on. Of a hundred calls one may be held up by the
/// machine for its deadline, and be answered by the fallback at any time.
pub(super) fn judge_return(table: &mut Table, log: &[Entry], back: u64) {
    let first = first_by_store(log, back).map(|first| span(back, first));
    table.at_most("first decision by redis after PONG", first.unwrap_or(Duration::MAX), SECOND);
    let last = last_by_fallback(log).map_or(Duration::ZERO, |last| span(back, last));
    table.tell("last decision by the fallback after PONG", format!("{:.2} ms", ms(last)));
    let settled = back.saturating_add(SECOND.as_micros() as u64);
    let after: Vec<&Entry> = log.iter().filter(|entry| entry.begun >= settled).collect();
    let local = after.iter().filter(|entry| entry.is_from(Source::Fallback)).count();
    let most = (after.len() / 100) as u64;
    table.at_most("decisions by the fallback a second after PONG", local as u64, most);
}

/// How often things changed.
pub(super) fn tell_turns(table: &mut Table, stack: &Stack, log: &Log) {
    let turns = stack.turns();
    let count = |turn| turns.iter().filter(|(_, what)| *what == turn).count();
    let [opened, closed] = [Turn::Opened, Turn::Closed].map(count);
    table.tell("the breaker opened and closed", format!("{opened} and {closed} times"));
    // Of a long run, only the first.
    for (at, turn) in turns.iter().take(8) {
        table.tell(&format!("  {turn:?}"), format!("at {:.3} s", log.at(*at) as f64 / 1e6));
    }
    let (ambiguous, unavailable) = stack.unanswered();
    table.tell("calls without an answer", format!("{ambiguous} ambiguous, {unavailable} not sent"));
}

/// Allowed by the store.
pub(super) fn is_admission(entry: &Entry) -> bool {
    matches!(entry.said, Said::Allow(source) if source != Source::Fallback)
}

/// Until `so`, or for so long.
pub(super) async fn until(patience: Duration, so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !so() {
        if begun.elapsed() > patience {
            return false;
        }
        sleep(Duration::from_millis(2)).await;
    }
    true
}
