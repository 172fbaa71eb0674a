//! A rate limit in front of a gRPC service.
//!
//! `cargo run -p tidegate-tower --features tonic --example tonic` serves on 127.0.0.1:50051; `--
//! PORT` selects another port. `-- --demo` sends four calls to itself, prints the responses and
//! exits.

use std::error::Error;

use tidegate::{Limiter, Memory};
use tidegate_tower::{ClientIp, RateLimitLayer};
use tokio::net::TcpListener;
use tonic::Request;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};

use testkit::grpc::{EchoService, echo_call};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A burst of three, then one call every two seconds.
async fn serve(listener: TcpListener) -> Result<()> {
    let limiter = Limiter::new(Memory::default(), "1/2s burst 3".parse()?);
    // tonic gives the layer the peer address of each connection.
    let layer = RateLimitLayer::new(limiter, ClientIp::default());
    let server = Server::builder().layer(layer).add_service(EchoService::default());
    Ok(server.serve_with_incoming(TcpIncoming::from(listener)).await?)
}

#[tokio::main]
async fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("--demo") => demo().await?.iter().for_each(|line| println!("{line}")),
        port => {
            let port = port.unwrap_or("50051").parse()?;
            let listener = TcpListener::bind(("127.0.0.1", port)).await?;
            println!("demo.Echo/Say on {}", listener.local_addr()?);
            serve(listener).await?;
        }
    }
    Ok(())
}

/// Sends four calls, one after the other. Returns a line for each response.
pub(crate) async fn demo() -> Result<Vec<String>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        if let Err(error) = serve(listener).await {
            eprintln!("{error}");
        }
    });
    let channel = Channel::from_shared(address)?.connect().await?;
    let mut lines = Vec::new();
    for _ in 0..4 {
        lines.push(match echo_call(&channel, Request::new("hello".into())).await {
            Ok(response) => {
                let left = response.metadata().get("x-ratelimit-remaining");
                format!("{}, {} left", response.get_ref(), left.map_or(Ok("?"), |n| n.to_str())?)
            }
            Err(status) => {
                let wait = status.metadata().get("retry-after");
                let wait = wait.map_or(Ok("?"), |wait| wait.to_str())?;
                format!("{:?}: {}, after {wait} s", status.code(), status.message())
            }
        });
    }
    Ok(lines)
}
