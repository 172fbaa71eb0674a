//! `tidegate serve`. Imports: nothing.

mod envoy_args;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidegate::Span;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use self::envoy_args::EnvoyArgs;
use crate::error::{CliError, ExitStatus};
use crate::output::print_line;
use crate::store_args::StoreArgs;
use tidegate_config::MemorySize;
use tidegate_server::HostName;
use tidegate_server::internal::observe::logging;
use tidegate_server::internal::observe::otlp;
use tidegate_server::internal::observe::otlp::collector::Collector;
use tidegate_server::internal::observe::otlp::sampling::SamplingRatio;
use tidegate_server::internal::observe::systemd;
use tidegate_server::internal::observe::systemd::NotifyState;
use tidegate_server::internal::policy::PolicySource;
use tidegate_server::internal::policy::watcher;
use tidegate_server::internal::transport::auth::AuthTokens;
use tidegate_server::internal::transport::listener;
use tidegate_server::internal::transport::listener::{Timeouts, open_files, panics};
use tidegate_server::{Exposure, ReadyWhen, Server, ServerOptions, WaitLimits};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate serve                                      a sample policy, in memory, on loopback
  tidegate serve --config policy.yaml --store redis://127.0.0.1:6379
  TIDEGATE_TOKEN_FILE=token tidegate serve --config policy.yaml --http 0.0.0.0:8080
  tidegate serve --config policy.yaml --otlp http://127.0.0.1:4318 --otlp-sample 0.01

Environment:
  TIDEGATE_TOKEN        API token; required when other machines can reach a listener
  TIDEGATE_ADMIN_TOKEN  Token for changing rules and resetting keys
  .._FILE               Read either token from a file: TIDEGATE_TOKEN_FILE
  TIDEGATE_STORE        Store without --store and --store-file; all three override the policy
  TIDEGATE_SECRET       HMAC secret for hashing keys, unless the policy has one
  TIDEGATE_LOG          error, warn, info, debug or trace [default: info]
  OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME
                        With --otlp: collector URL if --otlp has none, and service name

SIGHUP and file changes reload the policy. SIGTERM and SIGINT stop the server after the requests
in flight; a second one aborts them.")]
pub(crate) struct Options {
    /// Policy file [default: built-in sample]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    store: StoreArgs,
    /// Memory for state; overrides the policy [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<MemorySize>,
    /// File with the last copy of run-time rules and overrides
    #[arg(long, value_name = "FILE")]
    runtime_file: Option<PathBuf>,
    /// HTTP listen address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = address)]
    http: SocketAddr,
    /// RESP (Redis protocol) listen address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6380", value_parser = address)]
    resp: SocketAddr,
    /// gRPC listen address, for Envoy
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081", value_parser = address)]
    grpc: SocketAddr,
    /// Listen address of /healthz and /readyz alone, on a separate thread
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    health: Option<SocketAddr>,
    #[command(flatten)]
    envoy: EnvoyArgs,
    #[command(flatten)]
    otlp: OtlpArgs,
    #[command(flatten)]
    listeners: ListenerArgs,
    /// Readiness: always, or store (while it decides)
    #[arg(long, value_name = "WHEN", default_value = "always", value_parser = ready_when)]
    ready_when: ReadyWhen,
    /// Host name of console and API besides the address; repeatable
    #[arg(long, value_name = "NAME")]
    console_host: Vec<HostName>,
    /// Allow unauthenticated plaintext access from other machines
    #[arg(long)]
    insecure: bool,
}

/// Span export.
#[derive(Args, Debug)]
struct OtlpArgs {
    /// Export spans to this OpenTelemetry collector (OTLP/HTTP, JSON)
    #[arg(long, value_name = "URL", num_args = 0..=1)]
    otlp: Option<Option<Collector>>,
    /// Sampling ratio for requests without a traceparent
    #[arg(long, value_name = "RATIO", default_value = "1", requires = "otlp")]
    otlp_sample: SamplingRatio,
}

impl OtlpArgs {
    /// Only the flag enables export. The environment variables set collector and service name, but
    /// some platforms set them for all programs.
    fn options(&self) -> Result<Option<otlp::OtlpOptions>, CliError> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let Some(given) = &self.otlp else { return Ok(None) };
        let collector = match given {
            Some(collector) => collector.clone(),
            None => {
                let url = variable(Collector::VARIABLE);
                let url = url.as_deref().unwrap_or(Collector::DEFAULT);
                url.parse().map_err(|error| format!("{}: {error}", Collector::VARIABLE))?
            }
        };
        let service_name = variable("OTEL_SERVICE_NAME").unwrap_or_else(|| "tidegate".into());
        let (sampling, service_name) = (self.otlp_sample, service_name.into());
        Ok(Some(otlp::OtlpOptions { collector, sampling, service_name }))
    }
}

/// TLS and bounds of all listeners.
#[derive(Args, Debug)]
struct ListenerArgs {
    /// TLS certificate for all listeners; overrides the policy file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of the TLS certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CA for client certificates; enables mutual TLS
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Maximum open connections, within the file limit
    #[arg(long, value_name = "N", default_value_t = listener::ListenerOptions::MAX_CONNECTIONS, value_parser = connections)]
    max_connections: usize,
    /// Maximum requests waiting for permits (wait_ms)
    #[arg(long, value_name = "N", default_value_t = WaitLimits::TOTAL, value_parser = waiting)]
    max_waiting: usize,
    /// Maximum requests waiting on one connection
    #[arg(long, value_name = "N", default_value_t = WaitLimits::PER_CONNECTION, value_parser = waiting)]
    max_waiting_conn: usize,
    /// Maximum requests waiting for one key
    #[arg(long, value_name = "N", default_value_t = WaitLimits::PER_KEY, value_parser = waiting)]
    max_waiting_key: usize,
    /// RESP idle timeout [default: none]
    #[arg(long, value_name = "SPAN", value_parser = idle_timeout)]
    resp_idle: Option<Duration>,
}

impl ListenerArgs {
    fn options(&self) -> listener::ListenerOptions {
        let files = self.tls_cert.clone().zip(self.tls_key.clone());
        let client_ca = self.tls_client_ca.clone();
        let allowed = open_files::max_connections();
        if allowed < self.max_connections {
            let wanted = self.max_connections;
            warn!(
                wanted,
                allowed, "connection limit lowered; raise the open file limit (ulimit -n)"
            );
        }
        listener::ListenerOptions {
            tls: files.map(|(cert, key)| tidegate_config::TlsFiles { cert, key, client_ca }),
            max_connections: self.max_connections.min(allowed),
            waits: WaitLimits {
                per_key: self.max_waiting_key,
                per_connection: self.max_waiting_conn,
                total: self.max_waiting,
            },
            deadlines: Timeouts { resp_idle: self.resp_idle, ..Timeouts::default() },
        }
    }
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "expected an IP address and port, for example 127.0.0.1:8080")
}

fn ready_when(text: &str) -> Result<ReadyWhen, &'static str> {
    match text {
        "always" => Ok(ReadyWhen::Always),
        "store" => Ok(ReadyWhen::Store),
        _ => Err("expected always or store"),
    }
}

fn connections(text: &str) -> Result<usize, &'static str> {
    let number = text.parse().ok().filter(|number| (1..=1_000_000).contains(number));
    number.ok_or("expected a number from 1 to 1000000")
}

fn waiting(text: &str) -> Result<usize, &'static str> {
    let number = text.parse().ok().filter(|number| (1..=100_000).contains(number));
    number.ok_or("expected a number from 1 to 100000")
}

fn idle_timeout(text: &str) -> Result<Duration, &'static str> {
    let span = text.parse::<Span>().ok().and_then(Span::length).map(Duration::from);
    span.filter(|span| *span >= Duration::from_secs(1))
        .ok_or("expected a duration of at least 1s, for example 5min")
}

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    logging::init(logging::LogFormat::for_stderr())?;
    panics::log_panics();
    let options = ServerOptions {
        source: options.config.clone().map_or(PolicySource::Sample, PolicySource::File),
        store: options.store.store(|warning| warn!("{warning}"))?,
        memory: options.memory,
        http: options.http,
        resp: options.resp,
        grpc: options.grpc,
        health: options.health,
        envoy: options.envoy.options(),
        listeners: options.listeners.options(),
        tokens: AuthTokens::from_env()?,
        exposure: if options.insecure { Exposure::Insecure } else { Exposure::Guarded },
        traces: options.otlp.options()?,
        console_hosts: options.console_host.clone(),
        runtime_file: options.runtime_file.clone(),
        ready_when: options.ready_when,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(options));
    // Does not wait for blocking tasks, such as a read from a disk that hangs.
    runtime.shutdown_background();
    served.map(|()| ExitStatus::Success)
}

async fn serve(options: ServerOptions) -> Result<(), CliError> {
    // Registered before the listeners are bound, so that no early signal is lost.
    let (mut stops, mut second_stops) = (StopSignals::new()?, StopSignals::new()?);
    let mut hangup = signal(SignalKind::hangup())?;
    let is_sample = options.source == PolicySource::Sample;
    // The start may wait for a control plane.
    let server = tokio::select! {
        server = Server::bind(options) => server?,
        () = stops.next() => return Ok(()),
    };
    let (http, resp) = (server.http_address()?, server.resp_address()?);
    let grpc = server.grpc_address()?;
    let tls = server.has_tls();
    let health = server.health_address().map(tracing::field::display);
    info!(%http, %resp, %grpc, health, tls, store = %server.store(), "listening");
    if is_sample {
        print_hints(http, resp, &server);
    }
    let policies = server.policies().clone();
    let reloads = tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            systemd::notify(NotifyState::Reloading);
            watcher::reload(&policies).await;
            systemd::notify(NotifyState::Ready);
        }
    });
    systemd::notify(NotifyState::Ready);
    let second_stop = async {
        second_stops.next().await;
        second_stops.next().await;
    };
    let stop = async {
        stops.next().await;
        systemd::notify(NotifyState::Stopping);
    };
    let result = tokio::select! {
        () = server.run(stop) => Ok(()),
        () = second_stop => Err("second stop signal: aborting requests in flight".into()),
    };
    reloads.abort();
    result
}

/// SIGTERM and SIGINT.
pub(crate) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(crate) fn new() -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn print_hints(http: SocketAddr, resp: SocketAddr, server: &Server) {
    // An unspecified address (0.0.0.0) can be listened on, but not connected to.
    let reachable = |mut address: SocketAddr| {
        if address.ip().is_unspecified() {
            address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        address
    };
    let (http, port) = (reachable(http), resp.port());
    let (store, needs_token) = (server.store(), server.needs_token());
    let [scheme, tls] = if server.has_tls() { ["https", " --tls"] } else { ["http", ""] };
    let header = if needs_token { " -H \"X-Tidegate-Token: $TIDEGATE_TOKEN\"" } else { "" };
    let auth = if needs_token { " -a \"$TIDEGATE_TOKEN\"" } else { "" };
    let hints = format!(
        "No --config given: using the sample policy with rules login, api and budget. Store: {store}.
Try:

  curl -i {scheme}://{http}/v1/check{header} --json '{{\"rule\":\"login\",\"key\":\"1.2.3.4\"}}'
  curl -i {scheme}://{http}/v1/check{header} --json '{{\"limit\":\"5/min\",\"key\":\"me\"}}'
  curl -i {scheme}://{http}/v1/authorize{header} -H 'X-Forwarded-Uri: /api/x' -H 'X-Api-Key: k1'
  redis-cli -p {port}{tls}{auth} TG.CHECK login 1.2.3.4
  redis-cli -p {port}{tls}{auth} CL.THROTTLE user123 15 30 60 1
  curl {scheme}://{http}/v1/rules{header}
  curl {scheme}://{http}/metrics

or open {scheme}://{http}/ in a browser.
"
    );
    // The server runs even if standard output is closed.
    let _ = print_line(hints);
}
