//! A server on a socket that keeps a log of when it was called, and answers by a script.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use tidegate::{Clock, Limit, Limiter, Memory, SystemClock};

pub(crate) struct Server {
    address: SocketAddr,
    arrivals: Arc<Mutex<Vec<u64>>>,
}

impl Server {
    /// Answers the call of each number, counted from 0, as `script` says.
    pub(crate) async fn start(script: impl Fn(usize) -> Response + Send + Sync + 'static) -> Self {
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

    /// Serves at most what `limit` allows.
    pub(crate) async fn limited(limit: &str) -> Self {
        let limiter = Limiter::new(Memory::default(), limit.parse::<Limit>().unwrap());
        Self::start(move |_| {
            let decision = limiter.check_now("everybody").unwrap();
            if decision.allowed() {
                return "served".into_response();
            }
            let wait = decision.retry_after().span().unwrap();
            refused(wait.get().div_ceil(1_000_000))
        })
        .await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// When it was called, in milliseconds of the system's clock.
    pub(crate) fn arrivals(&self) -> Vec<u64> {
        self.arrivals.lock().unwrap().clone()
    }
}

/// An answer that says to come back after so many seconds.
pub(crate) fn refused(seconds: u64) -> Response {
    (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, seconds.to_string())]).into_response()
}
