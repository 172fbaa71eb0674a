//! `ShouldRateLimit` in memory compared with a bare tonic service that has the same messages and
//! decides nothing. Both are measured in turn, with the same client.
//!
//! ```text
//! cargo bench --package tidegate-server --bench envoy [-- SECONDS]
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate::policy::PolicyRule;
use tidegate::{Memory, Policy};
use tidegate_config::envoy::EnvoyConfig;
use tidegate_server::internal::check::{ActivePolicy, AdhocLimits, CheckService};
use tidegate_server::internal::observe::metrics::{ListenerKind, Metrics};
use tidegate_server::internal::shutdown;
use tidegate_server::internal::transport::envoy::grpc::GrpcServices;
use tidegate_server::internal::transport::envoy::proto::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use tidegate_server::internal::transport::envoy::proto::{
    Code, DescriptorStatus, Entry, RateLimit, RateLimitDescriptor, RateLimitRequest,
    RateLimitResponse, Unit,
};
use tidegate_server::internal::transport::envoy::service::EnvoyService;
use tidegate_server::internal::transport::envoy::settings::EnvoySettings;
use tidegate_server::internal::transport::listener::Timeouts;
use tidegate_server::internal::transport::listener::http_connection;
use tidegate_tower::extract::TrustedProxies;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

const FILE: &str = "{ domain: edge, descriptors: [{ key: remote_address, \
                    rate_limit: { unit: hour, requests_per_unit: 4000000000 } }] }";
const ROUNDS: usize = 5;
const CONNECTIONS: usize = 4;
const CALLERS: usize = 32;
const KEYS: u64 = 10_000;

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Fallible<()> {
    // Cargo itself passes `--bench`.
    let seconds = std::env::args().skip(1).find_map(|text| text.parse().ok()).unwrap_or(2);
    let (serving, calling) = (Runtime::new()?, Runtime::new()?);
    let (tidegate, bare) = (serving.block_on(tidegate())?, serving.block_on(bare())?);
    let span = Duration::from_secs(seconds);
    let mut rounds = [Vec::new(), Vec::new()];
    // The first round warms up and is not counted.
    for round in 0..=ROUNDS {
        for (which, address) in [tidegate, bare].into_iter().enumerate() {
            let measured = calling.block_on(measure(address, span))?;
            if round > 0 {
                rounds[which].push(measured);
            }
        }
    }
    let [tidegate, bare] = rounds.map(median);
    println!(
        "{CALLERS} callers on {CONNECTIONS} connections, median of {ROUNDS} rounds of {seconds} s"
    );
    for (name, Measured { rate, p99 }) in [("tidegate", tidegate), ("bare tonic", bare)] {
        println!("{name:>10}: {rate:>7} requests/s, p99 {:.2} ms", p99.as_secs_f64() * 1e3);
    }
    let share = tidegate.rate * 100 / bare.rate.max(1);
    println!("{share} % of the bare service's requests");
    Ok(())
}

#[derive(Clone, Copy)]
struct Measured {
    rate: u64,
    p99: Duration,
}

/// The median of each number separately.
fn median(mut rounds: Vec<Measured>) -> Measured {
    rounds.sort_by_key(|measured| measured.rate);
    let rate = rounds[rounds.len() / 2].rate;
    rounds.sort_by_key(|measured| measured.p99);
    Measured { rate, p99: rounds[rounds.len() / 2].p99 }
}

/// Sends the next request as soon as the response arrives, on every caller.
async fn measure(address: SocketAddr, span: Duration) -> Fallible<Measured> {
    let mut channels = Vec::new();
    for _ in 0..CONNECTIONS {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
        channels.push(endpoint.connect().await?);
    }
    let next = Arc::new(AtomicU64::new(0));
    let begin = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| tokio::spawn(call(channels[n % CONNECTIONS].clone(), begin + span, next.clone())))
        .collect();
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await??);
    }
    let took = begin.elapsed();
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
    let rate = u64::try_from(times.len() as u128 * 1_000_000 / took.as_micros())?;
    Ok(Measured { rate, p99 })
}

async fn call(
    channel: Channel,
    end: Instant,
    next: Arc<AtomicU64>,
) -> Result<Vec<Duration>, tonic::Status> {
    let mut client = tonic::client::Grpc::new(channel);
    let mut times = Vec::with_capacity(1 << 16);
    loop {
        let before = Instant::now();
        if before >= end {
            return Ok(times);
        }
        let key = next.fetch_add(1, Ordering::Relaxed) % KEYS;
        client.ready().await.map_err(|error| tonic::Status::unknown(error.to_string()))?;
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
        let codec = tonic_prost::ProstCodec::default();
        let reply = client.unary(tonic::Request::new(request(key)), path, codec).await?;
        let response: RateLimitResponse = reply.into_inner();
        assert_eq!(response.overall_code(), Code::Ok);
        times.push(before.elapsed());
    }
}

fn request(key: u64) -> RateLimitRequest {
    let value = format!("10.0.{}.{}", key / 256, key % 256);
    let entries = vec![Entry { key: "remote_address".into(), value }];
    let descriptor = RateLimitDescriptor { entries, ..Default::default() };
    RateLimitRequest { domain: "edge".into(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// The gRPC listener of a real service.
async fn tidegate() -> Fallible<SocketAddr> {
    let metrics = Arc::new(Metrics::default());
    let config = Arc::new(EnvoyConfig::load_str("edge.yaml", FILE)?);
    let policy = Policy::new([] as [PolicyRule; 0])?;
    let active =
        ActivePolicy::new(policy, TrustedProxies::default(), AdhocLimits::Refuse, &metrics);
    let active = active.with_envoy(Some(config), &metrics);
    let service = Arc::new(CheckService::new(Arc::new(Memory::default()), active, metrics.clone()));
    let limits = EnvoyService::new(service, EnvoySettings::default());
    let (drainer, drain) = shutdown::channel();
    let deadlines = Timeouts::default();
    let grpc = GrpcServices::new(Arc::new(limits), Arc::default(), deadlines, drain.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        let _drainer = drainer;
        while let Ok((stream, _)) = listener.accept().await {
            let open = metrics.connect(ListenerKind::Grpc);
            let serve =
                http_connection::serve(stream, grpc.clone(), open, deadlines, drain.clone());
            tokio::spawn(async move { serve.await.ok() });
        }
    });
    Ok(address)
}

/// Allows everything.
struct Bare;

#[tonic::async_trait]
impl RateLimitService for Bare {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, tonic::Status> {
        let status = |_: &RateLimitDescriptor| DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                name: String::new(),
                requests_per_unit: 4_000_000_000,
                unit: Unit::Hour.into(),
            }),
            limit_remaining: 3_999_999_999,
            duration_until_reset: Some(prost_types::Duration { seconds: 1_234, nanos: 567_000 }),
        };
        Ok(tonic::Response::new(RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: request.get_ref().descriptors.iter().map(status).collect(),
            ..Default::default()
        }))
    }
}

async fn bare() -> Fallible<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = tonic::transport::Server::builder().add_service(RateLimitServiceServer::new(Bare));
    tokio::spawn(async move { server.serve_with_incoming(incoming).await.ok() });
    Ok(address)
}
