//! A service on a socket, and clients for it.

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

#[derive(Clone)]
pub(crate) struct Site {
    address: SocketAddr,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Site {
    /// Serves, and tells who each connection is from.
    pub(crate) async fn start(app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self::at(address)
    }

    /// Serves everything that the layer lets pass.
    pub(crate) async fn behind(layer: RateLimitLayer) -> Self {
        Self::start(Router::new().fallback(|| async { "served" }).layer(layer)).await
    }

    /// What somebody else serves there.
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self { address, client: Client::builder(TokioExecutor::new()).build_http() }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.ask("GET", path, &[]).await
    }

    /// Asks, and reads the whole answer.
    pub(crate) async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
        let uri = format!("http://{}{path}", self.address);
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.client.request(request.body(Empty::new()).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        Reply { status: head.status.as_u16(), headers: head.headers, body }
    }

    /// How many of so many requests, one after the other, pass.
    pub(crate) async fn passes(&self, of: usize, headers: &[(&str, &str)]) -> usize {
        let mut passed = 0;
        for _ in 0..of {
            match self.ask("GET", "/", headers).await.status {
                200 => passed += 1,
                429 => {}
                other => panic!("{other}"),
            }
        }
        passed
    }

    /// A connection on which a request was sent, and nothing was read yet.
    pub(crate) async fn connect(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: site\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }
}

/// What was answered, as far as it came.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Reply {
    /// The values of a header, in one list.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let values = self.headers.get_all(name).iter().map(|value| value.to_str().unwrap());
        Some(values.collect::<Vec<_>>().join(", ")).filter(|list| !list.is_empty())
    }

    pub(crate) fn has_limits(&self) -> bool {
        let about_limits = |name: &str| name.contains("ratelimit");
        self.headers.keys().any(|name| about_limits(name.as_str()))
    }
}

/// Reads what has come, until `text` is in it.
pub(crate) async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut read = Vec::new();
    loop {
        let so_far = String::from_utf8_lossy(&read).into_owned();
        if so_far.contains(text) {
            return so_far;
        }
        let count = stream.read_buf(&mut read).await.unwrap();
        assert!(count > 0, "it ended after {so_far:?}");
    }
}

/// Waits until something is the case, for at most some seconds.
pub(crate) async fn until<F: Future<Output = bool>>(mut is_so: impl FnMut() -> F) {
    let deadline = SystemClock.elapsed().saturating_add(Duration::from_secs(10).into());
    while !is_so().await {
        assert!(SystemClock.elapsed() < deadline, "it does not come to be so");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A limiter of one rule, `api`, on a clock that is turned by hand.
pub(crate) fn limiter(clock: &ManualClock, limits: &[&str]) -> Limiter {
    Limiter::with_rules(memory(clock), [rule("api", limits)]).unwrap()
}

pub(crate) fn memory(clock: &ManualClock) -> Memory {
    Memory::builder().clock(clock.clone()).build()
}

pub(crate) fn rule(name: &str, limits: &[&str]) -> Rule {
    Rule::new(name, limits.iter().map(|limit| limit.parse().unwrap())).unwrap()
}

/// What `key` has used and holds of the limit of this number, counted from 0.
pub(crate) async fn standing(limiter: &Limiter, key: &str, nth: usize) -> (u64, u64) {
    let standing = limiter.inspect(key).await.unwrap()[nth].standing;
    (standing.used, standing.held)
}
