//! Response bodies of all kinds, and nested layers.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{IpAddr, Ipv4Addr};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tidegate::{Limiter, ManualClock};
use tidegate_tower::layer::ResponseBody;
use tidegate_tower::{ClientIp, Global, Peer, RateLimitLayer};
use tokio::net::TcpListener;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use testkit::engines::SlowEngine;
use testkit::http::{TestServer, limiter, memory, rule, used_and_held, wait_until};
use testkit::tasks::ManualTasks;

const LIMITS: &[&str] = &["fixed-window 2/h", "concurrency 1"];

/// Serves on plain hyper.
async fn on_hyper<S, B>(service: S) -> TestServer
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, from) = listener.accept().await.unwrap();
            let service = service.clone();
            let with_peer = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(Peer(from.ip()));
                service.clone().oneshot(request)
            });
            tokio::spawn(async move {
                let connection = hyper::server::conn::http1::Builder::new();
                let service = TowerToHyperService::new(with_peer);
                let _ = connection.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    TestServer::at(address)
}

async fn assert_limits(server: TestServer, limiter: Limiter) {
    let client = IpAddr::from(Ipv4Addr::LOCALHOST).to_string();
    for remaining in ["1", "0"] {
        let reply = server.get("/").await;
        assert_eq!((reply.status, &*reply.body), (200, "served"));
        let limits = reply.header("ratelimit").unwrap();
        assert!(limits.starts_with(&format!("\"api.1\";r={remaining};")), "{limits}");
        wait_until(|| async { used_and_held(&limiter, &client, 1).await.1 == 0 }).await;
    }
    let denied = server.get("/").await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type").unwrap(), "application/problem+json");
    let length = denied.header("content-length").unwrap();
    assert_eq!(length, denied.body.len().to_string());
    assert!(denied.body.contains("quota-exceeded"));
}

#[tokio::test]
async fn a_plain_hyper_service_keeps_its_body_type_inside_the_layers_body() {
    let limiter = limiter(&ManualClock::default(), LIMITS);
    let layer = RateLimitLayer::new(limiter.clone(), ClientIp::default()).any_body();
    let service = layer.layer(service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"served"))))
    }));
    assert_limits(on_hyper(service).await, limiter).await;
}

#[tokio::test]
async fn a_boxed_body_keeps_its_type() {
    let limiter = limiter(&ManualClock::default(), LIMITS);
    let layer = RateLimitLayer::new(limiter.clone(), ClientIp::default());
    let service = layer.layer(service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"served")).boxed()))
    }));
    assert_limits(on_hyper(service).await, limiter).await;
}

#[tokio::test]
async fn a_body_of_bytes_can_be_built_in_any_box() {
    async fn read(body: impl http_body::Body<Data = Bytes, Error = Infallible>) -> Bytes {
        body.collect().await.unwrap().to_bytes()
    }
    let bytes = Bytes::from_static(b"why not");
    let boxed: BoxBody<Bytes, Infallible> = ResponseBody::of_bytes(bytes.clone());
    assert_eq!(read(boxed).await, bytes);
    let boxed: UnsyncBoxBody<Bytes, Infallible> = ResponseBody::of_bytes(bytes.clone());
    assert_eq!(read(boxed).await, bytes);
    let boxed = axum::body::Body::of_bytes(bytes.clone());
    assert_eq!(axum::body::to_bytes(boxed, 99).await.unwrap(), bytes);
}

/// Only the instance that was polled ready may be called.
#[derive(Default)]
struct ReadyInstanceOnly {
    ready: bool,
}

impl Clone for ReadyInstanceOnly {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<Request<()>> for ReadyInstanceOnly {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "it was not polled for readiness");
        ready(Ok(Response::default()))
    }
}

#[test]
fn the_service_that_was_ready_is_the_one_that_is_called() {
    let clock = ManualClock::default();
    let slow = SlowEngine::new(memory(&clock), &clock);
    let slow = Limiter::with_rules(slow, [rule("api", &["9/s"])]).unwrap();
    let queue = limiter(&clock, &["leaky-bucket 9/s queue"]);
    for layer in [
        RateLimitLayer::new(limiter(&clock, &["9/s"]), Global),
        RateLimitLayer::new(slow, Global),
        RateLimitLayer::new(limiter(&clock, &["9/s"]), Global).wait(Duration::from_secs(1)),
        RateLimitLayer::new(queue, Global),
    ] {
        let mut service = layer.layer(ReadyInstanceOnly::default());
        let mut tasks = ManualTasks::new(&clock);
        let served = tasks.start(async move {
            for _ in 0..3 {
                let response = service.ready().await.unwrap().call(Request::new(())).await;
                assert_eq!(response.unwrap().status(), 200);
            }
        });
        tasks.run_until_idle();
        assert!(tasks.done(served).is_some());
    }
}

#[tokio::test]
async fn two_layers_both_list_their_limits_and_the_tighter_one_sets_the_x_headers() {
    let clock = ManualClock::default();
    let named = |name: &str, limit: &str| {
        let limiter = Limiter::with_rules(memory(&clock), [rule(name, &[limit])]).unwrap();
        RateLimitLayer::new(limiter, Global)
    };
    for tight_is_outside in [true, false] {
        let (tight, loose) =
            (named("tight", "fixed-window 2/h"), named("loose", "fixed-window 9/h"));
        let app = Router::new().fallback(|| async { "served" });
        let app = if tight_is_outside {
            app.layer(loose).layer(tight)
        } else {
            app.layer(ServiceBuilder::new().layer(loose).layer(tight))
        };
        let server = TestServer::start(app).await;
        let reply = server.get("/").await;
        let list = reply.header("ratelimit").unwrap();
        let mut items: Vec<&str> = list.split(", ").collect();
        items.sort_unstable();
        assert_eq!(items, ["\"loose\";r=8;t=2800", "\"tight\";r=1;t=2800"]);
        assert_eq!(reply.headers.get_all("ratelimit-policy").iter().count(), 2);
        assert_eq!(reply.headers.get_all("x-ratelimit-remaining").iter().count(), 1);
        assert_eq!(reply.header("x-ratelimit-limit").unwrap(), "2");
        assert_eq!(reply.header("x-ratelimit-remaining").unwrap(), "1");
        server.get("/").await;
        let denied = server.get("/").await;
        assert_eq!((denied.status, denied.header("retry-after").as_deref()), (429, Some("2800")));
        assert_eq!(denied.header("x-ratelimit-remaining").unwrap(), "0");
        // The outer layer has charged the request that the inner one denies.
        let loose = denied.header("ratelimit").unwrap().contains("\"loose\";r=6");
        assert_eq!(loose, !tight_is_outside);
    }
}

/// Two layers around one body of the same type: neither may release the slot of the other.
#[tokio::test]
async fn the_slots_of_two_layers_are_both_held_until_the_body_has_ended() {
    let clock = ManualClock::default();
    let limiters = [limiter(&clock, &["concurrency 5"]), limiter(&clock, &["concurrency 5"])];
    let [inner, outer] = limiters.clone().map(|limiter| RateLimitLayer::new(limiter, Global));
    let service = service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello"))))
    });
    let service = outer.layer(inner.any_body().layer(service));
    let response = service.oneshot(Request::new(())).await.unwrap();
    let key = tidegate::Key::of(&[]);
    for limiter in &limiters {
        let held = limiter.inspect(key).await.unwrap()[0].standing.held;
        assert_eq!(held, 1, "while the body is there");
    }
    response.into_body().collect().await.unwrap();
    for limiter in &limiters {
        let held = limiter.inspect(key).await.unwrap()[0].standing.held;
        assert_eq!(held, 0, "when it has ended");
    }
}
