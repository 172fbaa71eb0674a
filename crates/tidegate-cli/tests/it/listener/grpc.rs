//! Timeouts of gRPC requests and responses, and streams at shutdown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate::{
    Call, Clock, Decision, Engine, EngineFuture, Health, Inspection, Key, ManualClock, Memory,
    RuleLimit,
};
use tidegate_server::internal::transport::envoy::proto::Code;
use tidegate_server::internal::transport::envoy::settings::EnvoySettings;
use tidegate_server::internal::transport::listener::Timeouts;
use tokio_stream::StreamExt;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use testkit::envoy::{EnvoyClient, EnvoyInProcess, descriptor, listen_with, request};
use testkit::server::ServerProcess;

/// A short request timeout, also for the first bytes of a connection.
const SHORT: Duration = Duration::from_secs(1);
const EDGE: &str =
    "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 5 } }]\n";
const LIMITS: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const WATCH: &str = "grpc.health.v1.Health/Watch";

/// Decides more slowly than the request timeout.
struct Slow(Memory);

impl Engine for Slow {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(async move {
            tokio::time::sleep(SHORT * 2).await;
            self.0.decide(call).await
        }))
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.0.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
}

/// A listener with this engine and a short request timeout.
async fn slow() -> SocketAddr {
    let clock = ManualClock::default();
    let engine = Slow(Memory::builder().clock(clock.clone()).build());
    let envoy = EnvoyInProcess::on(Arc::new(engine), clock, EDGE, EnvoySettings::default());
    let deadlines = Timeouts { request: SHORT, ..Timeouts::default() };
    listen_with(envoy, deadlines).await.0
}

/// Calls a method on a connection with this window for responses.
async fn call<B>(address: SocketAddr, method: &str, body: B, room: u32) -> Response<Incoming>
where
    B: Body<Data = Bytes, Error = std::io::Error> + Send + Unpin + 'static,
{
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut client = http2::Builder::new(TokioExecutor::new());
    let client = client.initial_stream_window_size(room);
    let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(async move { connection.await.ok() });
    let message = Request::post(format!("http://{address}/{method}"));
    let message = message.header("content-type", "application/grpc").body(body).unwrap();
    let response = sender.send_request(message).await.unwrap();
    // The connection ends with its last sender.
    tokio::spawn(async move {
        let _sender = sender;
        std::future::pending::<()>().await;
    });
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_may_take_longer_than_its_request_because_envoy_passes_on_errors() {
    let client = EnvoyClient::connect(slow().await).await;
    let message = request("d", &[descriptor(&[("k", "v")])]);
    let response = client.should_rate_limit(&message).await.unwrap();
    assert_eq!(response.overall_code(), Code::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_does_not_arrive_gets_deadline_exceeded() {
    let half = Frame::data(Bytes::from_static(b"\0\0\0\0\x20half"));
    let half = tokio_stream::once(Ok(half)).chain(tokio_stream::pending());
    let response = call(slow().await, LIMITS, StreamBody::new(half), 1 << 16).await;
    let status = response.headers().get("grpc-status").cloned();
    assert_eq!(status.unwrap(), "4", "{:?}", response.headers());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_may_last_longer_than_the_response_timeout() {
    // A fifth of it is the timeout of the first request, and of reading a unary response.
    let deadlines = Timeouts { idle: SHORT * 5, ..Timeouts::default() };
    let address = listen_with(EnvoyInProcess::new(EDGE), deadlines).await.0;
    let mut health = HealthClient::new(EnvoyClient::connect(address).await.channel());
    let watched = health.watch(HealthCheckRequest::default()).await;
    let mut watched = watched.unwrap().into_inner();
    assert!(watched.message().await.unwrap().is_some());
    let next = tokio::time::timeout(SHORT * 3, watched.message()).await;
    assert!(next.is_err(), "{next:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_do_not_keep_the_server_from_ending() {
    let mut server = ServerProcess::start(&[], &[]);
    let client = EnvoyClient::connect(server.grpc).await;
    let of = HealthCheckRequest { service: "ratelimit".into() };
    let mut watched = HealthClient::new(client.channel()).watch(of).await.unwrap().into_inner();
    assert!(watched.message().await.unwrap().is_some());
    let kind = MessageRequest::ListServices(String::new());
    let message = ServerReflectionRequest { message_request: Some(kind), ..Default::default() };
    let message = tokio_stream::once(message).chain(tokio_stream::pending());
    let mut reflection = ServerReflectionClient::new(client.channel());
    let mut text = reflection.server_reflection_info(message).await.unwrap().into_inner();
    assert!(text.message().await.unwrap().is_some());
    server.signal("TERM");
    assert!(text.message().await.unwrap().is_none(), "it ends as it should");
    while watched.message().await.unwrap().is_some() {}
    // Neither the streams nor the connection are closed by the client.
    assert!(server.wait().is_some_and(|status| status.success()), "{:?}", server.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_does_a_client_that_does_not_take_what_it_watches() {
    let mut server = ServerProcess::start(&[], &[]);
    let of_all = Full::new(Bytes::from_static(b"\0\0\0\0\0")).map_err(|never| match never {});
    let watched = call(server.grpc, WATCH, of_all, 0).await;
    assert!(watched.headers().get("grpc-status").is_none(), "it watches");
    server.signal("TERM");
    assert!(server.wait().is_some_and(|status| status.success()), "{:?}", server.log());
    drop(watched);
}
