//! What tests of Envoy's protocol need: requests, a client, and the service on a clock that the test turns.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate::policy::PolicyRule;
use tidegate::{Engine, ManualClock, Memory, Policy};
use tidegate_server::active::{Active, Adhoc};
use tidegate_server::doors::Deadlines;
use tidegate_server::drain;
use tidegate_server::envoy::config::EnvoyConfig;
use tidegate_server::envoy::grpc::Grpc as EnvoyDoor;
use tidegate_server::envoy::proto::{
    Code, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tidegate_server::envoy::service::{RateLimits, Settings};
use tidegate_server::http::connection;
use tidegate_server::metrics::{Door, Metrics};
use tidegate_server::service::Service;
use tidegate_tower::extract::TrustedProxies;
use tokio::net::TcpListener;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

/// A descriptor of these entries.
pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

/// The same with a number of hits.
pub(crate) fn hitting(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), ..descriptor(entries) }
}

/// A request of these descriptors.
pub(crate) fn request(domain: &str, descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: domain.into(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

/// The code for all, and the code and what is left for each.
pub(crate) fn told(response: &RateLimitResponse) -> (Code, Vec<(Code, u32)>) {
    let each = response.statuses.iter().map(|status| (status.code(), status.limit_remaining));
    (response.overall_code(), each.collect())
}

/// The service without a door, in memory, on a clock that the test turns. A window of any length begins now.
pub(crate) struct InProcess {
    pub(crate) clock: ManualClock,
    pub(crate) service: Arc<Service>,
    pub(crate) limits: RateLimits,
}

impl InProcess {
    pub(crate) fn new(yaml: &str) -> Self {
        Self::with(yaml, Settings::default())
    }

    pub(crate) fn with(yaml: &str, settings: Settings) -> Self {
        let clock = ManualClock::default();
        // The multiple of a year that is a multiple of all other units.
        clock.set(tidegate::Micros::from_secs(365 * 30 * 7 * 86_400));
        let engine = Memory::builder().clock(clock.clone()).build();
        Self::on(Arc::new(engine), clock, yaml, settings)
    }

    pub(crate) fn on(
        engine: Arc<dyn Engine>,
        clock: ManualClock,
        yaml: &str,
        settings: Settings,
    ) -> Self {
        let metrics = Arc::new(Metrics::default());
        let service = Arc::new(Service::new(engine, active(yaml, &metrics), metrics));
        let limits = RateLimits::new(service.clone(), settings);
        Self { clock, service, limits }
    }

    /// Puts another file into force.
    pub(crate) fn reload(&self, yaml: &str) {
        self.service.activate(active(yaml, self.service.metrics()));
    }

    pub(crate) async fn ask(&self, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
        self.limits.decide(&request("d", descriptors)).await.expect("an answer")
    }

    /// What one descriptor is told.
    pub(crate) async fn one(&self, descriptor: RateLimitDescriptor) -> (Code, u32) {
        let response = self.ask(&[descriptor]).await;
        let status = &response.statuses[0];
        (response.overall_code(), status.limit_remaining)
    }
}

/// The gRPC door of a service, on a port of its own, until the runtime ends.
pub(crate) async fn open(envoy: InProcess) -> (SocketAddr, ManualClock) {
    open_within(envoy, Deadlines::default()).await
}

/// The same with a patience of the test's own.
pub(crate) async fn open_within(
    envoy: InProcess,
    deadlines: Deadlines,
) -> (SocketAddr, ManualClock) {
    let InProcess { clock, service, limits } = envoy;
    let (drainer, drain) = drain::channel();
    let limits = Arc::new(limits);
    let grpc = EnvoyDoor::new(limits, Arc::default(), deadlines, drain.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let _drainer = drainer;
        while let Ok((stream, _)) = listener.accept().await {
            let open = service.metrics().connect(Door::Grpc);
            let serve = connection::serve(stream, grpc.clone(), open, deadlines, drain.clone());
            tokio::spawn(async move { serve.await.ok() });
        }
    });
    (address, clock)
}

fn active(yaml: &str, metrics: &Metrics) -> Active {
    let config = EnvoyConfig::load_str("test.yaml", yaml);
    let config = config.unwrap_or_else(|problems| panic!("{problems}"));
    let policy = Policy::new([] as [PolicyRule; 0]).expect("no rules, no fault");
    let active = Active::new(policy, TrustedProxies::default(), Adhoc::Refuse, metrics);
    active.with_envoy(Some(Arc::new(config)), metrics)
}

/// A client of a server.
#[derive(Clone)]
pub(crate) struct Client {
    channel: Channel,
    token: Option<&'static str>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let endpoint = endpoint.timeout(Duration::from_secs(30)).tcp_nodelay(true);
        let channel = endpoint.connect().await.expect("the door is open");
        Self { channel, token: None }
    }

    pub(crate) fn with_token(self, token: &'static str) -> Self {
        Self { token: Some(token), ..self }
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Asks `ShouldRateLimit`.
    pub(crate) async fn ask(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        self.call(path, request.clone()).await
    }

    pub(crate) async fn call<Q, A>(&self, path: &'static str, question: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut client = Grpc::new(self.channel.clone());
        client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        let mut question = tonic::Request::new(question);
        if let Some(token) = self.token {
            let value = format!("Bearer {token}").parse().expect("a header");
            question.metadata_mut().insert("authorization", value);
        }
        let codec = tonic_prost::ProstCodec::default();
        let answer = client.unary(question, PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }
}
