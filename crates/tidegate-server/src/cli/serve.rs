//! `tidegate serve`

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tidegate::Span;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use super::{Failure, Outcome, say};
use crate::console::HostName;
use crate::doors::{self, Deadlines, descriptors, panics, tls};
use crate::envoy::config::SameDomain;
use crate::envoy::service::{Enforcement, Headers, Settings};
use crate::logs;
use crate::policies::{EnvoySource, Source};
use crate::server::{self, EnvoyOptions, Exposure, Server};
use crate::store::Store;
use crate::supervisor::{self, State};
use crate::tokens::Tokens;
use crate::trace;
use crate::trace::collector::Collector;
use crate::trace::sampling::Sampling;
use crate::watch;

/// Answers over HTTP, the Redis protocol and Envoy's.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate serve                                      a sample policy, in memory, on loopback
  tidegate serve --config policy.yaml --store redis://127.0.0.1:6379
  TIDEGATE_TOKEN_FILE=token tidegate serve --config policy.yaml --http 0.0.0.0:8080
  tidegate serve --config policy.yaml --otlp http://127.0.0.1:4318 --otlp-sample 0.01

Environment:
  TIDEGATE_TOKEN        Whoever asks has to show it; needed where others can reach the address
  TIDEGATE_ADMIN_TOKEN  Whoever changes rules or forgets counts has to show it
  .._FILE               Either of them from a file instead: TIDEGATE_TOKEN_FILE
  TIDEGATE_SECRET       Keys the hash of subjects in the store, unless the policy has a secret
  TIDEGATE_LOG          error, warn, info, debug or trace [default: info]
  OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME
                        With --otlp: the collector if it names none, and whose the spans are

SIGHUP reads the policy again, as does a change of its files. SIGTERM and SIGINT end it, once
everybody who has asked is answered.")]
pub(super) struct Options {
    /// The policy file; without one a sample is used
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Counts in memory or redis://[user:pw@]host[:port][/db]; wins over it
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Where HTTP is spoken
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = address)]
    http: SocketAddr,
    /// Where the Redis protocol is spoken
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6380", value_parser = address)]
    resp: SocketAddr,
    /// Where gRPC is spoken, for Envoy
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081", value_parser = address)]
    grpc: SocketAddr,
    #[command(flatten)]
    envoy: Envoy,
    #[command(flatten)]
    traces: Traces,
    #[command(flatten)]
    doors: Doors,
    /// A name that the console goes by, besides its address; repeatable
    #[arg(long, value_name = "NAME")]
    console_host: Vec<HostName>,
    /// Let anybody in from anywhere, though neither token nor TLS guards it
    #[arg(long)]
    insecure: bool,
}

/// Where spans go.
#[derive(Args, Debug)]
struct Traces {
    /// Send spans to this collector of OpenTelemetry, over OTLP/HTTP in JSON
    #[arg(long, value_name = "URL", num_args = 0..=1)]
    otlp: Option<Option<Collector>>,
    /// The share of calls with a span, if no traceparent decides
    #[arg(long, value_name = "RATE", default_value = "1", requires = "otlp")]
    otlp_sample: Sampling,
}

impl Traces {
    /// The variables say where and as whom, and only the flag that it is wanted: some platforms set them
    /// for every program there is.
    fn options(&self) -> Result<Option<trace::Options>, Failure> {
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
        Ok(Some(trace::Options { collector, sampling, service_name }))
    }
}

/// How the doors are guarded.
#[derive(Args, Debug)]
struct Doors {
    /// The server's certificate, for TLS on all doors; wins over the file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Who signs certificates of clients; nobody comes in without one
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// The most clients at once, if the system has room
    #[arg(long, value_name = "N", default_value_t = doors::Options::MAX_CONNECTIONS, value_parser = connections)]
    max_connections: usize,
    /// How long a client of the Redis door may be silent [default: for ever]
    #[arg(long, value_name = "SPAN", value_parser = silence)]
    resp_idle: Option<Duration>,
}

impl Doors {
    fn options(&self) -> doors::Options {
        let files = self.tls_cert.clone().zip(self.tls_key.clone());
        let client_ca = self.tls_client_ca.clone();
        let room = descriptors::room_for_clients();
        if room < self.max_connections {
            let wanted = self.max_connections;
            warn!(
                wanted,
                room, "fewer clients than wanted; raise the limit of open files (ulimit -n)"
            );
        }
        doors::Options {
            tls: files.map(|(cert, key)| tls::Files { cert, key, client_ca }),
            max_connections: self.max_connections.min(room),
            deadlines: Deadlines { resp_idle: self.resp_idle, ..Deadlines::default() },
        }
    }
}

/// How Envoy is answered.
#[derive(Args, Debug)]
struct Envoy {
    /// The folder with envoyproxy/ratelimit's files
    #[arg(long, value_name = "DIR")]
    envoy_config: Option<PathBuf>,
    /// Files about the same domain are put together instead of refused
    #[arg(long, requires = "envoy_config")]
    envoy_merge: bool,
    /// Everything passes; what would have been denied is told and counted
    #[arg(long, requires = "envoy_config")]
    envoy_shadow: bool,
    /// Headers for clients: off, theirs or ours
    #[arg(long, value_name = "OF", default_value = "off", hide_possible_values = true)]
    envoy_headers: EnvoyHeaders,
    /// Count under envoyproxy/ratelimit's names, too
    #[arg(long)]
    envoy_stats: bool,
}

/// Headers that Envoy adds to responses.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum EnvoyHeaders {
    Off,
    Theirs,
    Ours,
}

impl Envoy {
    fn options(&self) -> EnvoyOptions {
        let same_domain = if self.envoy_merge { SameDomain::Merge } else { SameDomain::Refuse };
        let folder = self.envoy_config.clone();
        EnvoyOptions {
            source: folder.map(|folder| EnvoySource { folder, same_domain }),
            settings: Settings {
                headers: match self.envoy_headers {
                    EnvoyHeaders::Off => Headers::Off,
                    EnvoyHeaders::Theirs => Headers::Theirs,
                    EnvoyHeaders::Ours => Headers::Ours,
                },
                enforcement: match self.envoy_shadow {
                    true => Enforcement::Shadow,
                    false => Enforcement::Enforce,
                },
            },
            stats: self.envoy_stats,
        }
    }
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write an IP address and a port, like 127.0.0.1:8080")
}

fn connections(text: &str) -> Result<usize, &'static str> {
    let number = text.parse().ok().filter(|number| (1..=1_000_000).contains(number));
    number.ok_or("write a number from 1 to 1000000")
}

fn silence(text: &str) -> Result<Duration, &'static str> {
    let span = text.parse::<Span>().ok().and_then(Span::length).map(Duration::from);
    span.filter(|span| *span >= Duration::from_secs(1)).ok_or("write a span from 1s up, like 5min")
}

pub(super) fn run(options: &Options) -> Result<Outcome, Failure> {
    logs::init(logs::Format::for_stderr())?;
    panics::log_panics();
    let options = server::Options {
        source: options.config.clone().map_or(Source::Sample, Source::File),
        store: options.store.as_deref().map(str::parse::<Store>).transpose()?,
        http: options.http,
        resp: options.resp,
        grpc: options.grpc,
        envoy: options.envoy.options(),
        doors: options.doors.options(),
        tokens: Tokens::from_env()?,
        exposure: if options.insecure { Exposure::Insecure } else { Exposure::Guarded },
        traces: options.traces.options()?,
        console_hosts: options.console_host.clone(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(options));
    // Not even a disk that hangs keeps the process.
    runtime.shutdown_background();
    served.map(|()| Outcome::Good)
}

async fn serve(options: server::Options) -> Result<(), Failure> {
    // Before anybody can know that there is a server to send them to.
    let (mut stops, mut stops_again) = (Stops::new()?, Stops::new()?);
    let mut hangup = signal(SignalKind::hangup())?;
    let is_sample = options.source == Source::Sample;
    let server = Server::bind(options).await?;
    let (http, resp) = (server.http_address()?, server.resp_address()?);
    let grpc = server.grpc_address()?;
    let tls = server.has_tls();
    info!(%http, %resp, %grpc, tls, store = %server.store(), "listening");
    if is_sample {
        print_what_to_try(http, resp, &server);
    }
    let policies = server.policies().clone();
    let reloads = tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            supervisor::tell(State::Reloading);
            watch::reload(&policies).await;
            supervisor::tell(State::Ready);
        }
    });
    supervisor::tell(State::Ready);
    let twice = async {
        stops_again.next().await;
        stops_again.next().await;
    };
    let stop = async {
        stops.next().await;
        supervisor::tell(State::Stopping);
    };
    let result = tokio::select! {
        () = server.run(stop) => Ok(()),
        () = twice => Err("told to stop twice; whoever was still being answered is cut off".into()),
    };
    reloads.abort();
    result
}

/// The signals that ask for an end.
pub(super) struct Stops {
    terminate: Signal,
    interrupt: Signal,
}

impl Stops {
    pub(super) fn new() -> io::Result<Self> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn print_what_to_try(http: SocketAddr, resp: SocketAddr, server: &Server) {
    // An address that means all of them is one to listen on, not to ask.
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
        "No --config was given, so this is the sample policy: rules login, api and budget. Counting in
{store}. Try:

  curl -i {scheme}://{http}/v1/check{header} --json '{{\"rule\":\"login\",\"key\":\"1.2.3.4\"}}'
  curl -i {scheme}://{http}/v1/check{header} --json '{{\"limit\":\"5/min\",\"key\":\"me\"}}'
  curl -i {scheme}://{http}/v1/authorize{header} -H 'X-Forwarded-Uri: /api/x' -H 'X-Api-Key: k1'
  redis-cli -p {port}{tls}{auth} TG.CHECK login 1.2.3.4
  redis-cli -p {port}{tls}{auth} CL.THROTTLE user123 15 30 60 1
  curl {scheme}://{http}/v1/rules{header}
  curl {scheme}://{http}/metrics

or look at {scheme}://{http}/ in a browser.
"
    );
    // A server goes on when nobody reads its hints.
    let _ = say(hints);
}
