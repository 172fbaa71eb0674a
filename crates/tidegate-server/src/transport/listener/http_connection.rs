//! One HTTP/1.1 or HTTP/2 connection, of the HTTP or the gRPC listener.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::Extensions;
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::{BoxError, Service};

use super::accept::{UNAVAILABLE, log_unexpected_tls};
use super::connection_monitor::ConnectionMonitor;
use super::frame_budget::{FRAME_HEADER, PREFACE};
use super::panics::{Panicked, catch_panics};
use super::partial_requests::PartialRequestBudget;
use super::request_activity::{RequestActivity, ResponseTimeout};
use super::stream::{ClientStream, begins_tls};
use super::timed_stream::{HttpVersion, TimedStream};
use super::timeouts::Timeouts;
use crate::check::WaitCount;
use crate::observe::metrics::{ListenerKind, OpenConnection};
use crate::shutdown::Shutdown;

/// The connection of a request; an extension of every request.
#[derive(Debug)]
pub(crate) struct ConnectionInfo {
    /// Address of the peer; none if the connection is closed already.
    pub(crate) peer: Option<IpAddr>,
    /// The listener that accepted it.
    pub(crate) listener: ListenerKind,
    /// Its requests that wait for permits.
    pub(crate) waits: WaitCount,
}

impl ConnectionInfo {
    /// The connection of the request with these extensions.
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        extensions.get::<Arc<Self>>().map(|connection| &**connection)
    }
}

/// Response of a service to a request that panicked.
pub trait PanicResponse<B> {
    /// An error or a denial, without details of the panic.
    fn panic_response() -> Response<B>;
}

/// Buffer for the first head of a connection, in bytes; it grows with longer heads.
const FIRST_CHUNK: usize = 512;
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
    let reading = read_start(&mut stream, &mut first, open.listener());
    let start = tokio::select! {
        biased;
        start = tokio::time::timeout(deadlines.request, reading) => start??,
        () = drain.noticed() => return Ok(()),
    };
    let version = match start {
        Start::Http(version) => version,
        Start::Tls => {
            log_unexpected_tls(open.listener());
            return Ok(());
        }
        Start::OverBudget => return Ok(stream.write_all(UNAVAILABLE).await?),
    };
    // Boxed: a connection without a request does not take the memory of one with requests.
    Box::pin(serve_requests(stream, first.freeze(), version, service, open, deadlines, drain)).await
}

/// Serves a connection whose first bytes have arrived.
async fn serve_requests<S, B>(
    stream: ClientStream,
    first: Bytes,
    version: HttpVersion,
    service: S,
    open: OpenConnection,
    deadlines: Timeouts,
    drain: Shutdown,
) -> Result<(), BoxError>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: PanicResponse<B> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
{
    let permit = stream.permit.clone();
    let (peer, listener, waits) = (stream.peer(), open.listener(), WaitCount::default());
    let connection = Arc::new(ConnectionInfo { peer, listener, waits });
    let activity = Arc::new(RequestActivity::default());
    let open = Arc::new(open);
    let stream =
        TimedStream::new(stream, first, version, activity.clone(), deadlines, open.clone());
    let watched = activity.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(connection.clone());
        let (in_flight, open, mut service) = (watched.begin(), open.clone(), service.clone());
        let goes_on = permit.as_ref().is_none_or(|permit| permit.note_request());
        async move {
            if !goes_on {
                // Its task is about to be aborted.
                std::future::pending::<()>().await;
            }
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

/// What a client has begun to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Start {
    /// The head of a request, or the preface and a frame header.
    Http(HttpVersion),
    Tls,
    /// A long head, while those of other clients use up the budget.
    OverBudget,
}

/// Reads into `first` until it has the head of a request or, of HTTP/2, a frame header. hyper takes
/// ten times the memory of these bytes as soon as it reads.
async fn read_start(
    stream: &mut ClientStream,
    first: &mut BytesMut,
    listener: ListenerKind,
) -> io::Result<Start> {
    let negotiated = stream.protocol().map(|protocol| match protocol {
        b"h2" => HttpVersion::Http2,
        _ => HttpVersion::Http1,
    });
    let mut budget = PartialRequestBudget::new(listener);
    first.reserve(FIRST_CHUNK);
    loop {
        let before = first.len();
        let read = stream.read_buf(first).await?;
        if before == 0 {
            // Empty lines before a request are allowed, and are not the end of a head.
            let empty = first.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            first.advance(empty);
        }
        if let Some(start) = parse_start(first, before, negotiated) {
            return Ok(start);
        }
        if read == 0 || first.len() >= MAX_HEAD {
            return Ok(Start::Http(negotiated.unwrap_or(HttpVersion::Http1)));
        }
        if budget.set_len(first.len()).is_err() {
            return Ok(Start::OverBudget);
        }
    }
}

/// The start of a connection, or `None` if more bytes are needed. The head does not end in the
/// first `before` bytes. hyper refuses what is no HTTP.
fn parse_start(bytes: &[u8], before: usize, negotiated: Option<HttpVersion>) -> Option<Start> {
    let len = bytes.len().min(PREFACE.len());
    if negotiated != Some(HttpVersion::Http1) && bytes[..len] == PREFACE[..len] {
        let is_whole = bytes.len() >= PREFACE.len() + FRAME_HEADER;
        return is_whole.then_some(Start::Http(HttpVersion::Http2));
    }
    if negotiated.is_none() && begins_tls(bytes) {
        return Some(Start::Tls);
    }
    let version = negotiated.unwrap_or(HttpVersion::Http1);
    let fresh = &bytes[before.saturating_sub(2)..];
    let ends =
        fresh.windows(2).any(|end| end == b"\n\n") || fresh.windows(3).any(|end| end == b"\n\r\n");
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let is_http = match (lines.next(), lines.next()) {
        (Some(line), Some(_)) => line.windows(8).any(|part| part == b" HTTP/1."),
        _ => bytes.first().is_none_or(u8::is_ascii_graphic),
    };
    (ends || !is_http || version == HttpVersion::Http2).then_some(Start::Http(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of a connection that sends one byte at a time, and the bytes needed for it.
    fn start_of(bytes: &[u8], negotiated: Option<HttpVersion>) -> Option<(Start, usize)> {
        (1..=bytes.len())
            .find_map(|len| parse_start(&bytes[..len], len - 1, negotiated).map(|at| (at, len)))
    }

    #[test]
    fn hyper_gets_a_connection_when_its_first_head_is_complete() {
        let [http1, http2] = [HttpVersion::Http1, HttpVersion::Http2].map(Start::Http);
        let settings = [PREFACE, &[0; FRAME_HEADER], b"more"].concat();
        let head: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let table: [(&[u8], _); 11] = [
            (head, Some((http1, head.len()))),
            (b"GET / HTTP/1.1\nhost: a\n\nbody", Some((http1, 24))),
            (b"GET / HTTP/1.1\r\nhost: a\r\nx: y\r\n", None),
            (b"PRINT / HTTP/1.1\r\n", None),
            (&settings, Some((http2, PREFACE.len() + FRAME_HEADER))),
            (PREFACE, None),
            // No HTTP: hyper refuses it at once.
            (b"PING\r\n", Some((http1, 6))),
            (b"*1\r\n", Some((http1, 4))),
            (b"\0", Some((http1, 1))),
            (b"GET /\r\nhost: a\r\n\r\n", Some((http1, 7))),
            (b"\x16\x03\x01", Some((Start::Tls, 1))),
        ];
        for (bytes, expected) in table {
            assert_eq!(start_of(bytes, None), expected, "{}", bytes.escape_ascii());
        }
        assert_eq!(start_of(head, Some(HttpVersion::Http1)), Some((http1, head.len())));
        assert_eq!(start_of(head, Some(HttpVersion::Http2)), Some((http2, 1)));
        assert_eq!(start_of(PREFACE, Some(HttpVersion::Http1)), Some((http1, 16)));
    }
}
