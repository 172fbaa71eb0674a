//! One client over HTTP.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, sleep};
use tower::{BoxError, Service};

use super::activity::{Activity, Lasts};
use super::patience::{Patient, Spoken};
use crate::doors::Deadlines;
use crate::doors::accept::tell_of_tls;
use crate::doors::panics::{Panicked, caught};
use crate::doors::stream::{Stream, begins_tls};
use crate::drain::Drain;
use crate::metrics::Connection;

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// What a service answers when it has made a mistake.
pub trait Sorry<B> {
    /// Never that something may pass, and nothing about the mistake.
    fn sorry() -> Response<B>;
}

/// The longest head of a request in bytes.
const MAX_HEAD: usize = 32 << 10;
/// What a client begins with that speaks HTTP/2 without having asked.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The most requests on their way over one connection of HTTP/2.
const MAX_STREAMS: u32 = 256;
/// Requests that a client may have taken back before we have looked at them. One who does nothing else, to make the
/// server begin work for nothing, is cut off; so is one whose mistakes make the server end so many.
const MAX_TAKEN_BACK: usize = 32;
const MAX_MISTAKES: usize = 256;
/// Bytes of bodies that a client may send before anybody reads them: over one connection of HTTP/2, the least that the
/// protocol allows, and for one request. A thousand connections hold 64 MiB.
const CONNECTION_WINDOW: u32 = 65_535;
const STREAM_WINDOW: u32 = 32 << 10;
/// Bytes of one answer that are kept ready to be sent.
const MAX_SEND_BUFFER: usize = 64 << 10;
/// How often a client over HTTP/2 that says nothing is asked whether it is there, and how long it may take to
/// answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_DEADLINE: Duration = Duration::from_secs(10);
/// How often a connection is looked at while it may be idle.
const PULSES: u32 = 10;
/// By then a client has asked something, or has no need of a connection yet.
const PULSES_TO_BEGIN: u32 = 2;

/// Serves one client until it goes, or until the server drains and what it asked is answered.
pub async fn serve<S, B>(
    stream: impl Into<Stream>,
    service: S,
    open: Connection,
    deadlines: Deadlines,
    mut drain: Drain,
) -> Result<(), BoxError>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Sorry<B> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Unpin + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut stream = stream.into();
    stream.set_nodelay();
    let mut first = BytesMut::new();
    let begins = tokio::select! {
        biased;
        begins = tokio::time::timeout(deadlines.request, begins(&mut stream, &mut first)) => begins??,
        () = drain.noticed() => return Ok(()),
    };
    let spoken = match begins {
        Begins::Http(spoken) => spoken,
        Begins::Tls => {
            tell_of_tls(open.door());
            return Ok(());
        }
    };
    let peer = stream.peer().map(Peer);
    let activity = Arc::new(Activity::default());
    let stream = Patient::new(stream, first.freeze(), spoken, activity.clone(), deadlines);
    let open = Arc::new(open);
    let watched = activity.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(peer) = peer {
            request.extensions_mut().insert(peer);
        }
        request.extensions_mut().insert(open.door());
        let (asked, open, mut service) = (watched.begin(), open.clone(), service.clone());
        async move {
            // Ours are always ready.
            let answered = caught(async { service.call(request).await }).await;
            let response = match answered {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(Panicked) => {
                    open.count_panic();
                    S::sorry()
                }
            };
            let lasts = response.extensions().get().copied().unwrap_or(Lasts::UntilTaken);
            Ok::<_, Infallible>(response.map(|body| asked.until_taken(body, lasts)))
        }
    });
    let watch = Watch { activity, deadlines, spoken, drain };
    let stream = TokioIo::new(stream);
    if spoken == Spoken::Http2 {
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEAD as u32)
            .max_pending_accept_reset_streams(MAX_TAKEN_BACK)
            .max_local_error_reset_streams(MAX_MISTAKES)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_stream_window_size(STREAM_WINDOW)
            .max_send_buf_size(MAX_SEND_BUFFER)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_DEADLINE);
        let connection = http2.serve_connection(stream, service);
        return watch.until_done(connection, |connection| connection.graceful_shutdown()).await;
    }
    // Every answer is written before the next request is looked at. Together they would be kept until nothing more
    // has arrived: megabytes for a client that sends kilobytes of requests and reads nothing.
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // Its time would begin with the end of the request before.
        .header_read_timeout(None)
        .max_buf_size(MAX_HEAD)
        .serve_connection(stream, service);
    watch.until_done(connection, |connection| connection.graceful_shutdown()).await
}

/// Looks after a connection.
struct Watch {
    activity: Arc<Activity>,
    deadlines: Deadlines,
    spoken: Spoken,
    drain: Drain,
}

impl Watch {
    /// Answers until the client goes, has had its time, or has been let go by `shut`: because it asks nothing any
    /// more, or the server drains.
    async fn until_done<C: Future<Output = Result<(), hyper::Error>>>(
        self,
        connection: C,
        shut: impl Fn(Pin<&mut C>),
    ) -> Result<(), BoxError> {
        let mut connection = pin!(connection);
        let pulse = self.deadlines.idle / PULSES;
        let mut next = pin!(sleep(pulse));
        let mut drain = self.drain.clone();
        let mut drained = pin!(drain.noticed());
        let mut stall = None;
        let (mut shutting, mut begun, mut silent) = (false, 0, 0);
        loop {
            tokio::select! {
                biased;
                done = connection.as_mut() => return Ok(done?),
                () = drained.as_mut(), if !shutting => silent = PULSES,
                // Asked whenever the connection was.
                () = poll_fn(|context| {
                    if !self.activity.stalls() {
                        stall = None;
                        return Poll::Pending;
                    }
                    let new = || Box::pin(sleep(self.deadlines.answer));
                    stall.get_or_insert_with(new).as_mut().poll(context)
                }) => return Err("answers were not taken in time".into()),
                () = next.as_mut() => {
                    if self.activity.beat() {
                        return Err("an answer was not taken in time".into());
                    }
                    let is_silent = self.activity.is_idle() && self.activity.begun() == begun;
                    silent = if is_silent { silent + 1 } else { 0 };
                    begun = self.activity.begun();
                    if shutting && !self.activity.is_awaited() {
                        return Ok(());
                    }
                }
            }
            let most = if begun == 0 { PULSES_TO_BEGIN } else { PULSES };
            if !shutting && silent >= most {
                if self.spoken == Spoken::Http1 && !self.drain.has_begun() {
                    return Ok(());
                }
                shutting = true;
                shut(connection.as_mut());
            }
            // Whoever is let go and does not go is not waited for as long.
            let wait = if shutting { pulse.min(self.deadlines.request) } else { pulse };
            next.as_mut().reset(Instant::now() + wait);
        }
    }
}

/// What a client begins with.
enum Begins {
    Http(Spoken),
    Tls,
}

/// Reads until it is known what is spoken. What was read is in `first`.
async fn begins(stream: &mut Stream, first: &mut BytesMut) -> io::Result<Begins> {
    match stream.protocol() {
        Some(b"h2") => return Ok(Begins::Http(Spoken::Http2)),
        Some(_) => return Ok(Begins::Http(Spoken::Http1)),
        None => {}
    }
    loop {
        first.reserve(PREFACE.len());
        let read = stream.read_buf(first).await?;
        if begins_tls(first) {
            return Ok(Begins::Tls);
        }
        let len = first.len().min(PREFACE.len());
        if read == 0 || first[..len] != PREFACE[..len] {
            return Ok(Begins::Http(Spoken::Http1));
        }
        if len == PREFACE.len() {
            return Ok(Begins::Http(Spoken::Http2));
        }
    }
}
