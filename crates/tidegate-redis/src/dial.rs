//! From a place to a connection that is ready: the stream, TLS, and the handshake.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::address::Place;
use crate::tls::{InvalidTls, Tls};
use crate::url::TlsSettings;

/// How to enter any of the servers of one deployment. Its secrets are never shown, and clones share
/// them.
#[derive(Clone)]
pub(crate) struct Dialer {
    login: Arc<RedisConnectionInfo>,
    tls: Option<Tls>,
    listener: Option<Listener>,
}

/// Whom a connection tells what nobody asked for: published messages.
pub(crate) type Listener = Arc<dyn Fn(PushInfo) + Send + Sync>;

impl Dialer {
    /// An address that does not answer keeps the next one waiting for so long.
    const HEAD_START: Duration = Duration::from_millis(100);
    /// The most addresses of a name that are tried.
    const MAX_ADDRESSES: usize = 16;

    pub(crate) fn new(login: RedisConnectionInfo) -> Self {
        Self { login: login.into(), tls: None, listener: None }
    }

    /// The database that it chooses.
    pub(crate) fn db(&self) -> i64 {
        self.login.db
    }

    /// The same with another login.
    pub(crate) fn with_login(&self, login: RedisConnectionInfo) -> Self {
        Self { login: login.into(), tls: self.tls.clone(), listener: None }
    }

    /// Over TLS, if there are settings for it. Reads the files that they name.
    pub(crate) fn with_tls(self, settings: Option<&TlsSettings>) -> Result<Self, InvalidTls> {
        let tls = settings.map(Tls::new).transpose()?;
        Ok(Self { tls, ..self })
    }

    /// The same, for connections on which one may subscribe.
    pub(crate) fn with_listener(mut self, listener: Listener) -> Self {
        // Only there do messages and replies share a connection.
        Arc::make_mut(&mut self.login).protocol = ProtocolVersion::RESP3;
        self.listener = Some(listener);
        self
    }

    /// A connection. It has no timeouts of its own: whoever asks has a deadline round all of this.
    /// Names are looked up each time.
    pub(crate) async fn dial(&self, place: &Place) -> RedisResult<Connection> {
        match place {
            Place::Tcp { host, port } => {
                let stream = connect(host, *port).await?;
                stream.set_nodelay(true)?;
                match &self.tls {
                    Some(tls) => self.enter(tls.secure(host, stream).await?).await,
                    None => self.enter(stream).await,
                }
            }
            Place::Unix(path) => self.enter(UnixStream::connect(path).await?).await,
        }
    }

    async fn enter<S>(&self, stream: S) -> RedisResult<Connection>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut config = AsyncConnectionConfig::new();
        if let Some(listener) = self.listener.clone() {
            let tell = move |message| -> Result<(), Infallible> {
                listener(message);
                Ok(())
            };
            config = config.set_push_sender(tell);
        }
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&self.login, stream, config).await?;
        let driver = Driver(tokio::spawn(driver).abort_handle());
        Ok(Connection { connection, _driver: driver.into() })
    }
}

/// A connection, and the task that drives it. The last clone ends both.
#[derive(Clone)]
pub(crate) struct Connection {
    connection: MultiplexedConnection,
    _driver: Arc<Driver>,
}

/// By itself it would wait for the answers to all that was asked, and a server that is frozen would be
/// kept another socket for every attempt to reach it.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Deref for Connection {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.connection
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Dialer");
        shown.field("db", &self.login.db).field("tls", &self.tls.is_some());
        shown.finish_non_exhaustive()
    }
}

/// The first of the host's addresses to accept. One that neither accepts nor refuses must not use up
/// the time of the others, so they overtake it.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut addresses = lookup_host((host, port)).await?.take(Dialer::MAX_ADDRESSES);
    // Those that come too late end with it.
    let mut attempts = JoinSet::new();
    let mut refusal = None;
    loop {
        match addresses.next() {
            Some(address) => drop(attempts.spawn(TcpStream::connect(address))),
            None if attempts.is_empty() => break,
            None => {}
        }
        match timeout(Dialer::HEAD_START, attempts.join_next()).await {
            Ok(Some(Ok(Ok(stream)))) => return Ok(stream),
            Ok(Some(Ok(Err(error)))) => refusal = Some(error),
            Ok(_) | Err(_) => {}
        }
    }
    Err(refusal.unwrap_or_else(|| io::Error::other("the name has no address")))
}
