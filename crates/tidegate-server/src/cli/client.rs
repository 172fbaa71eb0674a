//! Asks a server over HTTP.

use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::Failure;
use super::secure::Secure;
use crate::tokens::Tokens;

/// A server, by its address.
pub(super) struct Client {
    host: String,
    /// The host alone, and how it is spoken to; nothing in plain text.
    tls: Option<(String, Secure)>,
    tokens: Tokens,
}

/// How long an answer may take, beyond what was asked to be waited for.
const DEADLINE: Duration = Duration::from_secs(75);
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
        let host = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(port));
        let tls = has_tls.then(|| (authority.host().to_string(), secure.clone()));
        Ok(Self { host, tls, tokens: Tokens::from_env()? })
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
        let detail =
            body["detail"].as_str().or(body["title"].as_str()).unwrap_or("no reason given");
        let field = body["field"].as_str().map(|field| format!("{field}: ")).unwrap_or_default();
        let detail = match status {
            StatusCode::UNAUTHORIZED if is_change => "set TIDEGATE_ADMIN_TOKEN to its admin token",
            StatusCode::UNAUTHORIZED => "set TIDEGATE_TOKEN to its token",
            _ => detail,
        };
        Err(format!("the server answered {}: {field}{detail}", status.as_u16()).into())
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: String,
        token: Option<&str>,
    ) -> Result<(StatusCode, Value), Failure> {
        let answer = tokio::time::timeout(DEADLINE, self.send(method, path, body, token)).await;
        answer.map_err(|_| format!("{} did not answer in time", self.host))?
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: String,
        token: Option<&str>,
    ) -> Result<(StatusCode, Value), Failure> {
        let unreachable = |error| {
            format!(
                "cannot reach {} ({error}); start it with tidegate serve, name another with \
                 --server, or ask a store with --store",
                self.host
            )
        };
        let stream = TcpStream::connect(&self.host).await.map_err(unreachable)?;
        let mut sender = match &self.tls {
            None => speak(stream).await?,
            Some((host, secure)) => speak(secure.connect(host, stream).await?).await?,
        };
        let mut request = Request::builder().method(method).uri(path).header(HOST, &self.host);
        request = request.header(CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body: Value = serde_json::from_slice(&body?.to_bytes()).map_err(|_| {
            format!("{} answered {status}, and not in JSON; is it a tidegate server?", self.host)
        })?;
        Ok((status, body))
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
