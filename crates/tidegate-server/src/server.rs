//! The server: its doors, its life and its end.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::InvalidRule;
use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tracing::{info, warn};

use crate::config::Problems;
use crate::console::{Console, HostName, Tls};
use crate::doors::accept::Entrance;
pub use crate::doors::exposed::Exposure;
use crate::doors::room::Room;
use crate::doors::{self, exposed};
use crate::drain;
use crate::envoy;
use crate::envoy::grpc::Grpc;
use crate::envoy::service::RateLimits;
use crate::envoy::stats::Stats;
use crate::http;
use crate::live;
use crate::metrics::{Door, Metrics};
use crate::policies::{EnvoySource, Policies, Source, Sources};
use crate::resp;
use crate::service::Service;
use crate::store::{Layers, Store, StoreError};
use crate::tokens::Tokens;
use crate::trace::export::Exporter;
use crate::trace::{self, Tracer};
use crate::watch;

/// What a server is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the policy comes from.
    pub source: Source,
    /// Where the counts are kept; as the policy says if not given.
    pub store: Option<Store>,
    /// Where HTTP is spoken.
    pub http: SocketAddr,
    /// Where the Redis protocol is spoken.
    pub resp: SocketAddr,
    /// Where gRPC is spoken.
    pub grpc: SocketAddr,
    /// How Envoy is answered.
    pub envoy: EnvoyOptions,
    /// How the doors are guarded.
    pub doors: doors::Options,
    /// What opens the doors.
    pub tokens: Tokens,
    /// May anybody come in from anywhere?
    pub exposure: Exposure,
    /// Where spans of its calls go, if they do.
    pub traces: Option<trace::Options>,
    /// Names by which people reach the console, besides the address of its door.
    pub console_hosts: Vec<HostName>,
}

/// How Envoy is answered.
#[derive(Clone, Default, Debug)]
pub struct EnvoyOptions {
    /// Where the limits of its domains come from; without, everything passes.
    pub source: Option<EnvoySource>,
    /// What it is told.
    pub settings: envoy::service::Settings,
    /// Is anything counted under envoyproxy/ratelimit's names?
    pub stats: bool,
}

/// A server with its doors open and nobody served yet.
pub struct Server {
    service: Arc<Service>,
    policies: Arc<Policies>,
    tokens: Arc<Tokens>,
    doors: doors::Options,
    listeners: Listeners,
    envoy: Arc<RateLimits>,
    workers: Workers,
    store: Store,
    layers: Layers,
    exporter: Option<Exporter>,
    console: Arc<Console>,
}

struct Listeners {
    http: TcpListener,
    resp: TcpListener,
    grpc: TcpListener,
}

/// Threads of the Redis door's own, one less than there are processors.
///
/// A command takes a microsecond. Spread over as many threads as there are processors, it takes
/// longer to wake one of them than to answer, and the clients on the same machine have to wait.
struct Workers(Option<Runtime>);

impl Workers {
    fn new() -> io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(processors.saturating_sub(1).max(1));
        Ok(Self(Some(runtime.thread_name("tidegate-resp").enable_all().build()?)))
    }

    fn handle(&self) -> Handle {
        self.0.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
    }
}

/// A runtime that is dropped waits for its threads, which is not allowed where others run.
impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// How long the drain waits for clients that are still being answered: a little longer than the
/// longest wait that one can ask for.
const DRAIN_DEADLINE: Duration = Duration::from_secs(65);
/// How long giving back what was borrowed may take.
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);

impl Server {
    /// Reads the policy and opens the doors. It does not wait for the store.
    pub async fn bind(options: Options) -> Result<Self, StartError> {
        let mut doors = options.doors;
        let tls = doors.tls.take();
        let sources = Sources { policy: options.source, envoy: options.envoy.source, tls };
        let (read, seen) = sources.load();
        let read = read?;
        let addresses = [options.http, options.resp, options.grpc];
        exposed::look(&addresses, &options.tokens, read.tls.as_ref(), options.exposure)
            .map_err(StartError::Exposed)?
            .tell();
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
        let layers = store.engine_with_layers(&loaded.settings, &metrics)?;
        let active = read.active(&metrics)?;
        let mut service = Service::new(layers.engine.clone(), active, metrics);
        let mut exporter = None;
        if let Some(options) = &options.traces {
            let (tracer, spans) = Tracer::new(options);
            (service, exporter) = (service.traced_by(tracer), Some(spans));
        }
        let service = Arc::new(service);
        let policies = Arc::new(Policies::new(service.clone(), sources, read, seen));
        let mut envoy = RateLimits::new(service.clone(), options.envoy.settings);
        if options.envoy.stats {
            envoy = envoy.counted_by(Arc::new(Stats::default()));
        }
        let envoy = Arc::new(envoy);
        let bind = async |address| {
            TcpListener::bind(address).await.map_err(|error| StartError::Bind(address, error))
        };
        let workers = Workers::new().map_err(StartError::Threads)?;
        let http = bind(options.http).await?;
        let grpc = bind(options.grpc).await?;
        let resp = {
            let bound = bind(options.resp).await?.into_std();
            let _workers = workers.handle().enter();
            let bound = bound.and_then(TcpListener::from_std);
            bound.map_err(|error| StartError::Bind(options.resp, error))?
        };
        let tokens = Arc::new(options.tokens);
        let address = http.local_addr().map_err(|error| StartError::Bind(options.http, error))?;
        let tls = if policies.certificates().is_some() { Tls::On } else { Tls::Off };
        let clock = service.clock().clone();
        let console = Arc::new(Console::new(address, tls, options.console_hosts, clock));
        let listeners = Listeners { http, resp, grpc };
        Ok(Self {
            service,
            policies,
            tokens,
            doors,
            listeners,
            envoy,
            workers,
            store,
            layers,
            exporter,
            console,
        })
    }

    /// Where HTTP is spoken.
    pub fn http_address(&self) -> io::Result<SocketAddr> {
        self.listeners.http.local_addr()
    }

    /// Where the Redis protocol is spoken.
    pub fn resp_address(&self) -> io::Result<SocketAddr> {
        self.listeners.resp.local_addr()
    }

    /// Where gRPC is spoken.
    pub fn grpc_address(&self) -> io::Result<SocketAddr> {
        self.listeners.grpc.local_addr()
    }

    /// Where the counts are kept.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Do the doors have TLS?
    pub fn has_tls(&self) -> bool {
        self.policies.certificates().is_some()
    }

    /// Does whoever asks have to show a token?
    pub fn needs_token(&self) -> bool {
        self.tokens.guards_checks()
    }

    /// What the doors ask.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// The policy and where it comes from.
    pub fn policies(&self) -> &Arc<Policies> {
        &self.policies
    }

    /// Serves until `shutdown` completes, and then until everybody who asked is answered.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let (drainer, drain) = drain::channel();
        let Self { service, policies, tokens, doors, listeners, .. } = self;
        let Self { envoy, workers, store, layers, exporter, console, .. } = self;
        let exporting = exporter.map(Exporter::start);
        let asked = service.clone();
        tokio::spawn(watch::watch(policies.clone(), drain.clone()));
        tokio::spawn(live::run(service.clone(), drain.clone()));
        let deadlines = doors.deadlines;
        let services = Grpc::new(envoy.clone(), tokens.clone(), deadlines, drain.clone());
        let (told, asked_too) = (services.clone(), service.clone());
        tokio::spawn(async move { told.tell_health(|| asked_too.health().up).await });
        let entrance = Entrance {
            door: Door::Http,
            room: Arc::new(Room::new(doors.max_connections)),
            certificates: policies.certificates().cloned(),
            metrics: service.metrics().clone(),
            deadlines,
        };
        let door = http::Door {
            service: service.clone(),
            policies,
            tokens: tokens.clone(),
            envoy,
            console,
            drain: drain.clone(),
        };
        let router = http::router(door, &services);
        let metrics = service.metrics().clone();
        let http = entrance.clone().open(listeners.http, drain.clone(), move |stream, drain| {
            let open = metrics.connect(Door::Http);
            let connection =
                http::connection::serve(stream, router.clone(), open, deadlines, drain);
            // A client that breaks off is none of our business.
            async move { drop(connection.await) }
        });
        let metrics = service.metrics().clone();
        let grpc = Entrance { door: Door::Grpc, ..entrance.clone() };
        let grpc = grpc.open(listeners.grpc, drain.clone(), move |stream, drain| {
            let open = metrics.connect(Door::Grpc);
            let connection =
                http::connection::serve(stream, services.clone(), open, deadlines, drain);
            async move { drop(connection.await) }
        });
        let resp = Entrance { door: Door::Resp, ..entrance };
        let resp = resp.open(listeners.resp, drain, move |stream, drain| {
            let (service, tokens) = (service.clone(), tokens.clone());
            let connection = resp::connection::serve(stream, service, tokens, deadlines, drain);
            async move { drop(connection.await) }
        });
        let doors = [tokio::spawn(http), tokio::spawn(grpc), workers.handle().spawn(resp)];
        tokio::select! {
            () = shutdown => {}
            () = store.tell(|| asked.health(), || asked.metrics().store_errors()) => {}
        }
        info!("draining: no new connections, open ones are answered");
        drainer.begin();
        for door in doors {
            let _ = door.await;
        }
        match tokio::time::timeout(DRAIN_DEADLINE, drainer.finished()).await {
            Ok(()) => info!("drained"),
            Err(_) => warn!("some clients are still being answered; leaving them"),
        }
        // What the store does not hear of it charges by itself.
        let _ = tokio::time::timeout(CLOSE_DEADLINE, layers.close()).await;
        if let Some(exporting) = exporting {
            exporting.finish().await;
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Why a server does not start.
#[derive(Debug)]
pub enum StartError {
    /// Anybody could come in.
    Exposed(SocketAddr),
    /// The policy is not good.
    Policy(Problems),
    /// The rules do not go together.
    Rules(InvalidRule),
    /// The store is not one.
    Store(StoreError),
    /// The address cannot be had.
    Bind(SocketAddr, io::Error),
    /// The system has no threads to give.
    Threads(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exposed(address) => write!(
                f,
                "{address} can be reached from other machines, and neither a token nor TLS guards it; \
                 set TIDEGATE_TOKEN, give it certificates, use a loopback address, or say --insecure"
            ),
            Self::Policy(problems) => problems.fmt(f),
            Self::Rules(invalid) => invalid.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::Threads(error) => write!(f, "cannot start threads ({error})"),
            Self::Bind(address, error) => write!(
                f,
                "cannot listen on {address} ({error}); choose another address with --http, --grpc or --resp"
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
