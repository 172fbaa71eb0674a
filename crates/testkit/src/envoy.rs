//! Requests and a client for Envoy's rate limit service, and the service in process on a manual
//! clock.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::policy::PolicyRule;
use tidegate::{Engine, ManualClock, Memory, Policy};
use tidegate_config::envoy::EnvoyConfig;
use tidegate_server::internal::check::CheckService;
use tidegate_server::internal::check::{ActivePolicy, AdhocLimits};
use tidegate_server::internal::observe::metrics::{ListenerKind, Metrics};
use tidegate_server::internal::shutdown;
use tidegate_server::internal::transport::envoy::grpc::GrpcServices;
use tidegate_server::internal::transport::envoy::proto::{
    Code, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tidegate_server::internal::transport::envoy::service::EnvoyService;
use tidegate_server::internal::transport::envoy::settings::EnvoySettings;
use tidegate_server::internal::transport::listener::Timeouts;
use tidegate_server::internal::transport::listener::http_connection;
use tidegate_tower::extract::TrustedProxies;
use tokio::net::TcpListener;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

/// A descriptor of these entries.
pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

/// A descriptor with `hits_addend`.
pub fn descriptor_with_hits(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

/// A request of these descriptors.
pub fn request(domain: &str, descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: domain.into(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

/// The overall code, and the code and `limit_remaining` of each descriptor.
pub fn codes(response: &RateLimitResponse) -> (Code, Vec<(Code, u32)>) {
    let each = response.statuses.iter().map(|status| (status.code(), status.limit_remaining));
    (response.overall_code(), each.collect())
}

/// The service without a listener, in memory, on a manual clock. Windows of any length begin now.
pub struct EnvoyInProcess {
    pub clock: ManualClock,
    pub service: Arc<CheckService>,
    pub limits: EnvoyService,
}

impl EnvoyInProcess {
    pub fn new(yaml: &str) -> Self {
        Self::with(yaml, EnvoySettings::default())
    }

    pub fn with(yaml: &str, settings: EnvoySettings) -> Self {
        let clock = ManualClock::default();
        // A multiple of every unit, so that all windows begin here.
        clock.set(tidegate::Micros::from_secs(365 * 30 * 7 * 86_400));
        let engine = Memory::builder().clock(clock.clone()).build();
        Self::on(Arc::new(engine), clock, yaml, settings)
    }

    pub fn on(
        engine: Arc<dyn Engine>,
        clock: ManualClock,
        yaml: &str,
        settings: EnvoySettings,
    ) -> Self {
        let metrics = Arc::new(Metrics::default());
        let service = Arc::new(CheckService::new(engine, active(yaml, &metrics), metrics));
        let limits = EnvoyService::new(service.clone(), settings);
        Self { clock, service, limits }
    }

    /// Loads another configuration file.
    pub fn reload(&self, yaml: &str) {
        self.service.set_policy(active(yaml, self.service.metrics()));
    }

    pub async fn decide(&self, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
        self.limits.decide(&request("d", descriptors)).await.expect("a response")
    }

    /// The code and `limit_remaining` of one descriptor.
    pub async fn decide_one(&self, descriptor: RateLimitDescriptor) -> (Code, u32) {
        let response = self.decide(&[descriptor]).await;
        let status = &response.statuses[0];
        (response.overall_code(), status.limit_remaining)
    }
}

/// Serves gRPC on a free port until the runtime ends.
pub async fn listen(envoy: EnvoyInProcess) -> (SocketAddr, ManualClock) {
    listen_with(envoy, Timeouts::default()).await
}

/// As [`listen`], with timeouts.
pub async fn listen_with(envoy: EnvoyInProcess, timeouts: Timeouts) -> (SocketAddr, ManualClock) {
    let EnvoyInProcess { clock, service, limits } = envoy;
    let (trigger, signal) = shutdown::channel();
    let limits = Arc::new(limits);
    let grpc = GrpcServices::new(limits, Arc::default(), timeouts, signal.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let _trigger = trigger;
        while let Ok((stream, _)) = listener.accept().await {
            let open = service.metrics().connect(ListenerKind::Grpc);
            let serve =
                http_connection::serve(stream, grpc.clone(), open, timeouts, signal.clone());
            tokio::spawn(async move { serve.await.ok() });
        }
    });
    (address, clock)
}

fn active(yaml: &str, metrics: &Metrics) -> ActivePolicy {
    let config = EnvoyConfig::load_str("test.yaml", yaml);
    let config = config.unwrap_or_else(|problems| panic!("{problems}"));
    let policy = Policy::new([] as [PolicyRule; 0]).expect("a policy without rules is valid");
    let active = ActivePolicy::new(policy, TrustedProxies::default(), AdhocLimits::Refuse, metrics);
    active.with_envoy(Some(Arc::new(config)), metrics)
}

/// A gRPC client.
#[derive(Clone)]
pub struct EnvoyClient {
    channel: Channel,
    token: Option<&'static str>,
}

impl EnvoyClient {
    pub async fn connect(address: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let endpoint = endpoint.timeout(Duration::from_secs(30)).tcp_nodelay(true);
        Self::on(endpoint.connect().await.expect("the listener accepts"))
    }

    /// A client on this channel.
    pub fn on(channel: Channel) -> Self {
        Self { channel, token: None }
    }

    pub fn with_token(self, token: &'static str) -> Self {
        Self { token: Some(token), ..self }
    }

    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Calls `ShouldRateLimit`.
    pub async fn should_rate_limit(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        self.call(path, request.clone()).await
    }

    pub async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut client = Grpc::new(self.channel.clone());
        client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        let mut request = tonic::Request::new(request);
        if let Some(token) = self.token {
            let value = format!("Bearer {token}").parse().expect("a header");
            request.metadata_mut().insert("authorization", value);
        }
        let codec = tonic_prost::ProstCodec::default();
        let response = client.unary(request, PathAndQuery::from_static(path), codec).await?;
        Ok(response.into_inner())
    }
}
