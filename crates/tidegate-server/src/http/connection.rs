//! One client over HTTP.

use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tower::Service as _;

use crate::drain::Drain;
use crate::metrics::Connection;

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// How long a client may take to send the head of a request.
const HEADER_DEADLINE: Duration = Duration::from_secs(10);
/// The longest head of a request in bytes.
const MAX_HEAD: usize = 32 << 10;

/// Serves one client until it goes, or until the server drains and what it asked is answered.
pub async fn serve(
    stream: TcpStream,
    router: Router,
    open: Connection,
    mut drain: Drain,
) -> Result<(), hyper::Error> {
    let _open = open;
    // It matters for speed alone.
    let _ = stream.set_nodelay(true);
    let peer = stream.peer_addr().map(|address| Peer(address.ip())).ok();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        // A router is always ready.
        router.clone().call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE)
        .max_buf_size(MAX_HEAD)
        .pipeline_flush(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        done = connection.as_mut() => return done,
        () = drain.begun() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}
