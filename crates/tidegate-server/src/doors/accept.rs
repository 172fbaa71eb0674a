//! The loop that lets clients in.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;
use tracing::warn;

use super::Deadlines;
use super::room::Room;
use super::seldom::Seldom;
use super::stream::Stream;
use super::tls::Certificates;
use crate::drain::{Drain, notice};
use crate::metrics::{Door, Metrics, Refusal};

/// How long the doors stay shut when the system has no room for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// So many wait at a door at most, as systems have it.
const MOST_AT_THE_DOOR: usize = 4_096;
/// When TCP begins to ask whether a silent client is still there, how often it asks, and how many times.
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_INTERVAL: Duration = Duration::from_secs(20);
const PROBES: u32 = 3;

/// A door and who watches it.
#[derive(Clone, Debug)]
pub struct Entrance {
    /// Which.
    pub door: Door,
    /// Room for clients, which all doors share.
    pub room: Arc<Room>,
    /// What clients are shown, if they are shown anything.
    pub certificates: Option<Arc<Certificates>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// How long clients may take.
    pub deadlines: Deadlines,
}

impl Entrance {
    /// Lets clients in until the server drains.
    pub async fn open<F>(
        self,
        listener: TcpListener,
        drain: Drain,
        serve: impl Fn(Stream, Drain) -> F + Clone + Send + 'static,
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
                    self.let_in(stream, &drain, &serve);
                }
                Err(error) => {
                    // Out of file descriptors, most likely. It gets better when somebody leaves, and is told once.
                    if !failing {
                        warn!(%error, "cannot accept a connection, trying on");
                    }
                    failing = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        notice().await;
        let let_in = |(stream, _)| self.let_in(stream, &drain, &serve);
        those_at_the_door(|| listener.accept(), let_in).await;
    }

    /// One client, if there is room. Its handshake keeps nobody else waiting.
    fn let_in<F>(
        &self,
        stream: TcpStream,
        drain: &Drain,
        serve: &(impl Fn(Stream, Drain) -> F + Clone + Send + 'static),
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(place) = self.room.enter(self.door) else {
            self.turn_away(stream);
            return;
        };
        // What cannot be set is not missed until a machine is gone.
        let probes = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_INTERVAL);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&probes.with_retries(PROBES));
        let drain = drain.clone();
        if self.certificates.is_none() {
            let served = serve(stream.into(), drain);
            tokio::spawn(async move {
                let _place = place;
                served.await;
            });
            return;
        }
        let (entrance, serve) = (self.clone(), serve.clone());
        tokio::spawn(async move {
            let _place = place;
            let mut drained = drain.clone();
            // The end of a handshake and the first question come together.
            let stream = tokio::select! {
                biased;
                stream = entrance.agree(stream) => stream,
                () = drained.noticed() => return,
            };
            if let Some(stream) = stream {
                serve(stream, drain).await;
            }
        });
    }

    /// Says at once that there is no room, as Redis does. Left to wait in the queue of the system, a client would
    /// find out by its own deadline only, and could not try another server before that.
    fn turn_away(&self, stream: TcpStream) {
        static SELDOM: Seldom = Seldom::new();
        self.metrics.count_refused(self.door, Refusal::Full);
        if let Some(kept_back) = SELDOM.pass() {
            let door = self.door.name();
            warn!(
                door,
                kept_back, "too many clients; raise --max-connections, or find out who keeps them"
            );
        }
        let told: &[u8] = match (&self.certificates, self.door) {
            // Nobody could read it.
            (Some(_), _) | (None, Door::Grpc) => return,
            (None, Door::Resp) => b"-ERR max number of clients reached\r\n",
            (None, Door::Http) => {
                b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n"
            }
        };
        // A new connection has room for a line. If not, it ends without.
        let socket = SockRef::from(&stream);
        let _ = socket.send(told).and_then(|_| socket.shutdown(std::net::Shutdown::Write));
    }

    /// The client with TLS, unless it does not get there in time.
    async fn agree(&self, stream: TcpStream) -> Option<Stream> {
        static SELDOM: Seldom = Seldom::new();
        let config = self.certificates.as_ref()?.config(self.door);
        let agreed = TlsAcceptor::from(config).accept(stream);
        let error = match tokio::time::timeout(self.deadlines.handshake, agreed).await {
            Ok(Ok(stream)) => return Some(Stream::Tls(Box::new(stream))),
            Ok(Err(error)) => error,
            Err(late) => late.into(),
        };
        self.metrics.count_refused(self.door, Refusal::Handshake);
        let kept_back = SELDOM.pass()?;
        let door = self.door.name();
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        if matches!(cause, Some(rustls::Error::InvalidMessage(_))) {
            warn!(
                door,
                kept_back,
                "a client does not speak TLS; use https, rediss or TLS for gRPC on this port"
            );
        } else {
            warn!(door, kept_back, %error, "a client could not agree on TLS");
        }
        None
    }
}

/// Whoever is at the door already may have asked already. Others may go on coming, and are not waited for.
async fn those_at_the_door<T, F>(mut accept: impl FnMut() -> F, mut let_in: impl FnMut(T))
where
    F: Future<Output = io::Result<T>>,
{
    for _ in 0..MOST_AT_THE_DOOR {
        match tokio::time::timeout(Duration::ZERO, accept()).await {
            Ok(Ok(client)) => let_in(client),
            // One who has gone again; others stand behind.
            Ok(Err(error)) if !is_out_of_files(&error) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

/// Nobody else can be let in before somebody leaves, whoever is next.
fn is_out_of_files(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Tells that a client speaks TLS where there is none.
pub(crate) fn tell_of_tls(door: Door) {
    static SELDOM: Seldom = Seldom::new();
    if let Some(kept_back) = SELDOM.pass() {
        let door = door.name();
        warn!(
            door,
            kept_back,
            "a client speaks TLS, and this door has no certificate; use http, redis or plain gRPC"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn the_last_are_let_in_and_no_crowd_keeps_the_door_open() {
        let mut inside = 0;
        those_at_the_door(|| ready(Ok(())), |()| inside += 1).await;
        assert_eq!(inside, MOST_AT_THE_DOOR, "more of them come all the time");

        let (mut waiting, mut inside) = (3, 0);
        let accept = || {
            let left = waiting;
            waiting -= 1;
            async move { if left > 0 { Ok(()) } else { pending().await } }
        };
        those_at_the_door(accept, |()| inside += 1).await;
        assert_eq!(inside, 3, "and then nobody is waited for");
    }

    #[tokio::test]
    async fn one_who_has_gone_again_shuts_out_nobody() {
        let gone = || io::Error::from(Errno::CONNABORTED);
        let full = || io::Error::from(Errno::MFILE);
        let at_the_door = [Ok(1), Err(gone()), Err(gone()), Ok(2), Err(full()), Ok(3)];
        let (mut waiting, mut inside) = (at_the_door.into_iter(), Vec::new());
        let accept = || {
            let next = waiting.next();
            async move { next.unwrap_or(Ok(4)) }
        };
        those_at_the_door(accept, |client| inside.push(client)).await;
        assert_eq!(inside, [1, 2], "there is no room for the third");
    }
}
