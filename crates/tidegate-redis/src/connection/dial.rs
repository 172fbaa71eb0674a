//! Connects to an endpoint: TCP or Unix socket, TLS, and login.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ErrorKind, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError,
    RedisResult,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::connection::endpoint::Endpoint;
use crate::connection::tls::{InvalidTls, Tls};
use crate::connection::url::TlsSettings;

/// Login and TLS for all servers of one deployment. Its secrets are never printed; clones share
/// them.
#[derive(Clone)]
pub(crate) struct Dialer {
    login: Arc<RedisConnectionInfo>,
    tls: Option<Tls>,
    on_push: Option<PushHandler>,
}

/// Receives pushed messages of a connection, for example of a subscription.
pub(crate) type PushHandler = Arc<dyn Fn(PushInfo) + Send + Sync>;

impl Dialer {
    /// After this time without a connection, the next address is tried as well.
    const HEAD_START: Duration = Duration::from_millis(100);
    /// The most addresses of a name that are tried.
    const MAX_ADDRESSES: usize = 16;

    pub(crate) fn new(login: RedisConnectionInfo) -> Self {
        Self { login: login.into(), tls: None, on_push: None }
    }

    pub(crate) fn db(&self) -> i64 {
        self.login.db
    }

    /// The same TLS settings with another login.
    pub(crate) fn with_login(&self, login: RedisConnectionInfo) -> Self {
        Self { login: login.into(), tls: self.tls.clone(), on_push: None }
    }

    /// Uses TLS if there are settings for it. Reads the files that they name.
    pub(crate) fn with_tls(self, settings: Option<&TlsSettings>) -> Result<Self, InvalidTls> {
        let tls = settings.map(Tls::new).transpose()?;
        Ok(Self { tls, ..self })
    }

    /// Enables subscriptions on the connections.
    pub(crate) fn with_push_handler(mut self, on_push: PushHandler) -> Self {
        // Only in RESP3 do messages and replies share a connection.
        Arc::make_mut(&mut self.login).protocol = ProtocolVersion::RESP3;
        self.on_push = Some(on_push);
        self
    }

    /// Connects, without a timeout: the caller has a deadline around it. Resolves names each time.
    pub(crate) async fn dial(&self, endpoint: &Endpoint) -> RedisResult<RawConnection> {
        match endpoint {
            Endpoint::Tcp { host, port } => {
                let stream = connect(host, *port).await?;
                stream.set_nodelay(true)?;
                match &self.tls {
                    Some(tls) => self.log_in(tls.secure(host, stream).await.map_err(in_tls)?).await,
                    None => self.log_in(stream).await,
                }
            }
            Endpoint::Unix(path) => self.log_in(UnixStream::connect(path).await?).await,
        }
    }

    /// What to do about a server that does not reply.
    pub(crate) fn remedy_for_silence(&self) -> &'static str {
        match self.tls {
            None => CHECK_RUNNING,
            Some(_) => "check that it is running, and that it uses TLS on this port",
        }
    }

    async fn log_in<S>(&self, stream: S) -> RedisResult<RawConnection>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut config = AsyncConnectionConfig::new();
        if let Some(on_push) = self.on_push.clone() {
            let sender = move |message| -> Result<(), Infallible> {
                on_push(message);
                Ok(())
            };
            config = config.set_push_sender(sender);
        }
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&self.login, stream, config).await?;
        let task = ConnectionTask(tokio::spawn(driver).abort_handle());
        Ok(RawConnection { connection, _task: task.into() })
    }
}

/// A connection, and the task that drives it. Dropping the last clone ends both.
#[derive(Clone)]
pub(crate) struct RawConnection {
    connection: MultiplexedConnection,
    _task: Arc<ConnectionTask>,
}

/// Aborts the task when dropped. By itself the task would wait for all outstanding replies, and
/// each attempt to reach a frozen server would leave a socket open.
struct ConnectionTask(AbortHandle);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Deref for RawConnection {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.connection
    }
}

impl DerefMut for RawConnection {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Dialer");
        debug.field("db", &self.login.db).field("tls", &self.tls.is_some());
        debug.finish_non_exhaustive()
    }
}

/// Connects to the first address of the host that accepts. The attempts overlap, so that an address
/// that neither accepts nor refuses does not use up the time of the others.
async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = lookup_host((host, port)).await.map_err(in_lookup)?;
    let mut addresses = addresses.take(Dialer::MAX_ADDRESSES);
    // Attempts that are still pending end when the set is dropped.
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
    Err(refusal.unwrap_or_else(|| io::Error::other("the host name resolves to no address")))
}

const CHECK_RUNNING: &str = "check that it is running";

const IN_LOOKUP: &str = "unknown host";
const IN_TLS: &str = "TLS handshake failed";

fn in_lookup(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{IN_LOOKUP}: {error}"))
}

fn in_tls(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{IN_TLS}: {error}"))
}

/// What to do about an attempt to connect that failed.
pub(crate) fn remedy(error: &RedisError) -> &'static str {
    let text = error.to_string();
    let is_login = error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"));
    match () {
        () if is_login => "check user and password",
        () if text.starts_with(IN_LOOKUP) => "check the host name",
        () if text.starts_with(IN_TLS) => {
            "check the certificates, and that the server uses TLS on this port"
        }
        () => CHECK_RUNNING,
    }
}
