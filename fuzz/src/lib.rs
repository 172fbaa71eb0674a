//! A server without sockets for the fuzz targets: in memory, with a clock that does not advance.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Limit, ManualClock, Memory};
use tidegate_config::PolicyLoader;
use tidegate_config::envoy::EnvoyConfig;
use tidegate_server::internal::check::CheckService;
use tidegate_server::internal::console::{self, ConsoleContext, ConsoleState, CookieSecurity};
use tidegate_server::internal::observe::metrics::Metrics;
use tidegate_server::internal::policy::{LoadedSources, PolicyManager, PolicySource, PolicySources};
use tidegate_server::internal::readiness::Readiness;
use tidegate_server::internal::shutdown::{self, ShutdownTrigger};
use tidegate_server::internal::transport::allowed_hosts::AllowedHosts;
use tidegate_server::internal::transport::auth::AuthTokens;
use tidegate_server::internal::transport::envoy::grpc::GrpcServices;
use tidegate_server::internal::transport::envoy::service::EnvoyService;
use tidegate_server::internal::transport::envoy::settings::EnvoySettings;
use tidegate_server::internal::transport::http::{self, AppContext, AppState};
use tidegate_server::internal::transport::listener::Timeouts;
use tokio::runtime::{Builder, Runtime};

/// Rules with every kind of limit, under the names that the seeds use.
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

/// Timeout of a request: one that waits for a limit would wait forever, as the clock stands still.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(5);

/// The services behind the listeners.
pub struct ServerFixture {
    pub service: Arc<CheckService>,
    pub envoy: Arc<EnvoyService>,
    pub tokens: Arc<AuthTokens>,
    /// All routes of the HTTP listener.
    pub router: axum::Router,
    _shutdown: ShutdownTrigger,
    runtime: Runtime,
}

impl ServerFixture {
    pub fn new() -> Self {
        let engine = Memory::builder().clock(ManualClock::default()).cap_bytes(1 << 20).build();
        let metrics = Arc::new(Metrics::default());
        let policy = PolicyLoader::load_str("policy.yaml", POLICY).expect("a valid policy");
        let envoy = EnvoyConfig::load_str("edge.yaml", ENVOY).expect("valid limits");
        let loaded = LoadedSources { policy, envoy: Some(Arc::new(envoy)), tls: None };
        let active = loaded.active(&metrics).expect("consistent rules");
        let service = Arc::new(CheckService::new(Arc::new(engine), active, metrics));
        let (_, versions) = PolicySource::Sample.load();
        let sources = PolicySources::from(PolicySource::Sample);
        let policies = PolicyManager::new(service.clone(), sources, loaded, versions);
        let envoy = Arc::new(EnvoyService::new(service.clone(), EnvoySettings::default()));
        let tokens = Arc::new(AuthTokens::new(None, Some("admin")));
        let (trigger, drain) = shutdown::channel();
        let timeouts = Timeouts::default();
        let grpc = GrpcServices::new(envoy.clone(), tokens.clone(), timeouts, drain.clone());
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let address = ([127, 0, 0, 1], 8080).into();
        let console = ConsoleState::new(address, CookieSecurity::Off, service.clock().clone());
        let state = AppState::from(AppContext {
            service: service.clone(),
            store_address: "memory".to_owned(),
            policies: Arc::new(policies),
            tokens: tokens.clone(),
            hosts: Arc::new(AllowedHosts::new(address, Vec::new())),
            envoy: envoy.clone(),
            drain,
            ready_when: Readiness::default(),
        });
        let context = ConsoleContext { app: state.clone(), console: Arc::new(console) };
        let router = http::router(state, &grpc, console::router(context)).into_routes();
        Self { service, envoy, tokens, router, _shutdown: trigger, runtime }
    }

    /// The output of `work`; `None` if it waits for the clock.
    pub fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.runtime.block_on(async { tokio::time::timeout(REQUEST_TIMEOUT, work).await.ok() })
    }
}

impl Default for ServerFixture {
    fn default() -> Self {
        Self::new()
    }
}

/// Parses a limit. A valid one must print as text that parses as the same limit. An invalid one
/// must give an error of one line, with a position inside of the text and a suggestion that parses.
pub fn check_notation(text: &str) {
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
