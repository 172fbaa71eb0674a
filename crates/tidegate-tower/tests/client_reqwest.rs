//! The client layer around reqwest's client, over a socket. These tests really wait, about a second
//! each and all at the same time.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/server.rs"]
mod server;

use axum::response::IntoResponse;
use reqwest::{Client, Method, Request, StatusCode};
use tidegate::{Limit, Limiter, Memory};
use tidegate_tower::client::{Outgoing, OutgoingLayer};
use tower::{Layer, Service, ServiceExt};

use crate::server::{Server, refused};

async fn call(mut client: Outgoing<Client>, url: String) -> (StatusCode, String) {
    let request = Request::new(Method::GET, url.parse().unwrap());
    let response = client.ready().await.unwrap().call(request).await.unwrap();
    (response.status(), response.text().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_rate_of_the_far_side_nobody_is_refused() {
    let server = Server::limited("40/s burst 20").await;
    let limiter = Limiter::new(Memory::default(), "40/s burst 1".parse::<Limit>().unwrap());
    let client = OutgoingLayer::new(limiter).layer(Client::new());
    let calls: Vec<_> = (0..40).map(|_| tokio::spawn(call(client.clone(), server.url()))).collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), (StatusCode::OK, "served".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_refusal_nothing_is_sent_before_it_may_be() {
    let server =
        Server::start(|n| if n == 0 { refused(1) } else { "served".into_response() }).await;
    let other = Server::start(|_| "served too".into_response()).await;
    let client = OutgoingLayer::heeding().layer(Client::new());
    assert_eq!(call(client.clone(), server.url()).await.0, StatusCode::TOO_MANY_REQUESTS);
    let (waited, elsewhere) =
        tokio::join!(call(client.clone(), server.url()), call(client, other.url()));
    assert_eq!((&*waited.1, &*elsewhere.1), ("served", "served too"));
    let arrivals = server.arrivals();
    assert!(arrivals[1] >= arrivals[0] + 1_000, "{} ms", arrivals[1] - arrivals[0]);
    assert!(other.arrivals()[0] < arrivals[0] + 1_000, "the other host is not left alone");
}
