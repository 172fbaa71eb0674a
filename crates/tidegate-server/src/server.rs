//! Binds the listeners, spawns the tasks, serves, and shuts down. Imported by no other module.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate::InvalidRule;
use tidegate_config::{MemorySize, Problems};
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use crate::check::CheckService;
use crate::console::{self, ConsoleContext, ConsoleState, CookieSecurity};
use crate::observe::memory::MemoryMonitor;
use crate::observe::metrics::{ListenerKind, Metrics};
use crate::observe::otlp;
use crate::observe::otlp::Tracer;
use crate::observe::otlp::export::Exporter;
use crate::policy::files::FileVersions;
use crate::policy::{
    EnvoySource, LoadedSources, PolicyManager, PolicySource, PolicySources, run_on_loader, watcher,
};
use crate::readiness::ReadyWhen;
use crate::shutdown::{self, Shutdown};
use crate::store::{EngineStack, Store, StoreError};
use crate::store_monitor::StoreMonitor;
use crate::tls::ServerTls;
use crate::transport::allowed_hosts::{AllowedHosts, HostName};
use crate::transport::auth::AuthTokens;
use crate::transport::envoy;
use crate::transport::envoy::grpc::GrpcServices;
use crate::transport::envoy::service::EnvoyService;
use crate::transport::envoy::stats::EnvoyStats;
use crate::transport::http;
use crate::transport::listener::accept::{Acceptor, listen};
use crate::transport::listener::connection_limit::ConnectionLimit;
use crate::transport::listener::exposure;
pub use crate::transport::listener::exposure::Exposure;
use crate::transport::listener::exposure::{ExposureWarning, ListenerGuards};
use crate::transport::listener::{self, http_connection};
use crate::transport::resp;
use crate::xds::{XdsClient, XdsOptions, XdsStart};

/// The options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where the policy comes from.
    pub source: PolicySource,
    /// The store; if `None`, the one that the policy names, or memory.
    pub store: Option<Store>,
    /// HTTP listen address; `None` turns the listener off, here and below.
    pub http: Option<SocketAddr>,
    /// What the HTTP listener serves.
    pub http_routes: HttpRoutes,
    /// RESP listen address.
    pub resp: Option<SocketAddr>,
    /// gRPC listen address.
    pub grpc: Option<SocketAddr>,
    /// Listen address of `/healthz` and `/readyz` alone; `None` serves them over HTTP only.
    pub health: Option<SocketAddr>,
    /// Listen address of `/metrics` alone; `None` serves it over HTTP only.
    pub metrics: Option<SocketAddr>,
    /// Options of Envoy's rate limit service.
    pub envoy: EnvoyOptions,
    /// Certificates, timeouts and connection limit of the listeners.
    pub listeners: listener::ListenerOptions,
    /// API and admin tokens.
    pub tokens: AuthTokens,
    /// Listeners whose checks need no token.
    pub without_token: Vec<ListenerKind>,
    /// Whether other machines may connect without authentication.
    pub exposure: Exposure,
    /// Tracing; off if `None`.
    pub traces: Option<otlp::OtlpOptions>,
    /// Host names of the HTTP listener, in addition to the address of its listener.
    pub console_hosts: Vec<HostName>,
    /// Memory for state in this process; overrides the policy.
    pub memory: Option<MemorySize>,
    /// File with the last copy of run-time rules and overrides.
    pub runtime_file: Option<PathBuf>,
    /// When the server reports that it is ready.
    pub ready_when: ReadyWhen,
}

/// What the HTTP listener serves.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum HttpRoutes {
    /// The API, the console, metrics and probes.
    #[default]
    All,
    /// What envoyproxy/ratelimit serves: `/json` and `/healthcheck`; and the probes.
    Ratelimit,
}

impl HttpRoutes {
    fn router(
        self,
        app: http::AppState,
        grpc: &GrpcServices,
        console: Arc<ConsoleState>,
    ) -> http::HttpService {
        match self {
            Self::All => {
                let pages = console::router(ConsoleContext { app: app.clone(), console });
                let grpc = grpc.with_tokens(app.tokens.clone());
                http::router(app, &grpc, pages)
            }
            Self::Ratelimit => http::ratelimit_router(app),
        }
    }
}

/// Options of Envoy's rate limit service.
#[derive(Clone, Default, Debug)]
pub struct EnvoyOptions {
    /// Where the limits of its domains come from; without, everything is allowed.
    pub source: Option<EnvoySource>,
    /// The control plane, if `source` is one.
    pub xds: Option<XdsOptions>,
    /// Modes and headers of responses.
    pub settings: envoy::settings::EnvoySettings,
    /// Whether to count under the names of envoyproxy/ratelimit too.
    pub stats: bool,
}

/// A server with bound listeners that does not serve yet.
pub struct Server {
    service: Arc<CheckService>,
    policies: Arc<PolicyManager>,
    tokens: ListenerTokens,
    http_routes: HttpRoutes,
    options: listener::ListenerOptions,
    listeners: BoundListeners,
    envoy: Arc<EnvoyService>,
    workers: ListenerRuntimes,
    store: Store,
    layers: EngineStack,
    exporter: Option<Exporter>,
    console: Arc<ConsoleState>,
    hosts: Arc<AllowedHosts>,
    ready_when: ReadyWhen,
    xds: Option<XdsClient>,
}

struct BoundListeners {
    http: Option<TcpListener>,
    resp: Option<TcpListener>,
    grpc: Option<TcpListener>,
    health: Option<TcpListener>,
    metrics: Option<TcpListener>,
}

impl BoundListeners {
    /// Binds all listeners; RESP and health belong to threads of their own.
    fn bind(options: &ListenAddresses, workers: &ListenerRuntimes) -> Result<Self, StartError> {
        let bind = |flag, address: Option<SocketAddr>| {
            let bound = address.map(|address| {
                listen(address).map_err(|error| StartError::Bind(flag, address, error))
            });
            bound.transpose()
        };
        let bind_on = |flag, address, runtime: &OwnRuntime| {
            let _runtime = runtime.handle().enter();
            bind(flag, address)
        };
        let health = match &workers.health {
            Some(runtime) => bind_on("--health", options.health, runtime)?,
            None => None,
        };
        Ok(Self {
            http: bind("--http", options.http)?,
            grpc: bind("--grpc", options.grpc)?,
            resp: bind_on("--resp", options.resp, &workers.resp)?,
            health,
            metrics: bind("--metrics", options.metrics)?,
        })
    }
}

/// The addresses of the listeners that are on.
#[derive(Clone, Copy, Debug)]
struct ListenAddresses {
    http: Option<SocketAddr>,
    resp: Option<SocketAddr>,
    grpc: Option<SocketAddr>,
    health: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
}

impl ListenAddresses {
    fn new(options: &ServerOptions) -> Self {
        let ServerOptions { http, resp, grpc, health, metrics, .. } = *options;
        Self { http, resp, grpc, health, metrics }
    }

    /// The tokens of each listener, unless one of them must not be bound. Logs what is exposed.
    fn guard(
        &self,
        (tokens, without_token, exposure): (AuthTokens, Vec<ListenerKind>, Exposure),
        tls: Option<&ServerTls>,
    ) -> Result<ListenerTokens, StartError> {
        exposure::log_short_tokens(&tokens);
        let tokens = ListenerTokens::new(tokens, without_token);
        let guards = self.guards(&tokens, tls);
        if guards.is_empty() {
            return Err(StartError::NoListener);
        }
        let warnings = exposure::check_exposure(&guards, exposure).map_err(StartError::Exposed)?;
        warnings.into_iter().for_each(ExposureWarning::log);
        Ok(tokens)
    }

    fn of(&self, listener: ListenerKind) -> Option<SocketAddr> {
        match listener {
            ListenerKind::Http => self.http,
            ListenerKind::Resp => self.resp,
            ListenerKind::Grpc => self.grpc,
        }
    }

    /// The listeners that decide, and what protects each of them.
    fn guards(&self, tokens: &ListenerTokens, tls: Option<&ServerTls>) -> Vec<ListenerGuards> {
        let guards = |listener| {
            Some(ListenerGuards {
                address: self.of(listener)?,
                needs_token: tokens.of(listener).guards_checks(),
                has_tls: tls.is_some_and(|tls| tls.has(listener)),
                requires_client_cert: tls.is_some_and(|tls| tls.requires_client_cert(listener)),
            })
        };
        ListenerKind::ALL.into_iter().filter_map(guards).collect()
    }
}

/// The tokens of each listener.
#[derive(Clone, Debug)]
struct ListenerTokens {
    all: Arc<AuthTokens>,
    open: Arc<AuthTokens>,
    without_token: Vec<ListenerKind>,
}

impl ListenerTokens {
    fn new(tokens: AuthTokens, without_token: Vec<ListenerKind>) -> Self {
        Self { open: Arc::new(tokens.without_check()), all: Arc::new(tokens), without_token }
    }

    fn of(&self, listener: ListenerKind) -> &Arc<AuthTokens> {
        if self.without_token.contains(&listener) { &self.open } else { &self.all }
    }
}

/// Threads of single listeners.
struct ListenerRuntimes {
    /// One thread less than there are processors. A command takes a microsecond. With as many
    /// threads as processors, waking a thread takes longer than the command, and clients on the
    /// same machine get no processor.
    resp: OwnRuntime,
    /// One thread: a probe is answered while the threads of the other listeners are busy.
    health: Option<OwnRuntime>,
}

impl ListenerRuntimes {
    fn new(health: Option<SocketAddr>) -> io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = processors.saturating_sub(1).max(1);
        let health = health.map(|_| OwnRuntime::new("tidegate-health", 1)).transpose()?;
        Ok(Self { resp: OwnRuntime::new("tidegate-resp", threads)?, health })
    }

    /// Serves probes and metrics, in plaintext and each with a connection limit of its own.
    fn serve_status(
        &self,
        [health, metrics]: [Option<TcpListener>; 2],
        other: &Acceptor,
        app: &http::AppState,
    ) {
        let acceptor = || {
            let limit = Arc::new(ConnectionLimit::new(MAX_PROBES));
            Acceptor { limit, certificates: None, ..other.clone() }
        };
        if let (Some(listener), Some(runtime)) = (health, &self.health) {
            runtime.handle().spawn(http::serve_health(acceptor(), listener, app.clone()));
        }
        if let Some(listener) = metrics {
            tokio::spawn(http::serve_metrics(acceptor(), listener, app.clone()));
        }
    }
}

/// A runtime besides the one that the server runs in.
struct OwnRuntime(Option<Runtime>);

impl OwnRuntime {
    fn new(name: &str, threads: usize) -> io::Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(threads).thread_name(name).enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    fn handle(&self) -> Handle {
        self.0.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
    }
}

/// Dropping a runtime waits for its threads, which is not allowed within another runtime.
impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Loads the sources on the thread that will load them again.
async fn load_at_start(
    sources: PolicySources,
) -> Result<(PolicySources, (Result<LoadedSources, Problems>, FileVersions)), StartError> {
    let loaded = run_on_loader(move || {
        let loaded = sources.load_at_start();
        (sources, loaded)
    });
    let panicked = || StartError::Threads(io::Error::other("the thread of the policy panicked"));
    loaded.await.ok_or_else(panicked)
}

/// Most connections of the health listener, and of the metrics listener.
const MAX_PROBES: usize = 64;
/// How long the start waits for run-time rules and overrides.
const FIRST_SYNC: Duration = Duration::from_millis(500);
/// The timeout for returning leased permits to the store.
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);

impl Server {
    /// Loads the policy and binds the listeners. It waits at most half a second for the store.
    pub async fn bind(options: ServerOptions) -> Result<Self, StartError> {
        let addresses = ListenAddresses::new(&options);
        let mut listener_options = options.listeners;
        let tls = std::mem::take(&mut listener_options.tls);
        let sources = PolicySources { policy: options.source, envoy: options.envoy.source, tls };
        let (sources, (read, versions)) = load_at_start(sources).await?;
        let read = read?;
        let guarded = (options.tokens, options.without_token, options.exposure);
        let tokens = addresses.guard(guarded, read.tls.as_ref())?;
        exposure::log_root();
        for warning in read.warnings() {
            warn!("{warning}");
        }
        let loaded = &read.policy;
        let store = match (options.store, &loaded.settings.store) {
            (Some(store), _) => store,
            (None, Some(url)) => url.expose().parse()?,
            (None, None) => Store::MEMORY,
        };
        let metrics = Arc::new(Metrics::default());
        let mut settings = loaded.settings.clone();
        settings.memory = options.memory.unwrap_or(settings.memory);
        let layers = store.engine_with_layers(&settings, &metrics)?;
        let active = read.active(&metrics)?;
        let service = CheckService::new(layers.engine.clone(), active, metrics);
        let service = service.with_wait_limits(listener_options.waits);
        let (service, exporter) = traced(service, options.traces.as_ref());
        let policies = PolicyManager::new(service.clone(), sources, read, versions);
        let file = options.runtime_file.as_deref();
        let policies = policies.with_runtime(layers.runtime.clone(), layers.fleet.clone(), file);
        let policies = Arc::new(policies.map_err(StartError::RuntimeFile)?);
        first_sync(&policies).await;
        let xds = follow_control_plane(options.envoy.xds, &policies).await;
        let mut envoy = EnvoyService::new(service.clone(), options.envoy.settings);
        if options.envoy.stats {
            envoy = envoy.with_stats(Arc::new(EnvoyStats::default()));
        }
        let envoy = Arc::new(envoy);
        let workers = ListenerRuntimes::new(options.health).map_err(StartError::Threads)?;
        let listeners = BoundListeners::bind(&addresses, &workers)?;
        // Without an HTTP listener there is neither console nor API.
        let address = local_address(&listeners.http);
        let address = address.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
        let tls = match policies.certificates() {
            Some(tls) if tls.has(ListenerKind::Http) => CookieSecurity::On,
            _ => CookieSecurity::Off,
        };
        let clock = service.clock().clone();
        let console = Arc::new(ConsoleState::new(address, tls, clock));
        let hosts = Arc::new(AllowedHosts::new(address, options.console_hosts));
        Ok(Self {
            service,
            policies,
            tokens,
            http_routes: options.http_routes,
            options: listener_options,
            listeners,
            envoy,
            workers,
            store,
            layers,
            exporter,
            console,
            hosts,
            ready_when: options.ready_when,
            xds,
        })
    }

    /// The bound address of the HTTP listener, if it is on.
    pub fn http_address(&self) -> Option<SocketAddr> {
        local_address(&self.listeners.http)
    }

    /// The bound address of the RESP listener, if it is on.
    pub fn resp_address(&self) -> Option<SocketAddr> {
        local_address(&self.listeners.resp)
    }

    /// The bound address of the gRPC listener, if it is on.
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        local_address(&self.listeners.grpc)
    }

    /// The bound address of the health listener, if it is on.
    pub fn health_address(&self) -> Option<SocketAddr> {
        local_address(&self.listeners.health)
    }

    /// The bound address of the metrics listener, if it is on.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        local_address(&self.listeners.metrics)
    }

    /// The store in use.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Whether a listener uses TLS.
    pub fn has_tls(&self, listener: ListenerKind) -> bool {
        self.policies.certificates().is_some_and(|tls| tls.has(listener))
    }

    /// Whether checks over HTTP need a token.
    pub fn needs_token(&self) -> bool {
        self.tokens.of(ListenerKind::Http).guards_checks()
    }

    /// The service behind all listeners.
    pub fn service(&self) -> &Arc<CheckService> {
        &self.service
    }

    /// The policy and where it comes from.
    pub fn policies(&self) -> &Arc<PolicyManager> {
        &self.policies
    }

    /// Serves until `shutdown` completes, then finishes the requests in flight.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let (drainer, drain) = shutdown::channel();
        let exporter = self.exporter.take().map(Exporter::start);
        let _xds = self.xds.take();
        self.spawn_monitors(&drain);
        let (service, store, layers) =
            (self.service.clone(), self.store.clone(), self.layers.clone());
        // Its threads serve until the drain has ended.
        let (accepting, _workers) = self.accept(drain);
        let monitored = async {
            match layers.breaker.clone() {
                Some(breaker) => {
                    let (health, errors) =
                        (|| service.health(), || service.metrics().store_errors());
                    StoreMonitor::new(store, breaker, layers.deadline).run(health, errors).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shutdown => {}
            () = monitored => {}
        }
        drainer.drain(accepting).await;
        // Permits that are not returned count as used in the store.
        let _ = tokio::time::timeout(CLOSE_DEADLINE, layers.close()).await;
        if let Some(exporter) = exporter {
            exporter.finish().await;
        }
    }

    /// Spawns what runs beside the listeners until the drain begins.
    fn spawn_monitors(&self, drain: &Shutdown) {
        let Self { service, policies, .. } = self;
        tokio::spawn(watcher::watch(policies.clone(), drain.clone()));
        let checks = service.clone();
        let memory = move || checks.look_at_memory();
        tokio::spawn(MemoryMonitor::default().run(memory, drain.clone()));
        tokio::spawn(policies.clone().follow_runtime(drain.clone()));
        let (clock, metrics) = (service.clock().clone(), service.metrics().clone());
        tokio::spawn(service.traffic().clone().run(clock, metrics, drain.clone()));
    }

    /// Starts all listeners. They accept until the drain begins.
    fn accept(self, drain: Shutdown) -> (Vec<JoinHandle<()>>, ListenerRuntimes) {
        let Self { service, policies, tokens, options, listeners, .. } = self;
        let Self { envoy, workers, console, hosts, ready_when, http_routes, .. } = self;
        let deadlines = options.deadlines;
        let of_grpc = tokens.of(ListenerKind::Grpc).clone();
        let services = GrpcServices::new(envoy.clone(), of_grpc, deadlines, drain.clone());
        let (health, checks) = (services.clone(), service.clone());
        tokio::spawn(async move { health.publish_health(ready_when, || checks.health()).await });
        let metrics = service.metrics().clone();
        let limit = Arc::new(ConnectionLimit::new(options.max_connections));
        let acceptor = |kind| {
            let certificates = policies.certificates().filter(|tls| tls.has(kind)).cloned();
            let (limit, metrics) = (limit.clone(), metrics.clone());
            Acceptor { kind, limit, certificates, metrics, deadlines }
        };
        let app = http::AppState::from(http::AppContext {
            service: service.clone(),
            policies: policies.clone(),
            tokens: tokens.of(ListenerKind::Http).clone(),
            hosts,
            envoy,
            drain: drain.clone(),
            ready_when,
        });
        let status = [listeners.health, listeners.metrics];
        workers.serve_status(status, &acceptor(ListenerKind::Http), &app);
        let mut accepting = Vec::new();
        if let Some(listener) = listeners.http {
            let router = http_routes.router(app, &services, console);
            let counted = metrics.clone();
            let serve = move |stream, drain| {
                let (open, router) = (counted.connect(ListenerKind::Http), router.clone());
                // Called inside: the task would have room for the future twice. An error is that
                // of a client that disconnects.
                async move {
                    drop(http_connection::serve(stream, router, open, deadlines, drain).await);
                }
            };
            let http = acceptor(ListenerKind::Http).run(listener, drain.clone(), serve);
            accepting.push(tokio::spawn(http));
        }
        if let Some(listener) = listeners.grpc {
            let counted = metrics.clone();
            let serve = move |stream, drain| {
                let (open, grpc) = (counted.connect(ListenerKind::Grpc), services.clone());
                async move {
                    drop(http_connection::serve(stream, grpc, open, deadlines, drain).await);
                }
            };
            let grpc = acceptor(ListenerKind::Grpc).run(listener, drain.clone(), serve);
            accepting.push(tokio::spawn(grpc));
        }
        if let Some(listener) = listeners.resp {
            let of_resp = tokens.of(ListenerKind::Resp).clone();
            let serve = move |stream, drain| {
                let (service, tokens) = (service.clone(), of_resp.clone());
                async move {
                    drop(resp::connection::serve(stream, service, tokens, deadlines, drain).await);
                }
            };
            let resp = acceptor(ListenerKind::Resp).run(listener, drain, serve);
            accepting.push(workers.resp.handle().spawn(resp));
        }
        (accepting, workers)
    }
}

fn local_address(listener: &Option<TcpListener>) -> Option<SocketAddr> {
    listener.as_ref()?.local_addr().ok()
}

/// The service with traces, if they are on, and what exports them.
fn traced(
    service: CheckService,
    options: Option<&otlp::OtlpOptions>,
) -> (Arc<CheckService>, Option<Exporter>) {
    let Some(options) = options else { return (Arc::new(service), None) };
    let (tracer, exporter) = Tracer::new(options);
    (Arc::new(service.with_tracer(tracer)), Some(exporter))
}

/// Connects to the control plane, and waits for its first configuration if the options say so.
async fn follow_control_plane(
    options: Option<XdsOptions>,
    policies: &Arc<PolicyManager>,
) -> Option<XdsClient> {
    let options = options?;
    let (start, address) = (options.start, options.address.clone());
    let mut client = XdsClient::spawn(options, policies.clone());
    if start == XdsStart::Wait {
        info!(%address, "waiting for the first configuration of the control plane");
        client.first_config().await;
    }
    Some(client)
}

/// Waits for run-time rules and overrides. Without a reply, their file or the policy file alone is
/// in force until the store replies.
async fn first_sync(policies: &PolicyManager) {
    let synced = async {
        while policies.sync().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(FIRST_SYNC, synced).await;
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Why a server does not start.
#[derive(Debug)]
pub enum StartError {
    /// Other machines could connect to this address without authentication.
    Exposed(SocketAddr),
    /// The policy does not load.
    Policy(Problems),
    /// The rules conflict.
    Rules(InvalidRule),
    /// The store cannot be used.
    Store(StoreError),
    /// All listeners are off.
    NoListener,
    /// The address of this flag cannot be bound.
    Bind(&'static str, SocketAddr, io::Error),
    /// Threads cannot be started.
    Threads(io::Error),
    /// The file of run-time rules and overrides cannot be read.
    RuntimeFile(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exposed(address) => write!(
                f,
                "{address} is reachable from other machines without token or TLS; set \
                 TIDEGATE_TOKEN, configure TLS, listen on loopback, or pass --insecure"
            ),
            Self::Policy(problems) => problems.fmt(f),
            Self::Rules(invalid) => invalid.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::Threads(error) => write!(f, "cannot start threads ({error})"),
            Self::RuntimeFile(error) => write!(
                f,
                "cannot read the file given with --runtime-file ({error}); restore it, or delete \
                 it to start without run-time rules and overrides"
            ),
            Self::NoListener => f.write_str("all of --http, --resp and --grpc are off; use one"),
            Self::Bind(flag, address, error) => write!(
                f,
                "cannot listen on {address} ({error}); choose another address with {flag}, or \
                 turn it off with {flag} off"
            ),
        }
    }
}

impl std::error::Error for StartError {}

impl From<Problems> for StartError {
    fn from(problems: Problems) -> Self {
        Self::Policy(problems)
    }
}

impl From<InvalidRule> for StartError {
    fn from(invalid: InvalidRule) -> Self {
        Self::Rules(invalid)
    }
}

impl From<StoreError> for StartError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
