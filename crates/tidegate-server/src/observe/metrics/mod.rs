//! All counters and their rendering in the text format of Prometheus. Imports: nothing.
//!
//! A call updates only relaxed atomics. The counters of a rule are looked up when a policy is
//! compiled. A label is a rule, an outcome, a source, a listener, a kind of error or a model of the
//! policy's prices, never a key.

pub(crate) mod exposition;
mod histogram;
mod quota;
mod rules;
mod settled;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{Circuit, EngineError, Health, Micros, Rule};

use exposition::{Exposition, MetricType};
pub(crate) use histogram::BucketCounts;
use histogram::Histogram;
pub(crate) use quota::QuotaEvent;
use quota::QuotaMetrics;
pub(crate) use rules::OutcomeCounts;
pub(crate) use rules::RuleMetrics;
use settled::SettledRatios;

/// The protocol of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ListenerKind {
    /// HTTP.
    Http,
    /// The protocol of Redis, version 2 or 3.
    Resp,
    /// Envoy's protocol over gRPC.
    Grpc,
}

impl ListenerKind {
    /// In the order of `/metrics`, HTTP first.
    pub const ALL: [Self; 3] = [Self::Http, Self::Resp, Self::Grpc];

    /// The name in metrics, logs and spans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Resp => "resp",
            Self::Grpc => "grpc",
        }
    }
}

/// All counters of the server.
///
/// ```
/// use tidegate::{Health, Outcome, Source};
/// use tidegate_server::internal::observe::metrics::Metrics;
/// let metrics = Metrics::default();
/// metrics.rule("login").count(Outcome::Allow, Source::Memory);
/// let line = r#"tidegate_checks_total{rule="login",outcome="allow",source="memory"} 1"#;
/// assert!(metrics.render(&Health::up(Some(1), 64)).contains(line));
/// ```
#[derive(Debug)]
pub struct Metrics {
    rules: Mutex<BTreeMap<Arc<str>, Arc<RuleMetrics>>>,
    settled: SettledRatios,
    quota: QuotaMetrics,
    listeners: [ListenerMetrics; ListenerKind::ALL.len()],
    store_errors: [AtomicU64; STORE_ERRORS.len()],
    breaker_opened: AtomicU64,
    waiting: AtomicU64,
    waits_refused: [AtomicU64; WaitCap::ALL.len()],
    /// Microseconds since the epoch; zero means never.
    reloaded: AtomicU64,
    reload_failures: AtomicU64,
    config_valid: AtomicBool,
}

/// Aligned to a cache line, so that listeners do not slow each other down.
#[derive(Default, Debug)]
#[repr(align(64))]
struct ListenerMetrics {
    connections: AtomicU64,
    durations: Histogram,
    refused: [AtomicU64; RejectReason::ALL.len()],
    panics: AtomicU64,
}

/// Why a connection was rejected or closed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RejectReason {
    /// The connection limit was reached.
    Full,
    /// The TLS handshake failed or timed out.
    Handshake,
    /// RESP: the client sent no complete command in time.
    Silent,
    /// HTTP/2: the client sent too many control frames.
    ControlFrames,
}

impl RejectReason {
    const ALL: [Self; 4] = [Self::Full, Self::Handshake, Self::Silent, Self::ControlFrames];

    const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Handshake => "handshake",
            Self::Silent => "silent",
            Self::ControlFrames => "control_frames",
        }
    }
}

/// Why a request that would wait for permits was not allowed to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum WaitCap {
    /// Too many wait for its key.
    Key,
    /// Too many wait on its connection.
    Connection,
    Total,
}

impl WaitCap {
    const ALL: [Self; 3] = [Self::Key, Self::Connection, Self::Total];

    const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Connection => "connection",
            Self::Total => "total",
        }
    }
}

/// The kinds of store error; the last one is for kinds without a label.
const STORE_ERRORS: [&str; 3] = ["unavailable", "ambiguous", "other"];

impl Metrics {
    /// The content type of [`Metrics::render`].
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";
    /// The maximum number of rules with counters: the 10,000 of a policy, and a few set at runtime.
    pub const MAX_RULES: usize = 10_064;
    /// The label of all rules beyond [`Metrics::MAX_RULES`] together.
    pub const OTHER: &'static str = "other";

    /// The counters of the rule of this name. They persist across reloads, until
    /// [`Metrics::set_rules`].
    ///
    /// This takes a lock: call it when a policy is compiled, not for every check.
    pub fn rule(&self, name: &str) -> Arc<RuleMetrics> {
        let mut rules = self.rules();
        if let Some(known) = rules.get(name) {
            return known.clone();
        }
        // A rule of the policy may be called `other` too; then the two share counters.
        let name = if rules.len() < Self::MAX_RULES { name } else { Self::OTHER };
        rules.entry(name.into()).or_default().clone()
    }

    /// Ends the counters of all rules but these, which are those of the active policy. `other` are
    /// the counters of [`Metrics::OTHER`].
    pub fn set_rules<'r>(
        &self,
        active: impl IntoIterator<Item = (&'r str, &'r Arc<RuleMetrics>)>,
        other: &'r Arc<RuleMetrics>,
    ) {
        let own = active.into_iter().filter(|(_, counters)| !Arc::ptr_eq(counters, other));
        let all = own.chain([(Self::OTHER, other)]);
        let mut rules = self.rules();
        *rules = all.map(|(name, counters)| (name.into(), counters.clone())).collect();
        self.settled.retain(|rule| rules.contains_key(rule));
    }

    /// Counts what a rule was charged for a reservation. `model` is one that the policy has prices
    /// for, or [`Metrics::OTHER`].
    pub fn observe_settled(&self, rule: &str, model: &str, charged: u64, reserved: u64) {
        self.settled.observe(rule, model, charged, reserved);
    }

    /// Counts a check of this duration, from complete request to response.
    pub fn observe(&self, listener: ListenerKind, duration: Duration) {
        self.observe_each(listener, duration, 1);
    }

    /// Counts this many checks of one batch, each of this duration.
    pub fn observe_each(&self, listener: ListenerKind, duration: Duration, checks: u64) {
        self.listener(listener).durations.observe(duration, checks);
    }

    /// Counts a connection until the guard is dropped.
    pub fn connect(self: &Arc<Self>, listener: ListenerKind) -> OpenConnection {
        self.listener(listener).connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection { metrics: self.clone(), listener }
    }

    /// The number of open connections.
    pub fn connections(&self, listener: ListenerKind) -> u64 {
        self.listener(listener).connections.load(Ordering::Relaxed)
    }

    /// Every rule that has counters. A copy, so that the caller does not block a reload.
    pub(crate) fn all_rules(&self) -> Vec<(Arc<str>, Arc<RuleMetrics>)> {
        self.rules().iter().map(|(name, rule)| (name.clone(), rule.clone())).collect()
    }

    /// Durations of checks on all listeners.
    pub(crate) fn durations(&self) -> BucketCounts {
        let mut all = BucketCounts::default();
        self.listeners.iter().for_each(|listener| all.add(&listener.durations.counts()));
        all
    }

    /// Counts a connection that was rejected or closed.
    pub fn count_refused(&self, listener: ListenerKind, reason: RejectReason) {
        self.listener(listener).refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that panicked.
    pub fn count_panic(&self, listener: ListenerKind) {
        self.listener(listener).panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed store call. A refused call and full memory are no errors of the store and
    /// are not counted.
    pub fn count_store_error(&self, error: &EngineError) {
        if error.memory_full().is_some() {
            return;
        }
        let kind = match error {
            EngineError::Unavailable(_) => 0,
            EngineError::Ambiguous(_) => 1,
            EngineError::Refused(_) => return,
            _ => 2,
        };
        self.store_errors[kind].fetch_add(1, Ordering::Relaxed);
    }

    /// The number of failed store calls since the start.
    pub fn store_errors(&self) -> u64 {
        self.store_errors.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Counts `count` events of the rate limit quota service.
    pub(crate) fn count_quota(&self, event: QuotaEvent, count: u64) {
        self.quota.count(event, count);
    }

    /// Sets the streams and holders of the rate limit quota service.
    pub(crate) fn set_quota(&self, streams: u64, holders: u64) {
        self.quota.set(streams, holders);
    }

    /// Counts that the circuit breaker opened.
    pub fn count_breaker_opened(&self) {
        self.breaker_opened.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was not allowed to wait.
    pub(crate) fn count_refused_wait(&self, cap: WaitCap) {
        self.waits_refused[cap as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Sets what the limiter counts: the requests that wait for permits, and those that were not
    /// allowed to wait for their key.
    pub(crate) fn set_waits(&self, waiting: u64, refused_per_key: u64) {
        self.waiting.store(waiting, Ordering::Relaxed);
        self.waits_refused[WaitCap::Key as usize].store(refused_per_key, Ordering::Relaxed);
    }

    /// Notes that a policy became active at `now`, at the start or by a reload.
    pub fn count_reload(&self, now: Micros) {
        self.reloaded.store(now.get(), Ordering::Relaxed);
        self.config_valid.store(true, Ordering::Relaxed);
    }

    /// Counts a failed reload.
    pub fn count_failed_reload(&self) {
        self.reload_failures.fetch_add(1, Ordering::Relaxed);
        self.config_valid.store(false, Ordering::Relaxed);
    }

    /// All counters in the text format, with the `health` of the engine.
    ///
    /// Decisions of a rule are listed for the sources that have made at least one. The other
    /// counters start at zero, so that their first increment is visible.
    pub fn render(&self, health: &Health) -> String {
        let mut out = Exposition::default();
        self.render_rules(&mut out, health);
        self.render_listeners(&mut out);
        self.render_store(&mut out, health);
        self.quota.render(&mut out);
        self.render_config(&mut out);
        out.finish()
    }

    fn render_rules(&self, out: &mut Exposition, health: &Health) {
        let rules = self.all_rules();
        let name = "tidegate_checks_total";
        let mut checks = out.family(name, MetricType::Counter, "Decisions, one per rule and call.");
        for (name, rule) in &rules {
            rule.each_count(|outcome, source, count| {
                let labels = [("rule", &**name), ("outcome", outcome), ("source", source)];
                checks.sample("", &labels, count);
            });
        }
        let help = "Allowed calls that a shadow limit would have denied.";
        let mut shadow = out.family("tidegate_shadow_denied_total", MetricType::Counter, help);
        for (name, rule) in &rules {
            shadow.sample("", &[("rule", name)], rule.shadow_denied());
        }
        let help = "Permits that settling a reservation could not charge.";
        let mut uncharged = out.family("tidegate_uncharged_total", MetricType::Counter, help);
        for (name, rule) in &rules {
            uncharged.sample("", &[("rule", name)], rule.uncharged());
        }
        let help = "Decisions made locally because the store was unavailable.";
        let mut fallback =
            out.family("tidegate_fallback_decisions_total", MetricType::Counter, help);
        for (name, rule) in &rules {
            fallback.sample("", &[("rule", name)], rule.fallback_decisions());
        }
        let help = "Permits charged for a reservation / permits reserved.";
        let name = "tidegate_settled_ratio";
        self.settled.render(&mut out.family(name, MetricType::Histogram, help));
        let help = "Permits leased from the store and not used yet.";
        let mut lent = out.family("tidegate_lease_outstanding", MetricType::Gauge, help);
        for name in rules.iter().map(|(name, _)| name) {
            lent.sample("", &[("rule", name)], health.lent.get(&**name).copied().unwrap_or(0));
        }
    }

    fn render_listeners(&self, out: &mut Exposition) {
        let help = "Duration of a check, from complete request to response.";
        let mut durations =
            out.family("tidegate_check_duration_seconds", MetricType::Histogram, help);
        for listener in ListenerKind::ALL {
            self.listener(listener).durations.render(&mut durations, ("listener", listener.name()));
        }
        let mut connections =
            out.family("tidegate_connections", MetricType::Gauge, "Open connections.");
        for listener in ListenerKind::ALL {
            connections.sample("", &[("listener", listener.name())], self.connections(listener));
        }
        let help = "Rejected connections: at capacity, TLS handshake failed, or idle before the first \
                    command (RESP).";
        let mut refused =
            out.family("tidegate_connections_refused_total", MetricType::Counter, help);
        for listener in ListenerKind::ALL {
            for (reason, count) in RejectReason::ALL.iter().zip(&self.listener(listener).refused) {
                let labels = [("listener", listener.name()), ("reason", reason.name())];
                refused.sample("", &labels, count.load(Ordering::Relaxed));
            }
        }
        let help = "Requests that wait for permits (wait_ms).";
        out.gauge("tidegate_waiting_requests", help, self.waiting.load(Ordering::Relaxed));
        let help = "Requests that were not allowed to wait: too many for the key, on the connection, \
                    or in total.";
        let mut refused = out.family("tidegate_waits_refused_total", MetricType::Counter, help);
        for (cap, count) in WaitCap::ALL.iter().zip(&self.waits_refused) {
            refused.sample("", &[("cap", cap.name())], count.load(Ordering::Relaxed));
        }
        let help = "Requests that panicked; they are denied.";
        let mut panics = out.family("tidegate_panics_total", MetricType::Counter, help);
        for listener in ListenerKind::ALL {
            let count = self.listener(listener).panics.load(Ordering::Relaxed);
            panics.sample("", &[("listener", listener.name())], count);
        }
    }

    fn render_store(&self, out: &mut Exposition, health: &Health) {
        let help = "Whether decisions come from the store.";
        out.gauge("tidegate_store_up", help, u8::from(health.up));
        let help = "Store calls that failed.";
        let mut errors = out.family("tidegate_store_errors_total", MetricType::Counter, help);
        for (kind, count) in STORE_ERRORS.iter().zip(&self.store_errors) {
            errors.sample("", &[("kind", kind)], count.load(Ordering::Relaxed));
        }
        let state = match health.circuit {
            None | Some(Circuit::Closed) => 0,
            Some(Circuit::HalfOpen) => 1,
            Some(Circuit::Open) => 2,
        };
        let help = "Circuit breaker state: 0 closed, 1 half-open, 2 open.";
        out.gauge("tidegate_breaker_state", help, state);
        let help = "Times the circuit breaker opened.";
        out.counter(
            "tidegate_breaker_opened_total",
            help,
            self.breaker_opened.load(Ordering::Relaxed),
        );
        let help = "Times the store may have lost its state.";
        out.counter("tidegate_store_resets_total", help, health.resets);
        if let Some(keys) = health.tracked_keys {
            out.gauge("tidegate_tracked_keys", "Keys with state.", keys);
        }
        self.render_memory(out, health);
    }

    fn render_memory(&self, out: &mut Exposition, health: &Health) {
        let help = "Memory used for state in this process, in bytes.";
        let mut bytes = out.family("tidegate_memory_bytes", MetricType::Gauge, help);
        for (kind, of) in health.memory.kinds() {
            bytes.sample("", &[("kind", kind.name())], of.bytes);
        }
        let layers = health.memory_bytes.saturating_sub(health.memory.bytes());
        bytes.sample("", &[("kind", "layers")], layers);
        let help = "Calls that found no room in memory.";
        let mut overflows = out.family("tidegate_memory_overflow_total", MetricType::Counter, help);
        for (kind, of) in health.memory.kinds() {
            overflows.sample("", &[("kind", kind.name())], of.overflows);
        }
        let help = "How long results of calls with an id are kept in memory.";
        let retention = health.memory.id_retention.get() / 1_000_000;
        out.gauge("tidegate_id_retention_seconds", help, retention);
    }

    fn render_config(&self, out: &mut Exposition) {
        let reloaded = self.reloaded.load(Ordering::Relaxed);
        if reloaded > 0 {
            let seconds = format!("{}.{:06}", reloaded / 1_000_000, reloaded % 1_000_000);
            let name = "tidegate_config_reload_success_timestamp_seconds";
            out.gauge(name, "When the active policy was loaded.", seconds);
        }
        let failures = self.reload_failures.load(Ordering::Relaxed);
        let help = "Policy loads that failed.";
        out.counter("tidegate_config_reload_failures_total", help, failures);
        let valid = self.config_valid.load(Ordering::Relaxed);
        let help = "Whether the last policy load succeeded.";
        out.gauge("tidegate_config_valid", help, u8::from(valid));
        out.family("tidegate_build_info", MetricType::Gauge, "Build information; always 1.")
            .sample("", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    }

    fn listener(&self, listener: ListenerKind) -> &ListenerMetrics {
        &self.listeners[listener as usize]
    }

    fn rules(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<RuleMetrics>>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ad-hoc limits have counters from the start, so that other rules cannot use up the maximum first.
impl Default for Metrics {
    fn default() -> Self {
        let adhoc = (Rule::ADHOC.into(), Arc::default());
        Self {
            rules: Mutex::new(BTreeMap::from([adhoc])),
            settled: SettledRatios::new(Self::OTHER),
            quota: QuotaMetrics::default(),
            listeners: Default::default(),
            store_errors: Default::default(),
            breaker_opened: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            waits_refused: Default::default(),
            reloaded: AtomicU64::new(0),
            reload_failures: AtomicU64::new(0),
            config_valid: AtomicBool::new(false),
        }
    }
}

/// Counts an open connection until it is dropped.
#[derive(Debug)]
#[must_use = "a connection is counted until the guard is dropped"]
pub struct OpenConnection {
    metrics: Arc<Metrics>,
    listener: ListenerKind,
}

impl OpenConnection {
    /// The listener that accepted it.
    pub fn listener(&self) -> ListenerKind {
        self.listener
    }

    /// Counts it as closed for this reason.
    pub(crate) fn count_refused(&self, reason: RejectReason) {
        self.metrics.count_refused(self.listener, reason);
    }

    /// Counts a request on it that panicked.
    pub fn count_panic(&self) {
        self.metrics.count_panic(self.listener);
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.metrics.listener(self.listener).connections.fetch_sub(1, Ordering::Relaxed);
    }
}
