//! One client over HTTP.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tower::{BoxError, Service};

use crate::drain::Drain;
use crate::metrics::Connection;

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// How long a client may take to send the head of a request.
const HEADER_DEADLINE: Duration = Duration::from_secs(10);
/// The longest head of a request in bytes.
const MAX_HEAD: usize = 32 << 10;
/// What a client begins with that speaks HTTP/2 without having asked.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long to wait for the rest of the beginning: at first, and in the end.
const PREFACE_PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];
/// The most requests on their way over one connection of HTTP/2.
const MAX_STREAMS: u32 = 1_000;
/// How often a client over HTTP/2 that says nothing is asked whether it is there, and how long it may take to
/// answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_DEADLINE: Duration = Duration::from_secs(10);

/// Serves one client until it goes, or until the server drains and what it asked is answered.
pub async fn serve<S, B>(
    stream: TcpStream,
    service: S,
    open: Connection,
    mut drain: Drain,
) -> Result<(), BoxError>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let _open = open;
    // It matters for speed alone.
    let _ = stream.set_nodelay(true);
    let is_http2 = tokio::select! {
        biased;
        begins = tokio::time::timeout(HEADER_DEADLINE, begins_http2(&stream)) => begins??,
        () = drain.begun() => return Ok(()),
    };
    let peer = stream.peer_addr().map(|address| Peer(address.ip())).ok();
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        // Ours are always ready.
        service.clone().call(request)
    });
    let stream = TokioIo::new(stream);
    if is_http2 {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEAD as u32)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_DEADLINE);
        let connection = http2.serve_connection(stream, service);
        return answer(connection, |connection| connection.graceful_shutdown(), drain).await;
    }
    // Every answer is written before the next request is looked at. Together they would be kept until nothing more
    // has arrived: megabytes for a client that sends kilobytes of requests and reads nothing.
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE)
        .max_buf_size(MAX_HEAD)
        .serve_connection(stream, service);
    answer(connection, |connection| connection.graceful_shutdown(), drain).await
}

/// Answers until the client goes, or until the server drains and `shut` has let it go.
async fn answer<C: Future<Output = Result<(), hyper::Error>>>(
    connection: C,
    shut: impl FnOnce(Pin<&mut C>),
    mut drain: Drain,
) -> Result<(), BoxError> {
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        done = connection.as_mut() => return Ok(done?),
        () = drain.begun() => shut(connection.as_mut()),
    }
    Ok(connection.await?)
}

/// Does the client begin with HTTP/2? What it has sent stays where it is.
///
/// It is waited for until it is all there, since nobody else looks at how long that takes.
async fn begins_http2(stream: &TcpStream) -> io::Result<bool> {
    let mut start = [0; PREFACE.len()];
    let [mut pause, longest] = PREFACE_PAUSES;
    loop {
        let len = stream.peek(&mut start).await?;
        if len == PREFACE.len() || len == 0 || !PREFACE.starts_with(&start[..len]) {
            return Ok(start == PREFACE);
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(longest);
    }
}
