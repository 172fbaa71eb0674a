//! The client layer around reqwest's client, over a socket. These tests wait in real time, about a
//! second each, in parallel.

use axum::response::IntoResponse;
use reqwest::{Client, Method, Request, StatusCode};
use tidegate::{Limit, Limiter, Memory};
use tidegate_tower::client::{Outgoing, OutgoingLayer};
use tower::{Layer, Service, ServiceExt};

use testkit::upstream::{UpstreamServer, too_many_requests};

async fn call(mut client: Outgoing<Client>, url: String) -> (StatusCode, String) {
    let request = Request::new(Method::GET, url.parse().unwrap());
    let response = client.ready().await.unwrap().call(request).await.unwrap();
    (response.status(), response.text().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_rate_of_the_upstream_no_request_is_refused() {
    let server = UpstreamServer::limited("40/s burst 20").await;
    let limiter = Limiter::new(Memory::default(), "40/s burst 1".parse::<Limit>().unwrap());
    let client = OutgoingLayer::new(limiter).layer(Client::new());
    let calls: Vec<_> = (0..40).map(|_| tokio::spawn(call(client.clone(), server.url()))).collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), (StatusCode::OK, "served".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_refusal_nothing_is_sent_before_the_pause_ends() {
    let server =
        UpstreamServer::start(
            |n| if n == 0 { too_many_requests(1) } else { "served".into_response() },
        )
        .await;
    let other = UpstreamServer::start(|_| "served too".into_response()).await;
    let client = OutgoingLayer::without_limit().layer(Client::new());
    assert_eq!(call(client.clone(), server.url()).await.0, StatusCode::TOO_MANY_REQUESTS);
    let (waited, other_host) =
        tokio::join!(call(client.clone(), server.url()), call(client, other.url()));
    assert_eq!((&*waited.1, &*other_host.1), ("served", "served too"));
    let arrivals = server.arrivals();
    assert!(arrivals[1] >= arrivals[0] + 1_000, "{} ms", arrivals[1] - arrivals[0]);
    assert!(other.arrivals()[0] < arrivals[0] + 1_000, "the other host is not paused");
}
