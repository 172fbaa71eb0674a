//! One HTTP/1.1 or HTTP/2 connection, of the HTTP or the gRPC listener.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tower::{BoxError, Service};

use super::accept::log_unexpected_tls;
use super::connection_monitor::ConnectionMonitor;
use super::frame_budget::PREFACE;
use super::panics::{Panicked, catch_panics};
use super::request_activity::{RequestActivity, ResponseTimeout};
use super::stream::{ClientStream, begins_tls};
use super::timed_stream::{HttpVersion, TimedStream};
use super::timeouts::Timeouts;
use crate::check::WaitCount;
use crate::observe::metrics::OpenConnection;
use crate::shutdown::Shutdown;

/// Address of the peer of a connection; an extension of every request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerAddr(pub IpAddr);

/// Response of a service to a request that panicked.
pub trait PanicResponse<B> {
    /// An error or a denial, without details of the panic.
    fn panic_response() -> Response<B>;
}

/// Longest head of a request, in bytes.
const MAX_HEAD: usize = 32 << 10;
/// Most requests in flight on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// Most requests of a client that are reset before they are processed; beyond it, the connection is
/// closed (rapid reset).
const MAX_PENDING_RESETS: usize = 32;
/// Most streams that the server resets because of protocol errors of the client.
const MAX_LOCAL_ERROR_RESETS: usize = 256;
/// HTTP/2 flow control window of a connection: the minimum of the protocol. A thousand connections
/// hold 64 MiB of unread bodies.
const CONNECTION_WINDOW: u32 = 65_535;
/// HTTP/2 flow control window of one request.
const STREAM_WINDOW: u32 = 32 << 10;
/// Send buffer of one response, in bytes.
const MAX_SEND_BUFFER: usize = 64 << 10;
/// HTTP/2: time between pings.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// HTTP/2: time for the reply to a ping.
const PING_DEADLINE: Duration = Duration::from_secs(10);

/// Serves one connection until the client closes it or times out, or until the server drains and no
/// request is in flight.
pub async fn serve<S, B>(
    stream: impl Into<ClientStream>,
    service: S,
    open: OpenConnection,
    deadlines: Timeouts,
    mut drain: Shutdown,
) -> Result<(), BoxError>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: PanicResponse<B> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut stream = stream.into();
    stream.set_nodelay();
    let mut first = BytesMut::new();
    let detecting = detect_protocol(&mut stream, &mut first);
    let detected = tokio::select! {
        biased;
        detected = tokio::time::timeout(deadlines.request, detecting) => detected??,
        () = drain.noticed() => return Ok(()),
    };
    let version = match detected {
        FirstBytes::Http(version) => version,
        FirstBytes::Tls => {
            log_unexpected_tls(open.listener());
            return Ok(());
        }
    };
    let (peer, waits) = (stream.peer().map(PeerAddr), WaitCount::default());
    let activity = Arc::new(RequestActivity::default());
    let (open, first) = (Arc::new(open), first.freeze());
    let stream =
        TimedStream::new(stream, first, version, activity.clone(), deadlines, open.clone());
    let watched = activity.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        request.extensions_mut().insert(open.listener());
        request.extensions_mut().insert(waits.clone());
        let (in_flight, open, mut service) = (watched.begin(), open.clone(), service.clone());
        async move {
            // No `poll_ready`: the services of this crate are always ready.
            let response = catch_panics(async { service.call(request).await }).await;
            let response = response.map_or_else(
                |Panicked| {
                    open.count_panic();
                    S::panic_response()
                },
                |Ok(response)| response,
            );
            let timeout = response.extensions().get::<ResponseTimeout>().copied();
            Ok::<_, Infallible>(
                response.map(|body| in_flight.guard_body(body, timeout.unwrap_or_default())),
            )
        }
    });
    let monitor = ConnectionMonitor { activity, deadlines, version, drain };
    let stream = TokioIo::new(stream);
    if version == HttpVersion::Http2 {
        let connection = http2_builder().serve_connection(stream, service);
        return monitor.until_done(connection, |connection| connection.graceful_shutdown()).await;
    }
    let connection = http1_builder().serve_connection(stream, service);
    monitor.until_done(connection, |connection| connection.graceful_shutdown()).await
}

/// No pipeline flush: every response is written before the next request is processed. Buffered
/// responses could take megabytes for a client that sends kilobytes and reads nothing.
fn http1_builder() -> http1::Builder {
    let mut http1 = http1::Builder::new();
    // The header timeout would start with the end of the request before; see `TimedStream`.
    http1.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MAX_HEAD);
    http1
}

fn http2_builder() -> http2::Builder<TokioExecutor> {
    let mut http2 = http2::Builder::new(TokioExecutor::new());
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD as u32)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_LOCAL_ERROR_RESETS)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_send_buf_size(MAX_SEND_BUFFER)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_DEADLINE);
    http2
}

/// Protocol of the first bytes of a client.
enum FirstBytes {
    Http(HttpVersion),
    Tls,
}

/// Reads into `first` until the protocol is known.
async fn detect_protocol(
    stream: &mut ClientStream,
    first: &mut BytesMut,
) -> io::Result<FirstBytes> {
    match stream.protocol() {
        Some(b"h2") => return Ok(FirstBytes::Http(HttpVersion::Http2)),
        Some(_) => return Ok(FirstBytes::Http(HttpVersion::Http1)),
        None => {}
    }
    loop {
        first.reserve(PREFACE.len());
        let read = stream.read_buf(first).await?;
        if begins_tls(first) {
            return Ok(FirstBytes::Tls);
        }
        let len = first.len().min(PREFACE.len());
        if read == 0 || first[..len] != PREFACE[..len] {
            return Ok(FirstBytes::Http(HttpVersion::Http1));
        }
        if len == PREFACE.len() {
            return Ok(FirstBytes::Http(HttpVersion::Http2));
        }
    }
}
