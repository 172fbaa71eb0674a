//! Load before, during and after a fault, and the figures that every fault reports.

use std::ops::Range;
use std::time::Duration;

use testkit::timing::HANG;
use tidegate::{Rule, Source};
use tokio::time::sleep;

use super::options::Options;
use crate::checker::{Bound, NO_SOURCE, by_source, quantile};
use crate::load::{Callers, Load, Timers, until};
use crate::log::{CallLog, CallResult, LoggedCall};
use crate::stack::{Stack, StoreTransition};
use crate::table::FigureTable;

pub(super) const SECOND: Duration = Duration::from_secs(1);
/// Tolerance beyond a deadline.
pub(super) const SLACK: Duration = Duration::from_millis(5);
/// Latency until the circuit opens, from 70 calls a second on: it opens when a store has sent no
/// reply for 75 ms.
pub(super) const UNTIL_OPEN: Duration = Duration::from_millis(80);
/// Latency while the circuit is open.
pub(super) const WHILE_OPEN: Duration = Duration::from_millis(1);

/// Each key is checked more often than its limit allows, so that some checks are denied.
pub(super) const KEYS: Range<u32> = 0..40;
pub(super) const RATE: u64 = 2_000;
pub(super) const BOUND: Bound = Bound::Bucket { burst: 30, count: 30, period: 1_000_000 };

pub(super) fn rule() -> Rule {
    Rule::new("api", ["30/s".parse().unwrap()]).unwrap()
}

/// Load on one stack.
pub(super) struct Scenario {
    pub(super) log: CallLog,
    load: Load,
    bare: CallLog,
    timers: Timers,
}

impl Scenario {
    pub(super) fn start(stack: &Stack, options: &Options) -> Self {
        Self::start_at(stack, options, options.rate(RATE))
    }

    pub(super) fn start_at(stack: &Stack, options: &Options, rate: u64) -> Self {
        let log = CallLog::new();
        let limiter = stack.limiter([rule()]);
        let seed = options.seed;
        let load = Load::start(Callers { limiter, keys: KEYS, rate, client: 0, seed }, &log);
        let bare = log.sibling();
        Self { load, timers: Timers::start(&bare), bare, log }
    }

    /// Waits for the decisions of all calls started so far, and counts those that hang. Before the
    /// end of a fault it proves that no decision waits for that end.
    pub(super) async fn judge_decided(&self, table: &mut FigureTable) {
        table.exactly("calls that wait for the end of the fault", self.load.undecided().await, 0);
    }

    /// Waits until the store decides again, and for `span` more.
    pub(super) async fn until_store_decides(&self, since: u64, span: Duration) {
        self.load.until_store_decides(since).await;
        sleep(span).await;
    }

    /// Stops the load and returns its log.
    pub(super) async fn stop(self) -> ScenarioResult {
        let begun = self.load.begun();
        let hung = self.load.stop().await;
        self.timers.stop().await;
        ScenarioResult { log: self.log.read(), bare: self.bare.read(), begun, hung }
    }
}

/// Log and counts of a scenario.
pub(super) struct ScenarioResult {
    pub(super) log: Vec<LoggedCall>,
    /// Durations of bare timers in the same time.
    bare: Vec<LoggedCall>,
    /// A lower bound: calls that started while the load stopped are missing.
    pub(super) begun: u64,
    pub(super) hung: u64,
}

impl ScenarioResult {
    /// Compares a quantile of the latency of calls that began in this time with its goal. The delay
    /// of bare timers is the machine's, and is subtracted; both are reported.
    pub(super) fn judge_took(
        &self,
        table: &mut FigureTable,
        what: &str,
        during: Range<u64>,
        per_mille: usize,
        goal: Duration,
    ) {
        let [of_calls, of_timers] = [&self.log, &self.bare];
        let took = took_at(of_calls, during.clone(), per_mille);
        let bare = took_at(of_timers, during.clone(), per_mille);
        table.goal(what, took.saturating_sub(bare.saturating_sub(Timers::SPAN)), goal);
        let longest = [of_calls, of_timers].map(|log| took_at(log, during.clone(), 1000));
        table.report(
            "  as measured, and longest",
            format!("{:.2} ms, {:.2} ms", ms(took), ms(longest[0])),
        );
        table.report(
            "  bare timers of 25 ms",
            format!("{:.2} ms, {:.2} ms", ms(bare), ms(longest[1])),
        );
    }

    /// Compares p99.9 of the latency with its goals: until the circuit opens, and while it is open.
    pub(super) fn judge_outage(
        &self,
        table: &mut FigureTable,
        outage: Range<u64>,
        opened: Option<u64>,
    ) {
        let opened = opened.unwrap_or(outage.end);
        let (before, after) = (outage.start..opened, opened..outage.end);
        self.judge_took(table, "p99.9 until the circuit opens", before, 999, UNTIL_OPEN);
        self.judge_took(table, "p99.9 while it is open", after, 999, WHILE_OPEN);
    }

    /// Checks what holds in every fault: each call has a decision with a source, and admissions
    /// stay within the bound, given how often the store lost its state.
    pub(super) fn judge(&self, table: &mut FigureTable, bound: Bound, forgotten: u64) {
        judge(&self.log, table, bound, forgotten);
        table.at_least("decisions in the log", self.log.len() as u64, self.begun);
        table.exactly("calls that hang", self.hung, 0);
    }
}

/// Checks what holds for every log.
pub(super) fn judge(log: &[LoggedCall], table: &mut FigureTable, bound: Bound, forgotten: u64) {
    let sources = by_source(log);
    let shown: Vec<String> = sources.iter().map(|(name, n)| format!("{name} {n}")).collect();
    table.report("decisions by source", shown.join(", "));
    let errors = log.iter().filter(|entry| entry.result.source().is_none()).count();
    table.exactly("errors to callers", errors as u64, 0);
    let with_source: u64 = sources.iter().filter(|(name, _)| *name != NO_SOURCE).map(|s| s.1).sum();
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

/// Latencies of the calls that began in this time.
pub(super) fn took(log: &[LoggedCall], during: Range<u64>) -> Vec<u64> {
    log.iter().filter(|entry| during.contains(&entry.begun)).map(LoggedCall::took).collect()
}

/// Quantile of these latencies, in per mille.
pub(super) fn took_at(log: &[LoggedCall], during: Range<u64>, per_mille: usize) -> Duration {
    Duration::from_micros(quantile(&mut took(log, during), per_mille))
}

/// End of the first decision by the store since `since`.
pub(super) fn first_by_store(log: &[LoggedCall], since: u64) -> Option<u64> {
    let stored = log.iter().filter(|entry| entry.is_from(Source::Redis) && entry.begun >= since);
    stored.map(|entry| entry.ended).min()
}

/// End of the last decision by the fallback.
pub(super) fn last_by_fallback(log: &[LoggedCall]) -> Option<u64> {
    log.iter().filter(|entry| entry.is_from(Source::Fallback)).map(|entry| entry.ended).max()
}

/// Quantile of the delay of bare timers, in per mille.
pub(super) fn late(bare: &[LoggedCall], per_mille: usize) -> Duration {
    took_at(bare, 0..u64::MAX, per_mille).saturating_sub(Timers::SPAN)
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// Time between two instants; zero if `to` is earlier.
pub(super) fn span(from: u64, to: u64) -> Duration {
    Duration::from_micros(to.saturating_sub(from))
}

/// Checks that the store decides again, and how soon.
pub(super) fn judge_return(table: &mut FigureTable, log: &[LoggedCall], back: u64) {
    let first = first_by_store(log, back).map(|first| span(back, first));
    table.claim("redis decides again", first.is_some(), first.is_some());
    table.goal("first decision by redis after PONG", first.unwrap_or(Duration::MAX), SECOND);
    let last = last_by_fallback(log).map_or(Duration::ZERO, |last| span(back, last));
    table.report("last decision by the fallback after PONG", format!("{:.2} ms", ms(last)));
    let settled = back.saturating_add(SECOND.as_micros() as u64);
    let after: Vec<&LoggedCall> = log.iter().filter(|entry| entry.begun >= settled).collect();
    let local = after.iter().filter(|entry| entry.is_from(Source::Fallback)).count();
    // The machine may delay one call in a hundred beyond its deadline, and the fallback decides it.
    let goal = (after.len() / 100) as u64;
    table.goal("decisions by the fallback a second after PONG", local as u64, goal);
}

/// Waits until the breaker is closed. It must open, and then open and close in turn; once is the
/// goal, as a busy machine makes a store slow again.
pub(super) async fn judge_breaker(table: &mut FigureTable, stack: &Stack) {
    let seen = || -> Vec<StoreTransition> {
        stack.transitions().into_iter().map(|(_, transition)| transition).collect()
    };
    let closed = until(HANG, || seen().last() == Some(&StoreTransition::Closed)).await;
    let seen = seen();
    let in_turn = seen.iter().enumerate().all(|(nth, transition)| {
        *transition == [StoreTransition::Opened, StoreTransition::Closed][nth % 2]
    });
    table.claim("the breaker opens and closes in turn", seen.len(), closed && in_turn);
    table.goal("the breaker opens once, and closes once", seen.len() as u64, 2);
}

/// Reports the transitions of the breaker.
pub(super) fn report_transitions(table: &mut FigureTable, stack: &Stack, log: &CallLog) {
    let transitions = stack.transitions();
    let count = |one| transitions.iter().filter(|(_, transition)| *transition == one).count();
    let [opened, closed] = [StoreTransition::Opened, StoreTransition::Closed].map(count);
    table.report("the breaker opened and closed", format!("{opened} and {closed} times"));
    // Only the first of a long run.
    for (at, transition) in transitions.iter().take(8) {
        table.report(&format!("  {transition:?}"), format!("at {:.3} s", log.at(*at) as f64 / 1e6));
    }
    let (ambiguous, unavailable) = stack.without_reply();
    table.report("calls without a reply", format!("{ambiguous} ambiguous, {unavailable} not sent"));
}

/// Allowed by the store.
pub(super) fn is_admission(entry: &LoggedCall) -> bool {
    matches!(entry.result, CallResult::Allow(source) if source != Source::Fallback)
}
