//! The client layer around hyper's client, over a socket. These tests wait in real time, about a
//! second each, in parallel.

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

use testkit::upstream::{UpstreamServer, too_many_requests};

type Body = Empty<hyper::body::Bytes>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn hyper_client() -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Sends a request and reads the whole response.
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
async fn at_the_rate_of_the_upstream_no_request_is_refused() {
    let refusals = |statuses: &[StatusCode]| {
        statuses.iter().filter(|status| **status == StatusCode::TOO_MANY_REQUESTS).count()
    };
    let server = UpstreamServer::limited("40/s burst 20").await;
    let unshaped = statuses(hyper_client(), server.url(), 200).await;
    assert!(refusals(&unshaped) > 0, "without the layer the upstream refuses some requests");

    let server = UpstreamServer::limited("40/s burst 20").await;
    let limiter = Limiter::new(Memory::default(), "40/s burst 1".parse::<Limit>().unwrap());
    let client = ServiceBuilder::new()
        .layer(OutgoingLayer::new(limiter).wait(Duration::from_secs(5)))
        .service(hyper_client());
    let shaped = statuses(client, server.url(), 50).await;
    assert_eq!(shaped, [StatusCode::OK; 50]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_refusal_nothing_is_sent_before_the_pause_ends() {
    let server =
        UpstreamServer::start(
            |n| if n == 2 { too_many_requests(3) } else { "served".into_response() },
        )
        .await;
    let other = UpstreamServer::start(|_| "served too".into_response()).await;
    let layer = OutgoingLayer::without_limit().wait(Duration::from_secs(60));
    let client = layer.layer(hyper_client());
    let mut first = Vec::new();
    for _ in 0..3 {
        first.push(call(client.clone(), server.url()).await.unwrap().0.as_u16());
    }
    assert_eq!(first, [200, 200, 429]);

    let impatient = layer.clone().wait(Duration::from_millis(1)).layer(hyper_client());
    let error = call(impatient, server.url()).await.unwrap_err();
    let not_sent: &NotSent = error.downcast_ref().unwrap();
    assert!(not_sent.retry_after().unwrap() <= Duration::from_secs(3), "{not_sent}");

    let waiting = tokio::spawn(statuses(client.clone(), server.url(), 20));
    let other_host = call(client, other.url()).await.unwrap();
    assert_eq!(other_host, (StatusCode::OK, "served too".to_owned()));
    assert!(!waiting.is_finished(), "the other host is not paused");
    assert_eq!(waiting.await.unwrap(), [StatusCode::OK; 20]);
    let arrivals = server.arrivals();
    assert_eq!(arrivals.len(), 23);
    let refused_at = arrivals[2];
    assert!(arrivals[3] >= refused_at + 3_000, "{} ms", arrivals[3] - refused_at);
}

#[tokio::test]
async fn it_composes_with_the_rest_of_tower() {
    let server = UpstreamServer::start(|_| "served".into_response()).await;
    let client = BoxCloneService::new(
        ServiceBuilder::new()
            .map_err(BoxError::from)
            .layer(OutgoingLayer::without_limit())
            .map_request(|request: Request<Body>| request)
            .service(hyper_client()),
    );
    assert_eq!(call(client, server.url()).await.unwrap().1, "served");
}
