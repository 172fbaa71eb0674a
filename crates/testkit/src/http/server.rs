//! An HTTP service on a socket and a client for it.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tidegate::{Clock, Limiter, ManualClock, Memory, Rule, SystemClock};
use tidegate_tower::RateLimitLayer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server on loopback, with a client.
#[derive(Clone)]
pub struct TestServer {
    address: SocketAddr,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl TestServer {
    /// Serves with `ConnectInfo` of each connection.
    pub async fn start(app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self::at(address)
    }

    /// Replies 200 to every request that the layer admits.
    pub async fn behind(layer: RateLimitLayer) -> Self {
        Self::start(Router::new().fallback(|| async { "served" }).layer(layer)).await
    }

    /// A client for a server started elsewhere.
    pub fn at(address: SocketAddr) -> Self {
        Self { address, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    pub async fn get(&self, path: &str) -> HttpReply {
        self.request("GET", path, &[]).await
    }

    /// Sends a request and reads the whole response.
    pub async fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpReply {
        let uri = format!("http://{}{path}", self.address);
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.client.request(request.body(Empty::new()).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        HttpReply { status: head.status.as_u16(), headers: head.headers, body }
    }

    /// Sends requests one after the other and counts those with status 200.
    pub async fn count_admitted(&self, of: usize, headers: &[(&str, &str)]) -> usize {
        let mut admitted = 0;
        for _ in 0..of {
            match self.request("GET", "/", headers).await.status {
                200 => admitted += 1,
                429 => {}
                other => panic!("{other}"),
            }
        }
        admitted
    }

    /// A connection with a request sent and no response read.
    pub async fn connect(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: site\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }
}

/// A response with its whole body.
#[derive(Debug)]
pub struct HttpReply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl HttpReply {
    /// All values of a header, joined by commas.
    pub fn header(&self, name: &str) -> Option<String> {
        let values = self.headers.get_all(name).iter().map(|value| value.to_str().unwrap());
        Some(values.collect::<Vec<_>>().join(", ")).filter(|list| !list.is_empty())
    }

    pub fn has_limit_headers(&self) -> bool {
        self.headers.keys().any(|name| name.as_str().contains("ratelimit"))
    }
}

/// Reads until `text` has arrived; returns everything read.
pub async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut read = Vec::new();
    loop {
        let so_far = String::from_utf8_lossy(&read).into_owned();
        if so_far.contains(text) {
            return so_far;
        }
        let count = stream.read_buf(&mut read).await.unwrap();
        assert!(count > 0, "the connection ended after {so_far:?}");
    }
}

/// Waits up to ten seconds until the condition holds.
pub async fn wait_until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    let deadline = SystemClock.elapsed().saturating_add(Duration::from_secs(10).into());
    while !condition().await {
        assert!(SystemClock.elapsed() < deadline, "the condition never holds");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A limiter with one rule, `api`, on a manual clock.
pub fn limiter(clock: &ManualClock, limits: &[&str]) -> Limiter {
    Limiter::with_rules(memory(clock), [rule("api", limits)]).unwrap()
}

pub fn memory(clock: &ManualClock) -> Memory {
    Memory::builder().clock(clock.clone()).build()
}

pub fn rule(name: &str, limits: &[&str]) -> Rule {
    Rule::new(name, limits.iter().map(|limit| limit.parse().unwrap())).unwrap()
}

/// Permits of `key` used and held of the limit with this index.
pub async fn used_and_held(limiter: &Limiter, key: &str, nth: usize) -> (u64, u64) {
    let standing = limiter.inspect(key).await.unwrap()[nth].standing;
    (standing.used, standing.held)
}
