//! A rate limit in front of an axum service.
//!
//! `cargo run -p tidegate-tower --example axum` serves on 127.0.0.1:3000; `-- PORT` selects another
//! port. `-- --demo` sends four requests to itself, prints the responses and exits.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use tidegate::{Limiter, Memory, Rule};
use tidegate_tower::{ClientIp, RateLimitLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A burst of three, then one request every two seconds; at most eight at the same time.
fn app() -> Result<Router> {
    let limits = ["1/2s burst 3".parse()?, "concurrency 8".parse()?];
    let limiter = Limiter::with_rules(Memory::default(), [Rule::new("address", limits)?])?;
    Ok(Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(RateLimitLayer::new(limiter, ClientIp::default())))
}

async fn serve(listener: TcpListener) -> Result<()> {
    // // Gives the layer the peer address of each connection.
    let app = app()?.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, app).await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("--demo") => demo().await?.iter().for_each(|line| println!("{line}")),
        port => {
            let port = port.unwrap_or("3000").parse()?;
            let listener = TcpListener::bind(("127.0.0.1", port)).await?;
            println!("try: curl -i http://{}/", listener.local_addr()?);
            serve(listener).await?;
        }
    }
    Ok(())
}

/// Sends four requests, one after the other. Returns status and rate-limit headers of each
/// response.
pub(crate) async fn demo() -> Result<Vec<String>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        if let Err(error) = serve(listener).await {
            eprintln!("{error}");
        }
    });
    let mut lines = Vec::new();
    for _ in 0..4 {
        let response = send(address).await?;
        let shown = |line: &&str| {
            ["HTTP/", "ratelimit:", "retry-after:"]
                .map(|start| line.starts_with(start))
                .contains(&true)
        };
        let shown: Vec<&str> = response.lines().filter(shown).collect();
        lines.push(shown.join("  "));
    }
    Ok(lines)
}

async fn send(address: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: demo\r\nconnection: close\r\n\r\n").await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}
