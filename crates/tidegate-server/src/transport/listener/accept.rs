//! Accept loop: keepalive, TLS handshake, rejection at capacity.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;
use tracing::warn;

use super::connection_limit::ConnectionLimit;
use super::log_throttle::LogThrottle;
use super::stream::ClientStream;
use super::timeouts::Timeouts;
use crate::observe::metrics::{ListenerKind, Metrics, RejectReason};
use crate::shutdown::{Shutdown, poll_grace};
use crate::tls::ReloadableTls;

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that wait in the system to be accepted, if it allows as many. Beyond it, the system
/// drops packets of new connections, and their clients send them again after 1 s, 3 s and 7 s: with
/// the 128 of tokio, a burst of clients that reconnect waits for seconds.
pub(super) const BACKLOG: u32 = 4_096;
/// Most connections accepted after the drain has begun.
const MAX_PENDING_ACCEPTS: usize = BACKLOG as usize;
/// TCP keepalive: time until the first probe.
const PROBE_AFTER: Duration = Duration::from_secs(60);
/// TCP keepalive: time between probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(20);
/// TCP keepalive: unanswered probes until the connection is closed.
const PROBES: u32 = 3;

/// Reply of an HTTP/1.1 listener that has no room for a connection or its request.
pub(super) const UNAVAILABLE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n";

/// Listens on an address.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A restarted server listens at once. On Windows, another program could take the address.
    if cfg!(unix) {
        socket.set_reuseaddr(true)?;
    }
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Accepts the connections of one listener.
#[derive(Clone, Debug)]
pub(crate) struct Acceptor {
    /// Protocol of the listener.
    pub kind: ListenerKind,
    /// Connection limit, shared by all listeners.
    pub limit: Arc<ConnectionLimit>,
    /// Certificates; without them connections are plaintext.
    pub certificates: Option<Arc<ReloadableTls>>,
    pub metrics: Arc<Metrics>,
    pub deadlines: Timeouts,
}

impl Acceptor {
    /// Accepts connections until the server drains.
    pub(crate) async fn run<F>(
        self,
        listener: TcpListener,
        drain: Shutdown,
        serve: impl Fn(ClientStream, Shutdown) -> F + Clone + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut begun = drain.clone();
        let mut failing = false;
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = begun.begun() => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    failing = false;
                    self.admit(stream, &drain, &serve);
                }
                Err(error) => {
                    // Most likely out of file descriptors, until a connection closes. Logged once.
                    if !failing {
                        warn!(%error, "accept failed; retrying");
                    }
                    failing = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        poll_grace().await;
        let admit = |(stream, _)| self.admit(stream, &drain, &serve);
        accept_pending(|| listener.accept(), admit).await;
    }

    /// Spawns a task that serves the connection. At capacity, it replaces the oldest connection
    /// without a request, or is rejected if there is none.
    fn admit<F>(
        &self,
        stream: TcpStream,
        drain: &Shutdown,
        serve: &(impl Fn(ClientStream, Shutdown) -> F + Clone + Send + 'static),
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let permit = self.limit.acquire(self.kind).or_else(|| {
            self.note_full();
            self.limit.replace_oldest(self.kind)
        });
        let Some(permit) = permit else {
            self.reject(stream);
            return;
        };
        // A failure is ignored: keepalive only detects clients whose machine is gone.
        let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_INTERVAL);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&probes.with_retries(PROBES));
        let drain = drain.clone();
        if self.certificates.is_none() {
            let stream = ClientStream::from(stream).with_permit(permit.clone());
            permit.set_task(tokio::spawn(serve(stream, drain)).abort_handle());
            return;
        }
        let (acceptor, serve, held) = (self.clone(), serve.clone(), permit.clone());
        let task = tokio::spawn(async move {
            let mut drained = drain.clone();
            // Biased: the end of a handshake and the first request may arrive in one packet.
            let stream = tokio::select! {
                biased;
                stream = acceptor.handshake(stream) => stream,
                () = drained.noticed() => return,
            };
            if let Some(stream) = stream {
                serve(stream.with_permit(held), drain).await;
            }
        });
        permit.set_task(task.abort_handle());
    }

    /// Counts and logs a connection that the limit has closed: a new one, or the one it replaces.
    fn note_full(&self) {
        static THROTTLE: LogThrottle = LogThrottle::new();
        self.metrics.count_refused(self.kind, RejectReason::Full);
        if let Some(suppressed) = THROTTLE.allow() {
            let listener = self.kind.name();
            warn!(
                listener,
                suppressed,
                "connection limit reached; raise --max-connections or check for leaking clients"
            );
        }
    }

    /// Replies at once that the limit is reached, as Redis does. In the backlog of the system, a
    /// client would wait for its timeout before it could try another server.
    fn reject(&self, stream: TcpStream) {
        let reply: &[u8] = match (&self.certificates, self.kind) {
            // The client expects TLS or HTTP/2 frames.
            (Some(_), _) | (None, ListenerKind::Grpc) => return,
            (None, ListenerKind::Resp) => b"-ERR max number of clients reached\r\n",
            (None, ListenerKind::Http) => UNAVAILABLE,
        };
        // The send buffer of a new connection has room for a line. If not, it is closed without.
        let socket = SockRef::from(&stream);
        let _ = socket.send(reply).and_then(|_| socket.shutdown(std::net::Shutdown::Write));
    }

    /// The TLS stream, unless the handshake fails or times out.
    async fn handshake(&self, stream: TcpStream) -> Option<ClientStream> {
        static THROTTLE: LogThrottle = LogThrottle::new();
        let config = self.certificates.as_ref()?.config(self.kind)?;
        let handshake = TlsAcceptor::from(config).accept(stream);
        let error = match tokio::time::timeout(self.deadlines.handshake, handshake).await {
            Ok(Ok(stream)) => return Some(stream.into()),
            Ok(Err(error)) => error,
            Err(late) => late.into(),
        };
        self.metrics.count_refused(self.kind, RejectReason::Handshake);
        let suppressed = THROTTLE.allow()?;
        let listener = self.kind.name();
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        if matches!(cause, Some(rustls::Error::InvalidMessage(_))) {
            warn!(
                listener,
                suppressed,
                "client does not use TLS; use https, rediss or gRPC over TLS on this port"
            );
        } else {
            warn!(listener, suppressed, %error, "TLS handshake failed");
        }
        None
    }
}

/// Accepts the connections in the backlog, which may have sent requests already. Bounded: more may
/// keep arriving.
async fn accept_pending<T, F>(mut accept: impl FnMut() -> F, mut admit: impl FnMut(T))
where
    F: Future<Output = io::Result<T>>,
{
    for _ in 0..MAX_PENDING_ACCEPTS {
        match tokio::time::timeout(Duration::ZERO, accept()).await {
            Ok(Ok(client)) => admit(client),
            // This client has disconnected; others may follow in the backlog.
            Ok(Err(error)) if !is_fd_exhausted(&error) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

/// No connection can be accepted until another one closes.
fn is_fd_exhausted(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Logs that a client uses TLS on a plaintext listener.
pub(crate) fn log_unexpected_tls(listener: ListenerKind) {
    static THROTTLE: LogThrottle = LogThrottle::new();
    if let Some(suppressed) = THROTTLE.allow() {
        let listener = listener.name();
        warn!(
            listener,
            suppressed,
            "client uses TLS but this listener has no certificate; use http, redis or plaintext \
             gRPC"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn the_backlog_is_accepted_and_new_connections_do_not_prolong_it() {
        let mut accepted = 0;
        accept_pending(|| ready(Ok(())), |()| accepted += 1).await;
        assert_eq!(accepted, MAX_PENDING_ACCEPTS, "more keep arriving");

        let (mut waiting, mut accepted) = (3, 0);
        let accept = || {
            let left = waiting;
            waiting -= 1;
            async move { if left > 0 { Ok(()) } else { pending().await } }
        };
        accept_pending(accept, |()| accepted += 1).await;
        assert_eq!(accepted, 3, "it does not wait for more");
    }

    /// The system refuses none of them, however long the server does not accept.
    #[tokio::test]
    async fn five_hundred_connections_wait_to_be_accepted() {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for nth in 0..500 {
            let client = tokio::time::timeout(Duration::from_secs(60), TcpStream::connect(address));
            clients.push(client.await.unwrap_or_else(|_| panic!("stuck after {nth}")).unwrap());
        }
    }

    #[tokio::test]
    async fn a_disconnected_client_does_not_end_the_backlog() {
        let gone = || io::Error::from(Errno::CONNABORTED);
        let full = || io::Error::from(Errno::MFILE);
        let backlog = [Ok(1), Err(gone()), Err(gone()), Ok(2), Err(full()), Ok(3)];
        let (mut waiting, mut accepted) = (backlog.into_iter(), Vec::new());
        let accept = || {
            let next = waiting.next();
            async move { next.unwrap_or(Ok(4)) }
        };
        accept_pending(accept, |client| accepted.push(client)).await;
        assert_eq!(accepted, [1, 2], "no file descriptor for the third");
    }
}
