//! The client layer around hyper's client, over a socket. These tests really wait, about a second
//! each and all at the same time.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/server.rs"]
mod server;

use std::time::Duration;

use axum::response::IntoResponse;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tidegate::{Limit, Limiter, Memory};
use tidegate_tower::client::{NotSent, OutgoingLayer};
use tower::util::BoxCloneService;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

use crate::server::{Server, refused};

type Body = Empty<hyper::body::Bytes>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn hyper_client() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Calls, and reads the whole answer.
async fn call<S>(mut client: S, url: String) -> Result<(StatusCode, String), BoxError>
where
    S: Service<Request<Body>, Response = http::Response<hyper::body::Incoming>>,
    S::Error: Into<BoxError>,
{
    let request = Request::get(url).body(Body::new())?;
    let client = client.ready().await.map_err(Into::into)?;
    let response = client.call(request).await.map_err(Into::into)?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8(body.to_vec())?))
}

async fn statuses<S>(client: S, url: String, calls: usize) -> Vec<StatusCode>
where
    S: Service<Request<Body>, Response = http::Response<hyper::body::Incoming>>
        + Clone
        + Send
        + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
{
    let calls: Vec<_> = (0..calls)
        .map(|_| {
            let call = call(client.clone(), url.clone());
            tokio::spawn(async move { call.await.unwrap().0 })
        })
        .collect();
    let mut statuses = Vec::new();
    for call in calls {
        statuses.push(call.await.unwrap());
    }
    statuses
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_rate_of_the_far_side_nobody_is_refused() {
    let refusals = |statuses: &[StatusCode]| {
        statuses.iter().filter(|status| **status == StatusCode::TOO_MANY_REQUESTS).count()
    };
    let server = Server::limited("40/s burst 20").await;
    let unshaped = statuses(hyper_client(), server.url(), 200).await;
    assert!(refusals(&unshaped) > 0, "without the layer, some are refused");

    let server = Server::limited("40/s burst 20").await;
    let limiter = Limiter::new(Memory::default(), "40/s burst 1".parse::<Limit>().unwrap());
    let client = ServiceBuilder::new()
        .layer(OutgoingLayer::new(limiter).wait(Duration::from_secs(5)))
        .service(hyper_client());
    let shaped = statuses(client, server.url(), 50).await;
    assert_eq!(shaped, [StatusCode::OK; 50]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_refusal_nothing_is_sent_before_it_may_be() {
    let server =
        Server::start(|n| if n == 2 { refused(1) } else { "served".into_response() }).await;
    let other = Server::start(|_| "served too".into_response()).await;
    let layer = OutgoingLayer::heeding().wait(Duration::from_secs(5));
    let client = layer.layer(hyper_client());
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(call(client.clone(), server.url()).await.unwrap().0.as_u16());
    }
    assert_eq!(first, [200, 200, 429]);

    let hurried = layer.clone().wait(Duration::from_millis(100)).layer(hyper_client());
    let error = call(hurried, server.url()).await.unwrap_err();
    let not_sent: &NotSent = error.downcast_ref().unwrap();
    assert!(not_sent.retry_after().unwrap() <= Duration::from_secs(1), "{not_sent}");

    let waiting = statuses(client.clone(), server.url(), 20);
    let elsewhere = call(client, other.url());
    let (waiting, elsewhere) = tokio::join!(waiting, elsewhere);
    assert_eq!(waiting, [StatusCode::OK; 20]);
    assert_eq!(elsewhere.unwrap(), (StatusCode::OK, "served too".to_owned()));
    let arrivals = server.arrivals();
    assert_eq!(arrivals.len(), 23);
    let refused_at = arrivals[2];
    assert!(arrivals[3] >= refused_at + 1_000, "{} ms", arrivals[3] - refused_at);
    assert!(other.arrivals()[0] < refused_at + 1_000, "the other host is not left alone");
}

#[tokio::test]
async fn it_composes_with_the_rest_of_tower() {
    let server = Server::start(|_| "served".into_response()).await;
    let client = BoxCloneService::new(
        ServiceBuilder::new()
            .map_err(BoxError::from)
            .layer(OutgoingLayer::heeding())
            .map_request(|request: Request<Body>| request)
            .service(hyper_client()),
    );
    assert_eq!(call(client, server.url()).await.unwrap().1, "served");
}
