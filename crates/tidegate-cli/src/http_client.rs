//! HTTP client of a Tidegate server.

use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::request::Builder;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde_json::Value;

use crate::endpoint::{ConnectError, ServerEndpoint, ServerUrl, TargetProtocol};
use crate::error::CliError;
use crate::tls_args::TlsArgs;
use tidegate_server::internal::transport::auth::AuthTokens;

pub(crate) struct ServerClient {
    endpoint: ServerEndpoint,
    tokens: AuthTokens,
    /// Remedy if the server cannot be reached.
    advice: &'static str,
}

/// Timeout of a request. Longer than the longest wait that a server grants (`wait_ms`).
const DEADLINE: Duration = Duration::from_secs(75);
/// Timeout until an event stream begins.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Bound for a response body, and for one event.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

impl ServerClient {
    /// `url` is `http://host[:port]` or `https://host[:port]`; `host[:port]` is plain HTTP.
    pub(crate) fn new(url: &str, tls: &TlsArgs) -> Result<Self, CliError> {
        let with_scheme = format!("http://{url}");
        let url = if url.contains("://") { url } else { &with_scheme };
        // The message does not show the URL: it may contain a password.
        let url = url.parse().ok().filter(|url: &ServerUrl| url.protocol == TargetProtocol::Http);
        let url = url.ok_or("invalid server URL; expected one like http://127.0.0.1:8080")?;
        let endpoint = ServerEndpoint::new(&url, tls)?;
        let advice = "or set another URL with --server";
        Ok(Self { endpoint, tokens: AuthTokens::from_env()?, advice })
    }

    /// For a command that also has `--store`.
    pub(crate) fn or_store(self) -> Self {
        Self { advice: "set another URL with --server, or use --store", ..self }
    }

    /// Sends JSON and reads JSON. A denial is a result, a problem is an error.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.request(Method::POST, path, body.to_string(), self.tokens.to_show()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.request(Method::GET, path, String::new(), self.tokens.to_show()).await
    }

    /// Returns status and body, whatever the status.
    pub(crate) async fn get_any_status(&self, path: &str) -> Result<(StatusCode, Value), CliError> {
        self.exchange(Method::GET, path, String::new(), self.tokens.to_show()).await
    }

    /// Needs the admin token.
    pub(crate) async fn put(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.request(Method::PUT, path, body.to_string(), self.tokens.to_change()).await
    }

    /// Needs the admin token.
    pub(crate) async fn delete(&self, path: &str) -> Result<Value, CliError> {
        self.request(Method::DELETE, path, String::new(), self.tokens.to_change()).await
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: String,
        token: Option<&str>,
    ) -> Result<Value, CliError> {
        let is_change = method == Method::DELETE || method == Method::PUT;
        let (status, body) = self.exchange(method, path, body, token).await?;
        if status.is_success() || status == StatusCode::TOO_MANY_REQUESTS {
            return Ok(body);
        }
        let token_advice = if is_change {
            "set TIDEGATE_ADMIN_TOKEN here to the server's admin token; a server without one \
             refuses changes, so start it with TIDEGATE_ADMIN_TOKEN too"
        } else {
            TOKEN_ADVICE
        };
        Err(refused(status, &body, token_advice))
    }

    /// Opens an event stream (server-sent events).
    pub(crate) async fn follow(&self, path: &str) -> Result<EventStream, CliError> {
        let request = Request::builder().method(Method::GET).header(ACCEPT, "text/event-stream");
        let begun = async {
            let sent = self.send(request.uri(path), String::new(), self.tokens.to_show());
            let response = sent.await?;
            if response.status() == StatusCode::OK {
                return Ok(EventStream::new(response.into_body()));
            }
            let (status, body) = self.read(response).await?;
            Err(refused(status, &body, TOKEN_ADVICE))
        };
        let begun = tokio::time::timeout(CONNECT_DEADLINE, begun).await;
        begun.map_err(|_| format!("{}: request timed out", self.host()))?
    }

    /// `host:port`
    pub(crate) fn host(&self) -> &str {
        &self.endpoint.host
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: String,
        token: Option<&str>,
    ) -> Result<(StatusCode, Value), CliError> {
        let request = Request::builder().method(method).uri(path);
        let response = async { self.read(self.send(request, body, token).await?).await };
        let response = tokio::time::timeout(DEADLINE, response).await;
        response.map_err(|_| format!("{}: request timed out", self.host()))?
    }

    async fn send(
        &self,
        request: Builder,
        body: String,
        token: Option<&str>,
    ) -> Result<Response<Incoming>, CliError> {
        let host = self.host();
        let stream = self.endpoint.connect().await.map_err(|error| match error {
            ConnectError::Tcp(error) => {
                let advice = self.advice;
                format!("cannot reach {host} ({error}); start it with tidegate serve, {advice}")
            }
            ConnectError::Tls(error) => {
                format!("TLS handshake with {host} failed ({error}); check the scheme and --ca")
            }
        })?;
        let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move { connection.await.ok() });
        let mut request = request.header(HOST, host).header(CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        Ok(sender.send_request(request).await?)
    }

    async fn read(&self, response: Response<Incoming>) -> Result<(StatusCode, Value), CliError> {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        let body = body?.to_bytes();
        if status == StatusCode::NO_CONTENT {
            return Ok((status, Value::Null));
        }
        let body: Value = serde_json::from_slice(&body).map_err(|_| {
            format!(
                "{} returned {status} with a body that is not JSON; is it a tidegate server?",
                self.host()
            )
        })?;
        Ok((status, body))
    }
}

const TOKEN_ADVICE: &str = "set TIDEGATE_TOKEN to the server's token";

/// Error for a problem response.
fn refused(status: StatusCode, body: &Value, token_advice: &str) -> CliError {
    let detail = body["detail"].as_str().or(body["title"].as_str()).unwrap_or("no detail given");
    let field = body["field"].as_str().map(|field| format!("{field}: ")).unwrap_or_default();
    let detail = if status == StatusCode::UNAUTHORIZED { token_advice } else { detail };
    format!("the server returned {}: {field}{detail}", status.as_u16()).into()
}

pub(crate) struct EventStream {
    body: Incoming,
    /// Received bytes of events not returned yet.
    buffer: Vec<u8>,
}

impl EventStream {
    fn new(body: Incoming) -> Self {
        Self { body, buffer: Vec::new() }
    }

    /// Data of the next event; `None` when the server closes the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, CliError> {
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
            if self.buffer.len() > MAX_RESPONSE_BYTES {
                return Err("event too large; is it a tidegate server?".into());
            }
        }
    }
}
