//! Calls to a server that allows 5 per second, through the client layer: first under a local limit,
//! then without one, honouring the headers of the server.
//!
//! `cargo run --release -p tidegate-tower --features reqwest --example outgoing`

use std::time::Duration;

use axum::http::{StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use reqwest::{Client, Method, Request};
use tidegate::{Clock, Limit, Limiter, Memory, SystemClock};
use tidegate_tower::client::{NotSent, Outgoing, OutgoingLayer};
use tower::{Service, ServiceBuilder, ServiceExt};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = start_server("5/s").await?;

    println!("-- local limit of 5/s: no call is rejected");
    let limiter = Limiter::new(Memory::default(), "5/s burst 1".parse::<Limit>()?);
    let client = ServiceBuilder::new()
        .layer(OutgoingLayer::new(limiter).wait(Duration::from_secs(5)))
        .service(Client::new());
    call_eight_times(client, &url).await?;

    println!("\n-- no local limit: after a rejection, calls wait");
    let client = ServiceBuilder::new().layer(OutgoingLayer::without_limit()).service(Client::new());
    call_eight_times(client, &url).await?;

    println!("\n-- a call that may not wait is not sent");
    let no_wait = OutgoingLayer::without_limit().wait(Duration::ZERO);
    let client = ServiceBuilder::new().layer(no_wait).service(Client::new());
    call_eight_times(client, &url).await
}

async fn call_eight_times(mut client: Outgoing<Client>, url: &str) -> Result<()> {
    let start = SystemClock.elapsed();
    for n in 1..=8 {
        let request = Request::new(Method::GET, url.parse()?);
        let result = client.ready().await?.call(request).await;
        let millis = SystemClock.elapsed().saturating_sub(start).get() / 1_000;
        match result {
            Ok(response) => println!("{millis:>4} ms  {n}: {}", response.status()),
            Err(error) if error.is::<NotSent>() => println!("{millis:>4} ms  {n}: {error}"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A server that allows what `limit` allows, and rejects other requests with `Retry-After`.
async fn start_server(limit: &str) -> Result<String> {
    let limiter = Limiter::new(Memory::default(), limit.parse::<Limit>()?);
    let handler = move || {
        let limiter = limiter.clone();
        async move { respond(&limiter).await }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let app = axum::Router::new().fallback(handler);
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(url)
}

async fn respond(limiter: &Limiter) -> Response {
    match limiter.check("all").await {
        Ok(decision) if decision.allowed() => "served".into_response(),
        Ok(decision) => {
            let wait =
                decision.retry_after().span().map_or(1, |span| span.get().div_ceil(1_000_000));
            (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, wait.to_string())]).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
