//! An upstream on a socket that logs its calls and replies by a script.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use tidegate::{Clock, Limit, Limiter, Memory, SystemClock};

pub struct UpstreamServer {
    address: SocketAddr,
    arrivals: Arc<Mutex<Vec<u64>>>,
}

impl UpstreamServer {
    /// Replies to each call by its number, counted from 0.
    pub async fn start(script: impl Fn(usize) -> Response + Send + Sync + 'static) -> Self {
        let arrivals: Arc<Mutex<Vec<u64>>> = Arc::default();
        let script = Arc::new(script);
        let app = Router::new().fallback({
            let arrivals = arrivals.clone();
            move || {
                let (arrivals, script) = (arrivals.clone(), script.clone());
                async move {
                    let mut arrivals = arrivals.lock().unwrap();
                    arrivals.push(SystemClock.elapsed().get() / 1_000);
                    script(arrivals.len() - 1)
                }
            }
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { address, arrivals }
    }

    /// Replies 200 to what `limit` allows and 429 to the rest.
    pub async fn limited(limit: &str) -> Self {
        let limiter = Limiter::new(Memory::default(), limit.parse::<Limit>().unwrap());
        Self::start(move |_| {
            let decision = limiter.check_now("all callers").unwrap();
            if decision.allowed() {
                return "served".into_response();
            }
            let wait = decision.retry_after().span().unwrap();
            too_many_requests(wait.get().div_ceil(1_000_000))
        })
        .await
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Time of each call in milliseconds of the system clock.
    pub fn arrivals(&self) -> Vec<u64> {
        self.arrivals.lock().unwrap().clone()
    }
}

/// 429 with `Retry-After` in seconds.
pub fn too_many_requests(seconds: u64) -> Response {
    (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, seconds.to_string())]).into_response()
}
