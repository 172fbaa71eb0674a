//! `tidegate serve`. Imports: nothing.

mod banner;
mod envoy_args;
mod listener_args;

use std::io;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use self::envoy_args::EnvoyArgs;
use self::listener_args::{AddressArgs, ListenerArgs};
use crate::environment_args::variable;
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
use tidegate_server::internal::transport::listener::panics;
use tidegate_server::{
    EnvoyOptions, Exposure, HttpRoutes, ListenerKind, ReadyWhen, Server, ServerOptions,
};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate serve                                      a sample policy, in memory, on loopback
  tidegate serve -c policy.yaml --store redis://127.0.0.1:6379
  TIDEGATE_TOKEN_FILE=token tidegate serve -c policy.yaml --http 0.0.0.0:8080
  tidegate serve -c policy.yaml --otlp http://127.0.0.1:4318 --otlp-sample 0.01

Environment:
  TIDEGATE_CONFIG, TIDEGATE_STORE, TIDEGATE_MAX_WAITING, ..
                        Every option has a variable, which is used if the option is not given
  TIDEGATE_TOKEN        API token; required when other machines can reach a listener
  TIDEGATE_ADMIN_TOKEN  Token for changing rules and resetting keys
  .._FILE               Read either token from a file: TIDEGATE_TOKEN_FILE
  TIDEGATE_SECRET       HMAC secret for hashing keys, unless the policy has one
  TIDEGATE_LOG          error, warn, info, debug or trace [default: info]
  OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME
                        With --otlp: collector URL if --otlp has none, and service name

SIGHUP and file changes reload the policy. SIGTERM and SIGINT stop the server after the requests
in flight; a second one aborts them.")]
pub(crate) struct Options {
    /// Policy file [default: built-in sample]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Log warnings and errors only, unless TIDEGATE_LOG is set; no banner
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    store: StoreArgs,
    /// Memory for state; overrides the policy [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<MemorySize>,
    /// File with the last copy of run-time rules and overrides
    #[arg(long, value_name = "FILE")]
    runtime_file: Option<PathBuf>,
    #[command(flatten)]
    addresses: AddressArgs,
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
        let variable = |name| variable(name).and_then(|value| value.into_string().ok());
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

fn ready_when(text: &str) -> Result<ReadyWhen, &'static str> {
    match text {
        "always" => Ok(ReadyWhen::Always),
        "store" => Ok(ReadyWhen::Store),
        _ => Err("expected always or store"),
    }
}

impl Options {
    /// The sample is for a server that nothing else gives limits to.
    fn source(&self, envoy: &EnvoyOptions) -> PolicySource {
        match &self.config {
            Some(path) => PolicySource::File(path.clone()),
            None if envoy.source.is_some() => PolicySource::Inline("rules: []".into()),
            None => PolicySource::Sample,
        }
    }

    fn start_output(&self) -> StartOutput {
        match io::stderr().is_terminal() {
            _ if self.quiet => StartOutput::Quiet,
            true => StartOutput::Banner(self.config.clone()),
            false => StartOutput::Log,
        }
    }

    fn server(&self) -> Result<ServerOptions, CliError> {
        let envoy = self.envoy.options();
        Ok(ServerOptions {
            source: self.source(&envoy),
            store: self.store.store(|warning| warn!("{warning}"))?,
            memory: self.memory,
            http: self.addresses.http.0,
            http_routes: HttpRoutes::All,
            resp: self.addresses.resp.0,
            grpc: self.addresses.grpc.0,
            health: self.addresses.health.and_then(|address| address.0),
            metrics: self.addresses.metrics.and_then(|address| address.0),
            envoy,
            listeners: self.listeners.options(),
            tokens: AuthTokens::from_env()?,
            without_token: self.listeners.without_token(),
            exposure: if self.insecure { Exposure::Insecure } else { Exposure::Guarded },
            traces: self.otlp.options()?,
            console_hosts: self.console_host.clone(),
            runtime_file: self.runtime_file.clone(),
            ready_when: self.ready_when,
        })
    }
}

/// What the start of a server prints.
pub(super) enum StartOutput {
    /// A log line with the addresses.
    Log,
    /// A few lines for people; with the policy file.
    Banner(Option<PathBuf>),
    Quiet,
}

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    let format = logging::LogFormat::for_stderr();
    match options.quiet && variable("TIDEGATE_LOG").is_none() {
        true => logging::init_at(format, "warn")?,
        false => logging::init(format)?,
    }
    panics::log_panics();
    run_server(options.server()?, options.start_output())
}

/// Serves until the process is stopped. Logging is initialised already.
pub(super) fn run_server(
    options: ServerOptions,
    output: StartOutput,
) -> Result<ExitStatus, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(options, output));
    // Does not wait for blocking tasks, such as a read from a disk that hangs.
    runtime.shutdown_background();
    served.map(|()| ExitStatus::Success)
}

async fn serve(options: ServerOptions, output: StartOutput) -> Result<(), CliError> {
    // Registered before the listeners are bound, so that no early signal is lost.
    let (mut stops, mut second_stops) = (StopSignals::new()?, StopSignals::new()?);
    let mut hangup = signal(SignalKind::hangup())?;
    let is_sample = options.source == PolicySource::Sample;
    // The start may wait for a control plane.
    let server = tokio::select! {
        server = Server::bind(options) => server?,
        () = stops.next() => return Ok(()),
    };
    match &output {
        StartOutput::Log => log_listening(&server),
        StartOutput::Banner(config) => banner::print(&server, config.as_deref()),
        StartOutput::Quiet => {}
    }
    if is_sample && !matches!(output, StartOutput::Quiet) {
        // The server runs even if standard output is closed.
        let _ = banner::examples(&server).map_or(Ok(()), print_line);
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
        // Shells and `timeout` signal a process and its group: within moments it is one stop.
        tokio::time::sleep(ONE_STOP).await;
        match StopSignals::new() {
            Ok(mut later) => later.next().await,
            Err(_) => std::future::pending().await,
        }
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

fn log_listening(server: &Server) {
    let shown = |address: Option<SocketAddr>| address.map(tracing::field::display);
    let (http, resp) = (shown(server.http_address()), shown(server.resp_address()));
    let (grpc, health) = (shown(server.grpc_address()), shown(server.health_address()));
    let metrics = shown(server.metrics_address());
    let with_tls = ListenerKind::ALL.into_iter().filter(|listener| server.has_tls(*listener));
    let with_tls: Vec<&str> = with_tls.map(ListenerKind::name).collect();
    // `true` if all listeners have TLS, else their names.
    let tls = match with_tls.len() {
        0 => "false".to_string(),
        len if len == ListenerKind::ALL.len() => "true".to_string(),
        _ => with_tls.join(","),
    };
    info!(http, resp, grpc, health, metrics, tls, store = %server.store(), "listening");
}

/// Signals within this time of the first belong to the same stop.
const ONE_STOP: Duration = Duration::from_millis(100);

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
