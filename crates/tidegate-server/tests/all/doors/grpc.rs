//! How long requests and answers over gRPC may take, and what becomes of streams when the server ends.

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
    Answer, Call, Clock, Decision, Engine, Health, Inspection, Key, ManualClock, Memory, RuleLimit,
};
use tidegate_server::doors::Deadlines;
use tidegate_server::envoy::proto::Code;
use tidegate_server::envoy::service::Settings;
use tokio_stream::StreamExt;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use crate::envoy::{Client, InProcess, descriptor, open_within, request};
use crate::support::Server;

/// How long a request may take to arrive where that is little, and so may the first bytes of a connection.
const SHORT: Duration = Duration::from_secs(1);
const EDGE: &str =
    "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 5 } }]\n";
const LIMITS: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const WATCH: &str = "grpc.health.v1.Health/Watch";

/// Takes longer to decide than a request may take to arrive.
struct Slow(Memory);

impl Engine for Slow {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        Answer::Later(Box::pin(async move {
            tokio::time::sleep(SHORT * 2).await;
            self.0.decide(call).await
        }))
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        self.0.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
}

/// The door of such an engine, which allows little time to arrive.
async fn slow() -> SocketAddr {
    let clock = ManualClock::default();
    let engine = Slow(Memory::builder().clock(clock.clone()).build());
    let envoy = InProcess::on(Arc::new(engine), clock, EDGE, Settings::default());
    let deadlines = Deadlines { request: SHORT, ..Deadlines::default() };
    open_within(envoy, deadlines).await.0
}

/// A call of a method, over a connection on which answers have so much room.
async fn call<B>(address: SocketAddr, method: &str, body: B, room: u32) -> Response<Incoming>
where
    B: Body<Data = Bytes, Error = std::io::Error> + Send + Unpin + 'static,
{
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut client = http2::Builder::new(TokioExecutor::new());
    let client = client.initial_stream_window_size(room);
    let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(async move { connection.await.ok() });
    let asked = Request::post(format!("http://{address}/{method}"));
    let asked = asked.header("content-type", "application/grpc").body(body).unwrap();
    let answer = sender.send_request(asked).await.unwrap();
    // The connection ends with its last sender.
    tokio::spawn(async move {
        let _sender = sender;
        std::future::pending::<()>().await;
    });
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_may_take_longer_than_its_request_because_an_error_would_pass() {
    let client = Client::connect(slow().await).await;
    let asked = request("d", &[descriptor(&[("k", "v")])]);
    let answer = client.ask(&asked).await.unwrap();
    assert_eq!(answer.overall_code(), Code::Ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_does_not_come_is_told_so() {
    let half = Frame::data(Bytes::from_static(b"\0\0\0\0\x20half"));
    let half = tokio_stream::once(Ok(half)).chain(tokio_stream::pending());
    let answer = call(slow().await, LIMITS, StreamBody::new(half), 1 << 16).await;
    let status = answer.headers().get("grpc-status").cloned();
    assert_eq!(status.unwrap(), "4", "{:?}", answer.headers());
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_watches_may_do_so_for_longer_than_an_answer_may_take() {
    // A fifth of it is the time to ask the first question, and then to take an answer that ends.
    let deadlines = Deadlines { idle: SHORT * 5, ..Deadlines::default() };
    let address = open_within(InProcess::new(EDGE), deadlines).await.0;
    let mut health = HealthClient::new(Client::connect(address).await.channel());
    let watched = health.watch(HealthCheckRequest::default()).await;
    let mut watched = watched.unwrap().into_inner();
    assert!(watched.message().await.unwrap().is_some());
    let next = tokio::time::timeout(SHORT * 3, watched.message()).await;
    assert!(next.is_err(), "{next:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_do_not_keep_the_server_from_ending() {
    let mut server = Server::start(&[], &[]);
    let client = Client::connect(server.grpc).await;
    let of = HealthCheckRequest { service: "ratelimit".into() };
    let mut watched = HealthClient::new(client.channel()).watch(of).await.unwrap().into_inner();
    assert!(watched.message().await.unwrap().is_some());
    let question = MessageRequest::ListServices(String::new());
    let asked = ServerReflectionRequest { message_request: Some(question), ..Default::default() };
    let asked = tokio_stream::once(asked).chain(tokio_stream::pending());
    let mut reflection = ServerReflectionClient::new(client.channel());
    let mut told = reflection.server_reflection_info(asked).await.unwrap().into_inner();
    assert!(told.message().await.unwrap().is_some());
    server.signal("TERM");
    assert!(told.message().await.unwrap().is_none(), "it ends as it should");
    while watched.message().await.unwrap().is_some() {}
    // Nobody hangs up, neither of the streams nor of the connection.
    assert!(server.wait().is_some_and(|status| status.success()), "{:?}", server.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn nor_does_a_client_that_does_not_take_what_it_watches() {
    let mut server = Server::start(&[], &[]);
    let of_all = Full::new(Bytes::from_static(b"\0\0\0\0\0")).map_err(|never| match never {});
    let watched = call(server.grpc, WATCH, of_all, 0).await;
    assert!(watched.headers().get("grpc-status").is_none(), "it watches");
    server.signal("TERM");
    assert!(server.wait().is_some_and(|status| status.success()), "{:?}", server.log());
    drop(watched);
}
