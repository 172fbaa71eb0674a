//! Bodies of all kinds, and layers around layers.

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
use tidegate_tower::{ClientIp, Everyone, Peer, RateLimitLayer};
use tokio::net::TcpListener;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::engines::Slow;
use crate::site::{Site, limiter, memory, rule, standing, until};
use crate::tasks::Tasks;

const LIMITS: &[&str] = &["fixed-window 2/h", "concurrency 1"];

/// Serves it on plain hyper.
async fn on_hyper<S, B>(service: S) -> Site
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
            let told = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(Peer(from.ip()));
                service.clone().oneshot(request)
            });
            tokio::spawn(async move {
                let connection = hyper::server::conn::http1::Builder::new();
                let service = TowerToHyperService::new(told);
                let _ = connection.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Site::at(address)
}

async fn holds(site: Site, limiter: Limiter) {
    let us = IpAddr::from(Ipv4Addr::LOCALHOST).to_string();
    for remaining in ["1", "0"] {
        let reply = site.get("/").await;
        assert_eq!((reply.status, &*reply.body), (200, "served"));
        let told = reply.header("ratelimit").unwrap();
        assert!(told.starts_with(&format!("\"api.1\";r={remaining};")), "{told}");
        until(|| async { standing(&limiter, &us, 1).await.1 == 0 }).await;
    }
    let denied = site.get("/").await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type").unwrap(), "application/problem+json");
    let length = denied.header("content-length").unwrap();
    assert_eq!(length, denied.body.len().to_string());
    assert!(denied.body.contains("quota-exceeded"));
}

#[tokio::test]
async fn a_plain_hyper_service_answers_in_its_own_body_with_ours_around() {
    let limiter = limiter(&ManualClock::default(), LIMITS);
    let layer = RateLimitLayer::new(limiter.clone(), ClientIp::default()).any_body();
    let service = layer.layer(service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"served"))))
    }));
    holds(on_hyper(service).await, limiter).await;
}

#[tokio::test]
async fn a_boxed_body_stays_what_it_is() {
    let limiter = limiter(&ManualClock::default(), LIMITS);
    let layer = RateLimitLayer::new(limiter.clone(), ClientIp::default());
    let service = layer.layer(service_fn(|_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"served")).boxed()))
    }));
    holds(on_hyper(service).await, limiter).await;
}

#[tokio::test]
async fn a_body_of_our_own_is_the_bytes_in_any_box() {
    async fn read(body: impl http_body::Body<Data = Bytes, Error = Infallible>) -> Bytes {
        body.collect().await.unwrap().to_bytes()
    }
    let bytes = Bytes::from_static(b"why not");
    let boxed: BoxBody<Bytes, Infallible> = ResponseBody::of_bytes(bytes.clone());
    assert_eq!(read(boxed).await, bytes);
    let boxed: UnsyncBoxBody<Bytes, Infallible> = ResponseBody::of_bytes(bytes.clone());
    assert_eq!(read(boxed).await, bytes);
    let ours = axum::body::Body::of_bytes(bytes.clone());
    assert_eq!(axum::body::to_bytes(ours, 99).await.unwrap(), bytes);
}

/// Calls are for the very service that has said that it is ready.
#[derive(Default)]
struct Choosy {
    ready: bool,
}

impl Clone for Choosy {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<Request<()>> for Choosy {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "it was not asked whether it is ready");
        ready(Ok(Response::default()))
    }
}

#[test]
fn the_service_that_was_ready_is_the_one_that_is_called() {
    let clock = ManualClock::default();
    let slow = Slow::new(memory(&clock), &clock);
    let slow = Limiter::with_rules(slow, [rule("api", &["9/s"])]).unwrap();
    let queue = limiter(&clock, &["leaky-bucket 9/s queue"]);
    for layer in [
        RateLimitLayer::new(limiter(&clock, &["9/s"]), Everyone),
        RateLimitLayer::new(slow, Everyone),
        RateLimitLayer::new(limiter(&clock, &["9/s"]), Everyone).wait(Duration::from_secs(1)),
        RateLimitLayer::new(queue, Everyone),
    ] {
        let mut service = layer.layer(Choosy::default());
        let mut tasks = Tasks::new(&clock);
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
async fn of_two_layers_both_tell_their_limits_and_the_tighter_one_speaks() {
    let clock = ManualClock::default();
    let named = |name: &str, limit: &str| {
        let limiter = Limiter::with_rules(memory(&clock), [rule(name, &[limit])]).unwrap();
        RateLimitLayer::new(limiter, Everyone)
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
        let site = Site::start(app).await;
        let reply = site.get("/").await;
        let list = reply.header("ratelimit").unwrap();
        let mut items: Vec<&str> = list.split(", ").collect();
        items.sort_unstable();
        assert_eq!(items, ["\"loose\";r=8;t=2800", "\"tight\";r=1;t=2800"]);
        assert_eq!(reply.headers.get_all("ratelimit-policy").iter().count(), 2);
        assert_eq!(reply.headers.get_all("x-ratelimit-remaining").iter().count(), 1);
        assert_eq!(reply.header("x-ratelimit-limit").unwrap(), "2");
        assert_eq!(reply.header("x-ratelimit-remaining").unwrap(), "1");
        site.get("/").await;
        let denied = site.get("/").await;
        assert_eq!((denied.status, denied.header("retry-after").as_deref()), (429, Some("2800")));
        assert_eq!(denied.header("x-ratelimit-remaining").unwrap(), "0");
        // What is inside is charged before it is asked further in.
        let loose = denied.header("ratelimit").unwrap().contains("\"loose\";r=6");
        assert_eq!(loose, !tight_is_outside);
    }
}

/// Two layers that wrap a body of the same kind: neither may lose the other's place.
#[tokio::test]
async fn the_places_of_two_layers_are_both_kept_until_the_body_has_ended() {
    let clock = ManualClock::default();
    let limiters = [limiter(&clock, &["concurrency 5"]), limiter(&clock, &["concurrency 5"])];
    let [inner, outer] = limiters.clone().map(|limiter| RateLimitLayer::new(limiter, Everyone));
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
