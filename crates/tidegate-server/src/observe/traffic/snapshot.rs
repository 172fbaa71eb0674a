//! The JSON model of `/v1/live`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::{Circuit, Health, Micros, Outcome};

use super::denials::DenialRecord;
use super::seconds::WindowSeconds;
pub use crate::observe::hot_keys::{HotKey, HotKeyState};
use crate::observe::metrics::OutcomeCounts;
pub(crate) use crate::observe::metrics::RequestCounts;

/// Traffic snapshot up to the last full second.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema, Debug)]
pub struct TrafficSnapshot {
    /// The version of the server.
    pub version: String,
    /// The instance: random, as in the key part `instance`.
    #[serde(default)]
    pub instance: String,
    /// The address of the store, without a password; `memory` for none.
    #[serde(default)]
    pub store_address: String,
    /// When the last second of the series ended, in milliseconds since 1970.
    pub at_ms: u64,
    /// How long the server has been running, in seconds.
    pub uptime_s: u64,
    /// The number of seconds in each series.
    pub seconds: usize,
    /// All requests, each counted once, however many rules applied to it.
    #[serde(default)]
    pub requests: RequestStats,
    /// All rules together: a request counts once for each rule that applied to it.
    pub total: CallStats,
    /// The 512 busiest rules of the last 15 minutes, by name.
    pub rules: Vec<RuleTraffic>,
    /// The sum of all other rules; all zero if there are none.
    pub other: CallSeries,
    /// Latency of checks.
    pub latency: LatencyQuantiles,
    /// The 20 hottest keys, hottest first.
    pub hottest: Vec<HotKey>,
    /// Recent denials, by enforced and shadow limits, newest first.
    pub denials: Vec<RecentDenial>,
    /// Denials not recorded since the start (more than 50 in a second).
    pub denials_left_out: u64,
    /// Store status.
    pub store: StoreState,
    /// Policy status.
    pub policy: PolicyState,
    /// Open connections.
    pub connections: ConnectionCounts,
}

/// The calls of one rule.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema, Debug)]
pub struct RuleTraffic {
    /// The name of the rule.
    pub name: String,
    /// Permits leased from the store and not used yet.
    pub lent: u64,
    /// Its calls.
    #[serde(flatten)]
    pub traffic: CallStats,
}

/// Numbers of calls.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema, Debug)]
pub struct CallStats {
    /// Since the server started.
    pub totals: CallTotals,
    /// Per second, averaged over the last ten seconds.
    pub rates: CallRates,
    /// In each of the last seconds, oldest first; empty if there were none.
    pub series: CallSeries,
}

/// Numbers of requests.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema, Debug)]
pub struct RequestStats {
    /// Since the server started.
    pub totals: RequestCounts<u64>,
    /// Per second, averaged over the last ten seconds.
    pub rates: RequestCounts<f64>,
    /// In each of the last seconds, oldest first; empty if there were none.
    pub series: RequestCounts<Vec<u32>>,
}

impl RequestStats {
    fn last(&self, seconds: usize) -> Self {
        let series = self.series.as_array().map(|series| recent(series, seconds));
        Self { series: RequestCounts::from_array(series), ..*self }
    }
}

/// Calls since the server started.
pub type CallTotals = OutcomeCounts<u64>;
/// Calls per second.
pub type CallRates = OutcomeCounts<f64>;
/// Calls in each of the last seconds, oldest first; empty if there were none.
pub type CallSeries = OutcomeCounts<Vec<u32>>;

/// Latency of checks on all listeners, in microseconds, from complete request to response.
/// Estimated from histogram buckets; the smallest is 5 us.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, Debug)]
pub struct LatencyQuantiles {
    /// p50 of the last ten seconds; null if there were no checks.
    pub p50_us: Option<u64>,
    /// p99 of the last ten seconds; null if there were no checks.
    pub p99_us: Option<u64>,
    /// p50 of each of the last seconds, oldest first.
    pub p50_us_series: Vec<Option<u64>>,
    /// p99 of each of the last seconds, oldest first.
    pub p99_us_series: Vec<Option<u64>>,
}

/// A denied call, or one that a shadow limit would have denied.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Debug)]
pub struct RecentDenial {
    /// When it was decided, in milliseconds since 1970.
    pub at_ms: u64,
    /// Whether it was denied or only would have been.
    pub kind: DenialKind,
    /// The reason.
    pub because: DeniedBy,
    /// The name of the rule.
    pub rule: String,
    /// The name of the limit in headers; null if it was not a limit.
    pub policy: Option<String>,
    /// The limit in the notation; null if it was not a limit.
    pub limit: Option<String>,
    /// The key as in `hottest`; null if unknown.
    pub key: Option<String>,
    /// Retry after, in milliseconds; null if never or not denied by a limit.
    pub retry_after_ms: Option<u64>,
}

/// The kind of a denial.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Debug)]
#[serde(rename_all = "snake_case")]
pub enum DenialKind {
    /// Denied.
    Deny,
    /// Allowed, but a shadow limit would have denied it.
    WouldDeny,
}

/// Why a call was denied.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Debug)]
#[serde(rename_all = "snake_case")]
pub enum DeniedBy {
    /// The limit was exhausted.
    Limit,
    /// The cost exceeds the limit: never allowed.
    Never,
    /// Deny list, or missing key with `on_missing_key: deny`.
    List,
}

/// Store status.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Debug)]
pub struct StoreState {
    /// Whether decisions come from the store; of a Cluster, those of most shards.
    pub up: bool,
    /// Why decisions, or those of some shards, do not come from the store, and the remedy.
    pub error: Option<String>,
    /// Since when, in seconds since 1970; null without an error.
    pub since: Option<u64>,
    /// Keys with state; null if unknown.
    pub tracked_keys: Option<u64>,
    /// Memory used for state in this process, in bytes.
    pub memory_bytes: u64,
    /// Misconfiguration of the store and its remedy.
    pub warning: Option<String>,
    /// Circuit breaker: `closed`, `half-open` or `open`; null for a store without one.
    pub circuit: Option<String>,
    /// Times the store may have lost its state.
    pub resets: u64,
    /// Cause of the last such loss.
    pub last_reset: Option<String>,
}

/// Policy status.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, Debug)]
pub struct PolicyState {
    /// The number of active rules.
    pub rules: usize,
    /// When the active policy was loaded, in seconds since 1970.
    pub loaded_at: u64,
    /// Why the last reload failed.
    pub error: Option<String>,
    /// Problems of the control plane and of its configuration.
    #[serde(default)]
    pub control_plane: Option<String>,
    /// Problem of run-time rules and overrides.
    #[serde(default)]
    pub runtime: Option<String>,
}

impl StoreState {
    /// Why the server is degraded because of its store.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = String> {
        let unknown = (!self.up).then_some("unavailable");
        let error = self.error.as_deref().or(unknown);
        error.into_iter().chain(self.warning.as_deref()).map(|reason| format!("store: {reason}"))
    }
}

impl PolicyState {
    /// Why the server is degraded because of its policy.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = String> {
        let error = self.error.iter().map(|error| format!("policy: {error}"));
        // These begin with what they are about.
        error.chain(self.control_plane.iter().cloned()).chain(self.runtime.iter().cloned())
    }
}

/// Open connections per listener.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema, Debug)]
pub struct ConnectionCounts {
    /// HTTP.
    pub http: u64,
    /// The Redis protocol.
    pub resp: u64,
    /// gRPC.
    pub grpc: u64,
}

/// The part of a snapshot that is read when it is made.
#[derive(Clone, Debug)]
pub struct CurrentStatus {
    /// The wall clock.
    pub now: Micros,
    /// The same instant on the monotonic clock.
    pub elapsed: Micros,
    pub health: Health,
    /// The hottest keys, at most [`CurrentStatus::MAX_HOTTEST`].
    pub hottest: Vec<HotKey>,
    pub policy: PolicyState,
    /// Open connections per listener.
    pub connections: ConnectionCounts,
    /// The address of the store, without a password.
    pub store_address: String,
}

impl CurrentStatus {
    /// The maximum number of hot keys in a snapshot.
    pub const MAX_HOTTEST: usize = 20;

    /// A status with only an instant, the same on both clocks, and a store.
    #[cfg(test)]
    pub(crate) fn at(now: Micros, health: Health) -> Self {
        let (policy, connections) = (PolicyState::default(), ConnectionCounts::default());
        let (hottest, store_address) = (Vec::new(), String::new());
        Self { now, elapsed: now, health, hottest, policy, connections, store_address }
    }
}

impl TrafficSnapshot {
    /// The same snapshot with at most the last `seconds` of its series.
    pub(super) fn last(&self, seconds: WindowSeconds) -> Self {
        let seconds = seconds.get().min(self.seconds);
        let traffic = |of: &CallStats| CallStats { series: of.series.last(seconds), ..*of };
        let rule = |of: &RuleTraffic| RuleTraffic {
            name: of.name.clone(),
            lent: of.lent,
            traffic: traffic(&of.traffic),
        };
        Self {
            version: self.version.clone(),
            instance: self.instance.clone(),
            store_address: self.store_address.clone(),
            seconds,
            requests: self.requests.last(seconds),
            total: traffic(&self.total),
            rules: self.rules.iter().map(rule).collect(),
            other: self.other.last(seconds),
            latency: LatencyQuantiles {
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

impl CallSeries {
    fn last(&self, seconds: usize) -> Self {
        Self::from_array(self.as_array().map(|series| recent(series, seconds)))
    }
}

/// The last seconds; empty if there was nothing in them.
fn recent(series: &[u32], seconds: usize) -> Vec<u32> {
    match tail(series, seconds) {
        zeros if zeros.iter().all(|count| *count == 0) => Vec::new(),
        last => last.to_vec(),
    }
}

fn tail<T>(series: &[T], seconds: usize) -> &[T] {
    &series[series.len().saturating_sub(seconds)..]
}

impl From<Health> for StoreState {
    fn from(health: Health) -> Self {
        Self {
            up: health.up,
            error: health.error.map(|error| error.to_string()),
            since: health.since.map(|since| since.get() / 1_000_000),
            tracked_keys: health.tracked_keys,
            memory_bytes: health.memory_bytes,
            warning: health.warning.map(|warning| warning.to_string()),
            circuit: health.circuit.map(|circuit| Circuit::name(circuit).into()),
            resets: health.resets,
            last_reset: health.last_reset.map(|what| what.to_string()),
        }
    }
}

impl RecentDenial {
    pub(super) fn new(kind: DenialKind, denial: DenialRecord) -> Self {
        let (because, wait) = match &denial.limit {
            None => (DeniedBy::List, None),
            Some((_, Outcome::RetryAfter(wait))) => (DeniedBy::Limit, Some(*wait)),
            Some(_) => (DeniedBy::Never, None),
        };
        let limit = denial.limit.as_ref().map(|(limit, _)| limit);
        Self {
            at_ms: denial.at.get() / 1_000,
            kind,
            because,
            rule: denial.rule.into(),
            policy: limit.map(|limit| limit.policy().to_string()),
            limit: limit.map(|limit| limit.limit().to_string()),
            key: denial.key,
            retry_after_ms: wait.map(|wait| wait.get().div_ceil(1_000)),
        }
    }
}
