//! A control plane (xDS) in the test process, which records what its clients send.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll};

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use prost::Message as _;
use tidegate_config::OsEnvironment;
use tidegate_server::internal::tls;
use tidegate_server::internal::transport::envoy::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use tidegate_server::internal::transport::envoy::proto::{DiscoveryRequest, DiscoveryResponse};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::{Grpc, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

use crate::certificates::{TestCa, TestCertificate};
use crate::server::{TEST_TIMEOUT, wait_until};

/// The type of rate limit configurations.
pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

type DiscoveryFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A version and the resources of it.
#[derive(Clone, Default)]
struct Snapshot {
    version: String,
    resources: Vec<prost_types::Any>,
}

/// What the clients have sent.
#[derive(Default)]
struct RequestLog {
    requests: Mutex<Vec<DiscoveryRequest>>,
    has_grown: Condvar,
}

impl RequestLog {
    fn push(&self, request: DiscoveryRequest) {
        self.requests.lock().unwrap().push(request);
        self.has_grown.notify_all();
    }
}

/// Serves until it is dropped.
pub struct ControlPlane {
    pub address: SocketAddr,
    snapshot: watch::Sender<Option<Snapshot>>,
    requests: Arc<RequestLog>,
    /// Dropped last: it ends all streams.
    _runtime: Runtime,
}

impl ControlPlane {
    /// In plaintext, on a free port.
    pub fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), None)
    }

    /// With a certificate for `localhost`; clients need one of the same authority.
    pub fn start_with_tls(address: SocketAddr, ca: &TestCa) -> Self {
        Self::start_at(address, Some(mutual_tls(ca, &ca.issue("localhost"))))
    }

    pub fn start_at(address: SocketAddr, tls: Option<Arc<ServerConfig>>) -> Self {
        let runtime = Runtime::new().unwrap();
        // A restarted one waits for the port of the one before.
        let bind = || runtime.block_on(TcpListener::bind(address)).ok();
        let listener = wait_until(bind).expect("the control plane listens");
        let address = listener.local_addr().unwrap();
        let (snapshot, snapshots) = watch::channel(None);
        let requests = Arc::default();
        let service = DiscoveryService { snapshots, requests: Arc::clone(&requests) };
        runtime.spawn(accept(listener, tls, service));
        Self { address, snapshot, requests, _runtime: runtime }
    }

    /// Sends this configuration to all clients, also to later ones.
    pub fn set(&self, version: &str, configs: &[RateLimitConfig]) {
        let resource = |config: &RateLimitConfig| prost_types::Any {
            type_url: TYPE_URL.into(),
            value: config.encode_to_vec(),
        };
        self.send(version, configs.iter().map(resource).collect());
    }

    /// Sends a resource that cannot be decoded.
    pub fn set_undecodable(&self, version: &str) {
        self.send(version, vec![prost_types::Any { type_url: TYPE_URL.into(), value: vec![0xff] }]);
    }

    fn send(&self, version: &str, resources: Vec<prost_types::Any>) {
        self.snapshot.send_replace(Some(Snapshot { version: version.into(), resources }));
    }

    /// What the clients have sent so far.
    pub fn requests(&self) -> Vec<DiscoveryRequest> {
        self.requests.requests.lock().unwrap().clone()
    }

    /// Waits for a request that `is_wanted`, and returns the last one.
    pub fn expect(&self, is_wanted: impl Fn(&DiscoveryRequest) -> bool) -> DiscoveryRequest {
        let log = &self.requests;
        let requests = log.requests.lock().unwrap();
        let find = |all: &[DiscoveryRequest]| all.iter().rev().find(|one| is_wanted(one)).cloned();
        let is_missing = |all: &mut Vec<DiscoveryRequest>| find(all).is_none();
        let waited = log.has_grown.wait_timeout_while(requests, TEST_TIMEOUT, is_missing);
        let requests = waited.unwrap().0;
        find(&requests).unwrap_or_else(|| panic!("{requests:?}"))
    }

    /// Waits until this version is accepted.
    pub fn expect_accepted(&self, version: &str) -> DiscoveryRequest {
        self.expect(|one| {
            one.version_info == version
                && !one.response_nonce.is_empty()
                && one.error_detail.is_none()
        })
    }
}

/// One domain with a limit for each of these keys.
pub fn domain(name: &str, limits: &[(&str, RateLimitUnit, u32)]) -> RateLimitConfig {
    let descriptor = |(key, unit, requests_per_unit): &(&str, RateLimitUnit, u32)| {
        let unit = i32::from(*unit);
        RateLimitDescriptor {
            key: (*key).into(),
            rate_limit: Some(RateLimitPolicy {
                unit,
                requests_per_unit: *requests_per_unit,
                ..RateLimitPolicy::default()
            }),
            ..RateLimitDescriptor::default()
        }
    };
    let descriptors = limits.iter().map(descriptor).collect();
    RateLimitConfig { name: format!("{name}-resource"), domain: name.into(), descriptors }
}

fn mutual_tls(ca: &TestCa, identity: &TestCertificate) -> Arc<ServerConfig> {
    let roots = tls::roots(ca.ca().as_ref(), &OsEnvironment).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), tls::provider());
    let config = ServerConfig::builder_with_provider(tls::provider());
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_client_cert_verifier(verifier.build().unwrap());
    let chain = tls::certificates(identity.cert.as_ref(), &OsEnvironment).unwrap();
    let key = tls::key(identity.key.as_ref(), &OsEnvironment).unwrap();
    let mut config = config.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

async fn accept(listener: TcpListener, tls: Option<Arc<ServerConfig>>, service: DiscoveryService) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream, tls.clone(), service.clone()));
    }
}

async fn serve(stream: TcpStream, tls: Option<Arc<ServerConfig>>, service: DiscoveryService) {
    let http = http2::Builder::new(TokioExecutor::new());
    let service = TowerToHyperService::new(service);
    let Some(tls) = tls else {
        let _ = http.serve_connection(TokioIo::new(stream), service).await;
        return;
    };
    if let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await {
        let _ = http.serve_connection(TokioIo::new(stream), service).await;
    }
}

/// The aggregated discovery service.
#[derive(Clone)]
struct DiscoveryService {
    snapshots: watch::Receiver<Option<Snapshot>>,
    requests: Arc<RequestLog>,
}

impl Service<http::Request<hyper::body::Incoming>> for DiscoveryService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = DiscoveryFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<hyper::body::Incoming>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let codec = ProstCodec::<DiscoveryResponse, DiscoveryRequest>::default();
            Ok(Grpc::new(codec).streaming(service, request).await)
        })
    }
}

impl StreamingService<DiscoveryRequest> for DiscoveryService {
    type Response = DiscoveryResponse;
    type ResponseStream = ReceiverStream<Result<DiscoveryResponse, Status>>;
    type Future = DiscoveryFuture<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<DiscoveryRequest>>) -> Self::Future {
        let (sender, responses) = mpsc::channel(1);
        let service = self.clone();
        tokio::spawn(service.follow(request.into_inner(), sender));
        Box::pin(async move { Ok(Response::new(ReceiverStream::new(responses))) })
    }
}

impl DiscoveryService {
    /// Sends every snapshot after the first request.
    async fn follow(
        mut self,
        mut requests: Streaming<DiscoveryRequest>,
        responses: mpsc::Sender<Result<DiscoveryResponse, Status>>,
    ) {
        let mut nonce = 0;
        self.snapshots.mark_changed();
        let mut has_begun = false;
        loop {
            tokio::select! {
                request = requests.message() => match request {
                    Ok(Some(request)) => {
                        has_begun = true;
                        self.requests.push(request);
                    }
                    _ => return,
                },
                changed = self.snapshots.changed(), if has_begun => {
                    let snapshot = self.snapshots.borrow_and_update().clone();
                    let Some(Snapshot { version, resources }) = snapshot else { continue };
                    if changed.is_err() {
                        return;
                    }
                    nonce += 1;
                    let response = DiscoveryResponse {
                        version_info: version,
                        resources,
                        type_url: TYPE_URL.into(),
                        nonce: format!("nonce-{nonce}"),
                    };
                    if responses.send(Ok(response)).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}
