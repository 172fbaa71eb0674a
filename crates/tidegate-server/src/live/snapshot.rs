//! What was seen lately, as it is told.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::{Circuit, Health, Micros, Outcome};

use super::denials::Noted;
use super::history::KINDS;
use super::ring::Ring;
use super::{Live, Seconds};
use crate::hottest::Hot;
use crate::metrics::{Door, Durations, RuleTotals};
use crate::policies::{Condition, Policies};
use crate::service::Service;

/// What the server has seen lately, up to the last second that is over.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema, Debug)]
pub struct Snapshot {
    /// The version of the server.
    pub version: String,
    /// When the last second of the series ended, in milliseconds since 1970.
    pub at_ms: u64,
    /// How long the server has been running, in seconds.
    pub uptime_s: u64,
    /// How many seconds the series have.
    pub seconds: usize,
    /// All rules together.
    pub total: Traffic,
    /// The rules that were asked in the last quarter of an hour, by name: the 512 busiest of them.
    pub rules: Vec<RuleTraffic>,
    /// The seconds of rules beyond those, summed up; all zero if there are none.
    pub other: Series,
    /// How long checks took.
    pub latency: Latency,
    /// The 20 keys that are asked about most, most first.
    pub hottest: Vec<HotKey>,
    /// The last calls that were denied, or that a shadow limit would have denied, newest first.
    pub denials: Vec<Denial>,
    /// Calls that are missing in `denials` since the start, because there were more than 50 in a second.
    pub denials_left_out: u64,
    /// How the store is.
    pub store: StoreState,
    /// The policy in force.
    pub policy: PolicyState,
    /// Open connections.
    pub connections: Connections,
}

/// The calls of one rule.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema, Debug)]
pub struct RuleTraffic {
    /// The rule.
    pub name: String,
    /// Permits borrowed from the store and not spent yet.
    pub lent: u64,
    /// Its calls.
    #[serde(flatten)]
    pub traffic: Traffic,
}

/// How many calls there were.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema, Debug)]
pub struct Traffic {
    /// Since the server began.
    pub totals: Totals,
    /// In a second, on the average of the last ten.
    pub rates: Rates,
    /// In each of the last seconds.
    pub series: Series,
}

/// How many calls there were since the server began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, Debug)]
pub struct Totals {
    /// Allowed.
    pub allowed: u64,
    /// Denied, those that can never pass too.
    pub denied: u64,
    /// Without an answer.
    pub errors: u64,
    /// Allowed, though a shadow limit would have denied them.
    pub would_deny: u64,
    /// Of all, those that the local limiter decided because the store did not answer.
    pub fallback: u64,
}

/// How many calls there are in a second.
#[derive(Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema, Debug)]
pub struct Rates {
    /// Allowed.
    pub allowed: f64,
    /// Denied.
    pub denied: f64,
    /// Without an answer.
    pub errors: f64,
    /// Allowed, though a shadow limit would have denied them.
    pub would_deny: f64,
    /// Decided by the local limiter.
    pub fallback: f64,
}

/// How many calls there were in each of the last seconds, oldest first. Empty means that there were none at all.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, Debug)]
pub struct Series {
    /// Allowed.
    pub allowed: Vec<u32>,
    /// Denied.
    pub denied: Vec<u32>,
    /// Without an answer.
    pub errors: Vec<u32>,
    /// Allowed, though a shadow limit would have denied them.
    pub would_deny: Vec<u32>,
    /// Decided by the local limiter.
    pub fallback: Vec<u32>,
}

/// How long checks took at all doors, in microseconds, from the whole request to the answer. About: they are counted in
/// buckets, the least of which ends at 5 microseconds.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, Debug)]
pub struct Latency {
    /// Half of those of the last ten seconds took no longer; null if there were none.
    pub p50_us: Option<u64>,
    /// 99 of 100 of those took no longer.
    pub p99_us: Option<u64>,
    /// The same of each of the last seconds, oldest first.
    pub p50_us_series: Vec<Option<u64>>,
    /// The same of each of the last seconds, oldest first.
    pub p99_us_series: Vec<Option<u64>>,
}

/// A key that is asked about often.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Debug)]
pub struct HotKey {
    /// The rule.
    pub rule: String,
    /// The key, for people to read: control characters escaped, several parts joined by `|`, and cut to 128 bytes.
    pub key: String,
    /// Calls that were allowed lately, about. They count half after 30 s.
    pub allowed: u64,
    /// Calls that were denied lately, about.
    pub denied: u64,
}

/// A call that was denied, or would have been.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Debug)]
pub struct Denial {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What became of it.
    pub kind: Kind,
    /// Why.
    pub because: Because,
    /// The rule.
    pub rule: String,
    /// The name of the limit in headers; null if it was not a limit.
    pub policy: Option<String>,
    /// The limit in the notation.
    pub limit: Option<String>,
    /// The key as `hottest` shows it; null where it is not known.
    pub key: Option<String>,
    /// When it could have come back; null if never, or if it was not a limit.
    pub retry_after_ms: Option<u64>,
}

/// What became of a call.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It was denied.
    Deny,
    /// It was allowed, and a shadow limit would have denied it.
    WouldDeny,
}

/// Why a call was denied.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Because {
    /// Nothing was left.
    Limit,
    /// It costs more than the whole limit, so it can never pass.
    Never,
    /// A list of the rule denies it; or it has no key, and the rule denies that.
    List,
}

/// How the store is.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Debug)]
pub struct StoreState {
    /// Does it answer?
    pub up: bool,
    /// Keys it has state for, where that is known.
    pub tracked_keys: Option<u64>,
    /// Bytes it uses in this process.
    pub memory_bytes: u64,
    /// What should be otherwise, though it answers, and what to do about it.
    pub warning: Option<String>,
    /// `closed` while it is asked; `open` while it is not, since it did not answer; `half-open` while it is tried.
    /// Null if it cannot fall silent.
    pub circuit: Option<String>,
    /// How often it may have lost what it had counted.
    pub resets: u64,
    /// What happened the last time.
    pub last_reset: Option<String>,
}

/// How the policy is.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, Debug)]
pub struct PolicyState {
    /// How many rules are in force.
    pub rules: usize,
    /// When they were read, in seconds since 1970.
    pub loaded_at: u64,
    /// Why the file as it is now is not in force.
    pub error: Option<String>,
}

/// Open connections of each door.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, Debug)]
pub struct Connections {
    /// HTTP.
    pub http: u64,
    /// The Redis protocol.
    pub resp: u64,
    /// gRPC.
    pub grpc: u64,
}

/// What a snapshot tells that is not of the past.
#[derive(Clone, Debug)]
pub struct Present {
    /// The time of day, and the instant on the clock that never steps.
    pub now: Micros,
    /// The same instant on the clock that never steps.
    pub elapsed: Micros,
    /// How the store is.
    pub health: Health,
    /// The keys that are asked about most.
    pub hottest: Vec<Hot>,
    /// How the policy is.
    pub policy: PolicyState,
    /// Who is connected.
    pub connections: Connections,
}

impl Present {
    /// The most keys that are told.
    pub const MAX_HOTTEST: usize = 20;

    /// As it is now.
    pub fn of(service: &Service, policies: &Policies) -> Self {
        let (now, elapsed) = (service.clock().now(), service.clock().elapsed());
        let Condition { loaded_at, error } = policies.condition();
        let open = |door| service.metrics().connections(door);
        Self {
            now,
            elapsed,
            health: service.health(),
            hottest: service.hottest().top(Self::MAX_HOTTEST, now),
            policy: PolicyState {
                rules: service.active().policy.rules().len(),
                loaded_at: loaded_at.get() / 1_000_000,
                error,
            },
            connections: Connections {
                http: open(Door::Http),
                resp: open(Door::Resp),
                grpc: open(Door::Grpc),
            },
        }
    }

    /// Nothing but an instant, the same on both clocks, and a store.
    #[cfg(test)]
    pub(super) fn at(now: Micros, health: Health) -> Self {
        let (policy, connections) = (PolicyState::default(), Connections::default());
        Self { now, elapsed: now, health, hottest: Vec::new(), policy, connections }
    }
}

impl Live {
    /// All that was seen in the last seconds, and what is now.
    pub fn snapshot(&self, seconds: Seconds, present: Present) -> Snapshot {
        let Present { now, elapsed, health, hottest, policy, connections } = present;
        // Numbers are copied while the next sample waits; the rest is made of the copy.
        let history = self.history();
        let window = Window { end: history.end(), seconds, average: history.seconds().min(10) };
        let end_at = history.end_at();
        let (totals, total) = history.total();
        let total = window.traffic(totals, total);
        let other = window.series(history.other());
        let latency = history.latency().clone();
        let mut rules: Vec<_> = history
            .rules()
            .map(|past| RuleTraffic {
                name: past.name.to_string(),
                lent: health.lent.get(&**past.name).copied().unwrap_or(0),
                traffic: window.traffic(past.totals, past.ring),
            })
            .collect();
        drop(history);
        rules.sort_by(|a, b| a.name.cmp(&b.name));
        Snapshot {
            version: env!("CARGO_PKG_VERSION").into(),
            at_ms: now.saturating_sub(elapsed.saturating_sub(end_at)).get() / 1_000,
            uptime_s: elapsed.saturating_sub(self.began).get() / 1_000_000,
            seconds: seconds.get(),
            total,
            rules,
            other,
            latency: window.latency(&latency),
            hottest: hottest.into_iter().map(HotKey::from).collect(),
            denials: self.denials(),
            denials_left_out: self.denied().left_out() + self.would_deny().left_out(),
            store: StoreState::from(health),
            policy,
            connections,
        }
    }

    fn denials(&self) -> Vec<Denial> {
        let of = |kind| move |noted| (kind, noted);
        let denied = self.denied().last().into_iter().map(of(Kind::Deny));
        let would_deny = self.would_deny().last().into_iter().map(of(Kind::WouldDeny));
        let mut all: Vec<(Kind, Noted)> = denied.chain(would_deny).collect();
        all.sort_by_key(|(_, noted)| noted.at);
        all.into_iter().rev().map(|(kind, noted)| Denial::new(kind, noted)).collect()
    }
}

impl Snapshot {
    /// The same with no more than so many of its last seconds.
    pub(super) fn last(&self, seconds: Seconds) -> Self {
        let seconds = seconds.get().min(self.seconds);
        let traffic = |of: &Traffic| Traffic { series: of.series.last(seconds), ..*of };
        let rule = |of: &RuleTraffic| RuleTraffic {
            name: of.name.clone(),
            lent: of.lent,
            traffic: traffic(&of.traffic),
        };
        Self {
            version: self.version.clone(),
            seconds,
            total: traffic(&self.total),
            rules: self.rules.iter().map(rule).collect(),
            other: self.other.last(seconds),
            latency: Latency {
                p50_us_series: tail(&self.latency.p50_us_series, seconds).to_vec(),
                p99_us_series: tail(&self.latency.p99_us_series, seconds).to_vec(),
                ..self.latency
            },
            hottest: self.hottest.clone(),
            denials: self.denials.clone(),
            store: self.store.clone(),
            policy: self.policy.clone(),
            ..*self
        }
    }
}

impl Series {
    fn last(&self, seconds: usize) -> Self {
        let of = |series: &[u32]| match tail(series, seconds) {
            zeros if zeros.iter().all(|count| *count == 0) => Vec::new(),
            last => last.to_vec(),
        };
        Self {
            allowed: of(&self.allowed),
            denied: of(&self.denied),
            errors: of(&self.errors),
            would_deny: of(&self.would_deny),
            fallback: of(&self.fallback),
        }
    }
}

fn tail<T>(series: &[T], seconds: usize) -> &[T] {
    &series[series.len().saturating_sub(seconds)..]
}

/// Which seconds are told.
#[derive(Clone, Copy)]
struct Window {
    end: u64,
    seconds: Seconds,
    /// How many of them an average is made of.
    average: u64,
}

impl Window {
    fn traffic(self, totals: &RuleTotals, ring: &Ring<KINDS>) -> Traffic {
        let mut sums = [0_u64; KINDS];
        for counts in ring.last(self.end, self.average as usize) {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += u64::from(*count));
        }
        let [allowed, denied, errors, would_deny, fallback] =
            sums.map(|sum| sum as f64 / self.average as f64);
        let rates = Rates { allowed, denied, errors, would_deny, fallback };
        Traffic { totals: Totals::from(totals), rates, series: self.series(ring) }
    }

    fn series(self, ring: &Ring<KINDS>) -> Series {
        let of = |kind: usize| -> Vec<u32> {
            let counts = || ring.last(self.end, self.seconds.get()).map(move |c| c[kind]);
            if counts().all(|count| count == 0) { Vec::new() } else { counts().collect() }
        };
        Series { allowed: of(0), denied: of(1), errors: of(2), would_deny: of(3), fallback: of(4) }
    }

    fn latency(self, ring: &Ring<{ Durations::BUCKETS }>) -> Latency {
        let micros = |durations: Durations, percent| {
            durations.percentile(percent).map(|nanos: u64| nanos.div_ceil(1_000))
        };
        let mut lately = Durations::default();
        for counts in ring.last(self.end, self.average as usize) {
            lately.add(&Durations(counts.map(u64::from)));
        }
        let series = |percent| {
            let seconds = ring.last(self.end, self.seconds.get());
            seconds.map(|counts| micros(Durations(counts.map(u64::from)), percent)).collect()
        };
        Latency {
            p50_us: micros(lately, 50),
            p99_us: micros(lately, 99),
            p50_us_series: series(50),
            p99_us_series: series(99),
        }
    }
}

impl From<&RuleTotals> for Totals {
    fn from(totals: &RuleTotals) -> Self {
        let RuleTotals { allowed, denied, errors, would_deny, fallback } = *totals;
        Self { allowed, denied, errors, would_deny, fallback }
    }
}

impl From<Hot> for HotKey {
    fn from(hot: Hot) -> Self {
        let Hot { rule, key, allowed, denied } = hot;
        Self { rule, key, allowed, denied }
    }
}

impl From<Health> for StoreState {
    fn from(health: Health) -> Self {
        Self {
            up: health.up,
            tracked_keys: health.tracked_keys,
            memory_bytes: health.memory_bytes,
            warning: health.warning.map(|warning| warning.to_string()),
            circuit: health.circuit.map(|circuit| Circuit::name(circuit).into()),
            resets: health.resets,
            last_reset: health.last_reset.map(|what| what.to_string()),
        }
    }
}

impl Denial {
    fn new(kind: Kind, noted: Noted) -> Self {
        let (because, wait) = match &noted.limit {
            None => (Because::List, None),
            Some((_, Outcome::RetryAfter(wait))) => (Because::Limit, Some(*wait)),
            Some(_) => (Because::Never, None),
        };
        let limit = noted.limit.as_ref().map(|(limit, _)| limit);
        Self {
            at_ms: noted.at.get() / 1_000,
            kind,
            because,
            rule: noted.rule.into(),
            policy: limit.map(|limit| limit.policy().to_string()),
            limit: limit.map(|limit| limit.limit().to_string()),
            key: noted.key,
            retry_after_ms: wait.map(|wait| wait.get().div_ceil(1_000)),
        }
    }
}
