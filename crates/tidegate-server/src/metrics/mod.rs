//! What the server counts, in the text format of Prometheus.
//!
//! # Layout
//!
//! - [`Metrics`] holds everything and renders it; a call touches nothing but relaxed atomics.
//! - [`RuleMetrics`] are the counters of one rule, looked up when a policy is compiled.
//! - `histogram` counts durations; `exposition` writes the format.
//!
//! A label is a rule, an outcome, a source, a door or a kind of error, and never a key.

pub(crate) mod exposition;
mod histogram;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::{Circuit, EngineError, Health, Micros, Rule};

use exposition::{Exposition, Kind};
pub(crate) use histogram::Durations;
use histogram::Histogram;
pub use rules::RuleMetrics;
pub(crate) use rules::RuleTotals;

/// A way into the server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Door {
    /// HTTP.
    Http,
    /// The Redis protocol.
    Resp,
    /// Envoy's protocol over gRPC.
    Grpc,
}

impl Door {
    /// Every door.
    pub const ALL: [Self; 3] = [Self::Http, Self::Resp, Self::Grpc];

    /// The word for it in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Resp => "resp",
            Self::Grpc => "grpc",
        }
    }
}

/// Everything the server counts.
///
/// ```
/// use tidegate::{Health, Outcome, Source};
/// use tidegate_server::metrics::Metrics;
/// let metrics = Metrics::default();
/// metrics.rule("login").count(Outcome::Allow, Source::Memory);
/// let line = r#"tidegate_checks_total{rule="login",outcome="allow",source="memory"} 1"#;
/// assert!(metrics.render(&Health::up(Some(1), 64)).contains(line));
/// ```
#[derive(Debug)]
pub struct Metrics {
    rules: Mutex<BTreeMap<Arc<str>, Arc<RuleMetrics>>>,
    doors: [DoorMetrics; Door::ALL.len()],
    store_errors: [AtomicU64; STORE_ERRORS.len()],
    breaker_opened: AtomicU64,
    /// Microseconds since the epoch; zero means never.
    reloaded: AtomicU64,
    reload_failures: AtomicU64,
    config_valid: AtomicBool,
}

/// Aligned, so that the doors do not slow each other down.
#[derive(Default, Debug)]
#[repr(align(64))]
struct DoorMetrics {
    connections: AtomicU64,
    durations: Histogram,
    refused: [AtomicU64; Refusal::ALL.len()],
    panics: AtomicU64,
}

/// Why a client was not let in, or not kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// There was no room.
    Full,
    /// It could not agree on TLS, or not in time.
    Handshake,
    /// Over the Redis protocol: it sent no whole command in time.
    Silent,
}

impl Refusal {
    const ALL: [Self; 3] = [Self::Full, Self::Handshake, Self::Silent];

    const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Handshake => "handshake",
            Self::Silent => "silent",
        }
    }
}

/// The kinds of store error; the last is for those that are not known here yet.
const STORE_ERRORS: [&str; 3] = ["unavailable", "ambiguous", "other"];

impl Metrics {
    /// The content type of [`Metrics::render`].
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";
    /// The most rules that are counted apart: the 10,000 of a policy, and a few set while running.
    pub const MAX_RULES: usize = 10_064;
    /// The rule under which those beyond [`Metrics::MAX_RULES`] are counted together.
    pub const OTHER: &'static str = "other";

    /// The counters of the rule of this name, new or as they stand: they outlive a reload.
    ///
    /// It takes a lock, so look them up when a policy is compiled and not for every call.
    pub fn rule(&self, name: &str) -> Arc<RuleMetrics> {
        let mut rules = self.rules();
        if let Some(known) = rules.get(name) {
            return known.clone();
        }
        // A user's own rule may be called `other` too; then the two are one.
        let name = if rules.len() < Self::MAX_RULES { name } else { Self::OTHER };
        rules.entry(name.into()).or_default().clone()
    }

    /// Counts a check that took this long, from the whole request to the answer.
    pub fn observe(&self, door: Door, duration: Duration) {
        self.observe_each(door, duration, 1);
    }

    /// Counts so many checks that were answered together, each of which took this long.
    pub fn observe_each(&self, door: Door, duration: Duration, checks: u64) {
        self.door(door).durations.observe(duration, checks);
    }

    /// Counts a connection for as long as the guard lives.
    pub fn connect(self: &Arc<Self>, door: Door) -> Connection {
        self.door(door).connections.fetch_add(1, Ordering::Relaxed);
        Connection { metrics: self.clone(), door }
    }

    /// Connections that are open.
    pub fn connections(&self, door: Door) -> u64 {
        self.door(door).connections.load(Ordering::Relaxed)
    }

    /// Every rule that was ever counted. A copy, so that whoever looks does not hold up a reload.
    pub(crate) fn all_rules(&self) -> Vec<(Arc<str>, Arc<RuleMetrics>)> {
        self.rules().iter().map(|(name, rule)| (name.clone(), rule.clone())).collect()
    }

    /// How long checks took, at all doors.
    pub(crate) fn durations(&self) -> Durations {
        let mut all = Durations::default();
        self.doors.iter().for_each(|door| all.add(&door.durations.counts()));
        all
    }

    /// Counts a client that was not let in, or not kept.
    pub fn count_refused(&self, door: Door, why: Refusal) {
        let counts = Refusal::ALL.iter().zip(&self.door(door).refused);
        counts.filter(|(one, _)| **one == why).for_each(|(_, count)| {
            count.fetch_add(1, Ordering::Relaxed);
        });
    }

    /// Counts a question that ended in a mistake of ours.
    pub fn count_panic(&self, door: Door) {
        self.door(door).panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an answer that the store did not give. A refused call is no fault of the store's and
    /// is not counted here; [`RuleMetrics::count_error`] counts it.
    pub fn count_store_error(&self, error: &EngineError) {
        let kind = match error {
            EngineError::Unavailable(_) => 0,
            EngineError::Ambiguous(_) => 1,
            EngineError::Refused(_) => return,
            _ => 2,
        };
        self.store_errors[kind].fetch_add(1, Ordering::Relaxed);
    }

    /// How many calls had no answer from the store so far.
    pub fn store_errors(&self) -> u64 {
        self.store_errors.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The store did not answer and is left alone for a while.
    pub fn count_breaker_opened(&self) {
        self.breaker_opened.fetch_add(1, Ordering::Relaxed);
    }

    /// A policy came into force at `now`: at the start, or by a reload.
    pub fn count_reload(&self, now: Micros) {
        self.reloaded.store(now.get(), Ordering::Relaxed);
        self.config_valid.store(true, Ordering::Relaxed);
    }

    /// A policy was faulty, so the one before stays in force.
    pub fn count_failed_reload(&self) {
        self.reload_failures.fetch_add(1, Ordering::Relaxed);
        self.config_valid.store(false, Ordering::Relaxed);
    }

    /// Everything in the text format, with `health` of the engine.
    ///
    /// A rule's decisions from one source are listed once there is one; the other counters start
    /// at zero, so that their first step shows.
    pub fn render(&self, health: &Health) -> String {
        let mut out = Exposition::default();
        self.render_rules(&mut out, health);
        self.render_doors(&mut out);
        self.render_store(&mut out, health);
        self.render_config(&mut out);
        out.finish()
    }

    fn render_rules(&self, out: &mut Exposition, health: &Health) {
        let rules = self.all_rules();
        let name = "tidegate_checks_total";
        let mut checks =
            out.family(name, Kind::Counter, "Decisions by rule, one per rule and call.");
        for (name, rule) in &rules {
            rule.each_count(|outcome, source, count| {
                let labels = [("rule", &**name), ("outcome", outcome), ("source", source)];
                checks.sample("", &labels, count);
            });
        }
        let help = "Calls that a shadow limit would have denied.";
        let mut shadow = out.family("tidegate_shadow_denied_total", Kind::Counter, help);
        for (name, rule) in &rules {
            shadow.sample("", &[("rule", name)], rule.shadow_denied());
        }
        let help = "Decisions by the local limiter, because the store did not answer.";
        let mut fallback = out.family("tidegate_fallback_decisions_total", Kind::Counter, help);
        for (name, rule) in &rules {
            fallback.sample("", &[("rule", name)], rule.fallback_decisions());
        }
        let help = "Permits borrowed from the store and not spent yet.";
        let mut lent = out.family("tidegate_lease_outstanding", Kind::Gauge, help);
        for name in rules.iter().map(|(name, _)| name) {
            lent.sample("", &[("rule", name)], health.lent.get(&**name).copied().unwrap_or(0));
        }
    }

    fn render_doors(&self, out: &mut Exposition) {
        let help = "How long a check took, from the whole request to the answer.";
        let mut durations = out.family("tidegate_check_duration_seconds", Kind::Histogram, help);
        for door in Door::ALL {
            self.door(door).durations.render(&mut durations, ("door", door.name()));
        }
        let mut connections = out.family("tidegate_connections", Kind::Gauge, "Open connections.");
        for door in Door::ALL {
            connections.sample("", &[("door", door.name())], self.connections(door));
        }
        let help = "Clients that were turned away: full, no agreement on TLS, or silent (RESP).";
        let mut refused = out.family("tidegate_connections_refused_total", Kind::Counter, help);
        for door in Door::ALL {
            for (reason, count) in Refusal::ALL.iter().zip(&self.door(door).refused) {
                let labels = [("door", door.name()), ("reason", reason.name())];
                refused.sample("", &labels, count.load(Ordering::Relaxed));
            }
        }
        let help = "Questions that ended in a mistake of the server's, and were denied.";
        let mut panics = out.family("tidegate_panics_total", Kind::Counter, help);
        for door in Door::ALL {
            let count = self.door(door).panics.load(Ordering::Relaxed);
            panics.sample("", &[("door", door.name())], count);
        }
    }

    fn render_store(&self, out: &mut Exposition, health: &Health) {
        out.gauge("tidegate_store_up", "Whether the store answers.", u8::from(health.up));
        let help = "Calls that the store did not answer.";
        let mut errors = out.family("tidegate_store_errors_total", Kind::Counter, help);
        for (kind, count) in STORE_ERRORS.iter().zip(&self.store_errors) {
            errors.sample("", &[("kind", kind)], count.load(Ordering::Relaxed));
        }
        let state = match health.circuit {
            None | Some(Circuit::Closed) => 0,
            Some(Circuit::HalfOpen) => 1,
            Some(Circuit::Open) => 2,
        };
        let help = "Whether the store is asked: 0 closed, it is; 1 half-open, now and then; 2 open, it is not.";
        out.gauge("tidegate_breaker_state", help, state);
        let help = "How often the store was left alone, because it did not answer.";
        out.counter(
            "tidegate_breaker_opened_total",
            help,
            self.breaker_opened.load(Ordering::Relaxed),
        );
        let help = "How often the store may have lost what it had counted.";
        out.counter("tidegate_store_resets_total", help, health.resets);
        if let Some(keys) = health.tracked_keys {
            out.gauge("tidegate_tracked_keys", "Keys that the engine has state for.", keys);
        }
        let help = "Bytes of state that the engine keeps in this process.";
        out.gauge("tidegate_memory_bytes", help, health.memory_bytes);
    }

    fn render_config(&self, out: &mut Exposition) {
        let reloaded = self.reloaded.load(Ordering::Relaxed);
        if reloaded > 0 {
            let seconds = format_args!("{}.{:06}", reloaded / 1_000_000, reloaded % 1_000_000);
            let name = "tidegate_config_reload_success_timestamp_seconds";
            out.gauge(name, "When the policy in force was loaded.", seconds);
        }
        let failures = self.reload_failures.load(Ordering::Relaxed);
        let help = "Policies that were refused when they were loaded.";
        out.counter("tidegate_config_reload_failures_total", help, failures);
        let valid = self.config_valid.load(Ordering::Relaxed);
        let help = "Whether the policy that was loaded last is in force.";
        out.gauge("tidegate_config_valid", help, u8::from(valid));
        out.family("tidegate_build_info", Kind::Gauge, "The version that runs; always 1.").sample(
            "",
            &[("version", env!("CARGO_PKG_VERSION"))],
            1,
        );
    }

    fn door(&self, door: Door) -> &DoorMetrics {
        match door {
            Door::Http => &self.doors[0],
            Door::Resp => &self.doors[1],
            Door::Grpc => &self.doors[2],
        }
    }

    fn rules(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<RuleMetrics>>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nothing counted yet. Ad-hoc limits are there from the start, whatever else takes up the room.
impl Default for Metrics {
    fn default() -> Self {
        let adhoc = (Rule::ADHOC.into(), Arc::default());
        Self {
            rules: Mutex::new(BTreeMap::from([adhoc])),
            doors: Default::default(),
            store_errors: Default::default(),
            breaker_opened: AtomicU64::new(0),
            reloaded: AtomicU64::new(0),
            reload_failures: AtomicU64::new(0),
            config_valid: AtomicBool::new(false),
        }
    }
}

/// An open connection; dropped, it is closed.
#[derive(Debug)]
#[must_use = "a connection counts for as long as the guard lives"]
pub struct Connection {
    metrics: Arc<Metrics>,
    door: Door,
}

impl Connection {
    /// Which door it came through.
    pub fn door(&self) -> Door {
        self.door
    }

    /// Counts a question on it that ended in a mistake of ours.
    pub fn count_panic(&self) {
        self.metrics.count_panic(self.door);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.metrics.door(self.door).connections.fetch_sub(1, Ordering::Relaxed);
    }
}
