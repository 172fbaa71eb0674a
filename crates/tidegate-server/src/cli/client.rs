//! Asks a server over HTTP.

use std::sync::OnceLock;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::request::Builder;
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Failure;
use super::secure::Secure;
use crate::tokens::Tokens;

/// A server, by its address.
pub(super) struct Client {
    host: String,
    /// How it is spoken to; nothing in plain text.
    tls: Option<Tls>,
    tokens: Tokens,
    /// What else can be done where the server cannot be reached.
    instead: &'static str,
}

/// TLS to a server.
struct Tls {
    /// Its host alone.
    host: String,
    secure: Secure,
    /// Made for the first connection: the system's certificates take a while to read.
    connector: OnceLock<TlsConnector>,
}

impl Tls {
    fn connector(&self) -> Result<TlsConnector, Failure> {
        if let Some(connector) = self.connector.get() {
            return Ok(connector.clone());
        }
        let connector = self.secure.connector(&[])?;
        Ok(self.connector.get_or_init(|| connector).clone())
    }
}

/// How long an answer may take, beyond what was asked to be waited for.
const DEADLINE: Duration = Duration::from_secs(75);
/// How long it may take until a stream begins.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// The longest answer in bytes.
const MAX_ANSWER: usize = 16 << 20;

impl Client {
    /// The server at `http://host:port` or `https://host:port`.
    pub(super) fn new(url: &str, secure: &Secure) -> Result<Self, Failure> {
        // The address is not shown: it may have a password in it by mistake.
        let advice = "not a server; write one like http://127.0.0.1:8080";
        let uri: Uri = url.parse().map_err(|_| advice)?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'));
        let is_bare = uri.path() == "/" && uri.query().is_none();
        let (port, has_tls) = match uri.scheme_str().filter(|_| is_bare) {
            Some("http") => (80, false),
            Some("https") => (443, true),
            _ => return Err(advice.into()),
        };
        let authority = authority.ok_or(advice)?;
        // One that is too large is not read, and is not the usual one either.
        let says_none = authority.as_str() == authority.host();
        let port = if says_none { port } else { authority.port_u16().ok_or(advice)? };
        let host = format!("{}:{port}", authority.host());
        let tls = has_tls.then(|| Tls {
            host: authority.host().to_string(),
            secure: secure.clone(),
            connector: OnceLock::new(),
        });
        let instead = "or name another with --server";
        Ok(Self { host, tls, tokens: Tokens::from_env()?, instead })
    }

    /// The same for a command that can ask a store as well.
    pub(super) fn or_store(self) -> Self {
        Self { instead: "name another with --server, or ask a store with --store", ..self }
    }

    /// Sends JSON and reads JSON; a denial is an answer, a problem is not.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.ask(Method::POST, path, body.to_string(), self.tokens.to_show()).await
    }

    /// Reads JSON.
    pub(super) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.ask(Method::GET, path, String::new(), self.tokens.to_show()).await
    }

    /// Reads JSON, whatever the status.
    pub(super) async fn look(&self, path: &str) -> Result<(StatusCode, Value), Failure> {
        self.exchange(Method::GET, path, String::new(), self.tokens.to_show()).await
    }

    /// Asks for something to be gone, which needs the admin token.
    pub(super) async fn delete(&self, path: &str) -> Result<Value, Failure> {
        self.ask(Method::DELETE, path, String::new(), self.tokens.to_change()).await
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: String,
        token: Option<&str>,
    ) -> Result<Value, Failure> {
        let is_change = method == Method::DELETE;
        let (status, body) = self.exchange(method, path, body, token).await?;
        if status.is_success() || status == StatusCode::TOO_MANY_REQUESTS {
            return Ok(body);
        }
        let token = if is_change {
            "set TIDEGATE_ADMIN_TOKEN to its admin token"
        } else {
            "set TIDEGATE_TOKEN to its token"
        };
        Err(refused(status, &body, token))
    }

    /// Follows what the server tells as a stream of events.
    pub(super) async fn follow(&self, path: &str) -> Result<Events, Failure> {
        let request = Request::builder().method(Method::GET).header(ACCEPT, "text/event-stream");
        let begun = async {
            let sent = self.send(request.uri(path), String::new(), self.tokens.to_show());
            let response = sent.await?;
            if response.status() == StatusCode::OK {
                return Ok(Events::new(response.into_body()));
            }
            let (status, body) = self.read(response).await?;
            Err(refused(status, &body, "set TIDEGATE_TOKEN to its token"))
        };
        let begun = tokio::time::timeout(CONNECT_DEADLINE, begun).await;
        begun.map_err(|_| format!("{} did not answer in time", self.host))?
    }

    /// The server, as it is called.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: String,
        token: Option<&str>,
    ) -> Result<(StatusCode, Value), Failure> {
        let request = Request::builder().method(method).uri(path);
        let answer = async { self.read(self.send(request, body, token).await?).await };
        let answer = tokio::time::timeout(DEADLINE, answer).await;
        answer.map_err(|_| format!("{} did not answer in time", self.host))?
    }

    async fn send(
        &self,
        request: Builder,
        body: String,
        token: Option<&str>,
    ) -> Result<Response<Incoming>, Failure> {
        let unreachable = |error| {
            format!(
                "cannot reach {} ({error}); start it with tidegate serve, {}",
                self.host, self.instead
            )
        };
        let stream = TcpStream::connect(&self.host).await.map_err(unreachable)?;
        let mut sender = match &self.tls {
            None => speak(stream).await?,
            Some(tls) => {
                let connector = tls.connector()?;
                speak(Secure::connect(&connector, &tls.host, stream).await?).await?
            }
        };
        let mut request = request.header(HOST, &self.host);
        request = request.header(CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        Ok(sender.send_request(request).await?)
    }

    async fn read(&self, response: Response<Incoming>) -> Result<(StatusCode, Value), Failure> {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body: Value = serde_json::from_slice(&body?.to_bytes()).map_err(|_| {
            format!("{} answered {status}, and not in JSON; is it a tidegate server?", self.host)
        })?;
        Ok((status, body))
    }
}

/// What a server says that does not answer.
fn refused(status: StatusCode, body: &Value, token: &str) -> Failure {
    let detail = body["detail"].as_str().or(body["title"].as_str()).unwrap_or("no reason given");
    let field = body["field"].as_str().map(|field| format!("{field}: ")).unwrap_or_default();
    let detail = if status == StatusCode::UNAUTHORIZED { token } else { detail };
    format!("the server answered {}: {field}{detail}", status.as_u16()).into()
}

/// Events, one after the other.
pub(super) struct Events {
    body: Incoming,
    /// What has come of the next ones.
    buffer: Vec<u8>,
}

impl Events {
    fn new(body: Incoming) -> Self {
        Self { body, buffer: Vec::new() }
    }

    /// What the next one tells; none when the server ends.
    pub(super) async fn next(&mut self) -> Result<Option<String>, Failure> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let event = String::from_utf8_lossy(&event).into_owned();
                if let Some(data) = event.trim_end().strip_prefix("data: ") {
                    return Ok(Some(data.into()));
                }
                continue;
            }
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            if let Ok(data) = frame?.into_data() {
                self.buffer.extend_from_slice(&data);
            }
            if self.buffer.len() > MAX_ANSWER {
                return Err("the server says too much at once; is it a tidegate server?".into());
            }
        }
    }
}

/// Speaks HTTP over a stream, for as long as anybody asks.
async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, Failure> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move { connection.await.ok() });
    Ok(sender)
}
