//! A service for the targets: in memory, on a clock that stands still.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Limit, ManualClock, Memory};
use tidegate_server::config::Config;
use tidegate_server::console::{Console, Tls};
use tidegate_server::doors::Deadlines;
use tidegate_server::drain::{self, Drainer};
use tidegate_server::envoy::config::EnvoyConfig;
use tidegate_server::envoy::grpc::Grpc;
use tidegate_server::envoy::service::{RateLimits, Settings};
use tidegate_server::http;
use tidegate_server::metrics::Metrics;
use tidegate_server::policies::{Policies, Read, Source, Sources};
use tidegate_server::service::Service;
use tidegate_server::tokens::Tokens;
use tokio::runtime::{Builder, Runtime};

/// Rules of every kind of limit, for the names that the seeds use.
const POLICY: &str = r#"
rules:
  - { name: api, key: [client_ip], limits: ["10/s burst 20", "fixed-window 1000/d"], shadow_limits: [5/s] }
  - { name: log, limits: ["sliding-log 5/1m"], deny: [bad] }
  - { name: window, limits: ["sliding-window 240/1h precision 1m"], overrides: [{ key: k, limits: [1/s] }] }
  - { name: queue, limits: ["leaky-bucket 10/s queue"] }
  - { name: jobs, limits: ["concurrency 3 lease 30s"] }
"#;

const ENVOY: &str = r#"
domain: edge
descriptors:
  - { key: ten, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - key: path
    value: "/a/*"
    limits: [10/s, "fixed-window 3/1d"]
    descriptors: [{ key: method, shadow_mode: true, limit: 1/s }]
  - { key: free, rate_limit: { unlimited: true } }
"#;

/// How long an answer may take that somebody has asked to wait for: the clock stands still.
const PATIENCE: Duration = Duration::from_millis(5);

/// A server without sockets.
pub struct World {
    pub service: Arc<Service>,
    pub envoy: Arc<RateLimits>,
    pub tokens: Arc<Tokens>,
    /// All of the HTTP door behind the connection.
    pub router: axum::Router,
    _drainer: Drainer,
    runtime: Runtime,
}

impl World {
    pub fn new() -> Self {
        let engine = Memory::builder().clock(ManualClock::default()).cap_bytes(1 << 20).build();
        let metrics = Arc::new(Metrics::default());
        let policy = Config::load_str("policy.yaml", POLICY).expect("a good policy");
        let envoy = EnvoyConfig::load_str("edge.yaml", ENVOY).expect("good limits");
        let read = Read { policy, envoy: Some(Arc::new(envoy)), tls: None };
        let active = read.active(&metrics).expect("rules that go together");
        let service = Arc::new(Service::new(Arc::new(engine), active, metrics));
        let (_, seen) = Source::Sample.load();
        let policies = Policies::new(service.clone(), Sources::from(Source::Sample), read, seen);
        let envoy = Arc::new(RateLimits::new(service.clone(), Settings::default()));
        let tokens = Arc::new(Tokens::new(None, Some("admin")));
        let (drainer, drain) = drain::channel();
        let deadlines = Deadlines::default();
        let grpc = Grpc::new(envoy.clone(), tokens.clone(), deadlines, drain.clone());
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let address = ([127, 0, 0, 1], 8080).into();
        let console = Console::new(address, Tls::Off, Vec::new(), service.clock().clone());
        let door = http::Door {
            service: service.clone(),
            policies: Arc::new(policies),
            tokens: tokens.clone(),
            envoy: envoy.clone(),
            console: Arc::new(console),
            drain,
        };
        let router = http::router(door, &grpc);
        Self { service, envoy, tokens, router, _drainer: drainer, runtime }
    }

    /// What comes of it, unless it waits for a turn that never comes.
    pub fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await.ok() })
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

/// A text either is a limit, and then it prints as one that reads the same, or it is told what is wrong in
/// one line, at a place inside of it, with a suggestion that is a limit.
pub fn read_limit(text: &str) {
    match text.parse::<Limit>() {
        Ok(limit) => {
            let printed = limit.to_string();
            assert_eq!(printed.parse::<Limit>().as_ref(), Ok(&limit), "{printed}");
        }
        Err(error) => {
            assert!(text.get(error.position()).is_some());
            assert!(!error.to_string().contains(|c: char| c.is_control()));
            assert_eq!(error.underline(text).lines().count(), 2);
            assert!(error.suggestion().is_none_or(|other| other.parse::<Limit>().is_ok()));
        }
    }
}
