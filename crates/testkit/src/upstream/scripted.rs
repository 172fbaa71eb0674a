//! An upstream in the same process that logs its calls and replies by a script.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tidegate::{Clock, ManualClock, Micros};
use tower::Service;

/// What happens to a call.
pub enum UpstreamReply {
    Now(Response<()>),
    After(Duration, Response<()>),
    Never,
    Failure,
}

/// Chooses the reply to a call by its number, counted from 0.
type UpstreamScript = Box<dyn FnMut(usize, &Request<()>) -> UpstreamReply + Send>;

#[derive(Clone)]
pub struct ScriptedUpstream {
    clock: ManualClock,
    start: Micros,
    log: Arc<Mutex<Vec<(u64, String)>>>,
    script: Arc<Mutex<UpstreamScript>>,
}

impl ScriptedUpstream {
    pub fn new(
        clock: &ManualClock,
        script: impl FnMut(usize, &Request<()>) -> UpstreamReply + Send + 'static,
    ) -> Self {
        let script: UpstreamScript = Box::new(script);
        Self {
            clock: clock.clone(),
            start: clock.elapsed(),
            log: Arc::default(),
            script: Arc::new(Mutex::new(script)),
        }
    }

    /// Time of each call in milliseconds since the start, and its URI.
    pub fn log(&self) -> Vec<(u64, String)> {
        self.log.lock().unwrap().clone()
    }

    /// Time of each call in milliseconds since the start.
    pub fn times(&self) -> Vec<u64> {
        self.log().into_iter().map(|(at, _)| at).collect()
    }
}

impl Service<Request<()>> for ScriptedUpstream {
    type Response = Response<()>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<Response<()>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let at = self.clock.elapsed().saturating_sub(self.start).get() / 1_000;
        let mut log = self.log.lock().unwrap();
        log.push((at, request.uri().to_string()));
        let reply = (*self.script.lock().unwrap())(log.len() - 1, &request);
        let clock = self.clock.clone();
        Box::pin(async move {
            match reply {
                UpstreamReply::Now(response) => Ok(response),
                UpstreamReply::After(span, response) => {
                    clock.sleep_until(clock.elapsed().saturating_add(span.into())).await;
                    Ok(response)
                }
                UpstreamReply::Never => std::future::pending().await,
                UpstreamReply::Failure => Err(std::io::Error::other("connection refused")),
            }
        })
    }
}

/// A response with this status and these headers, as `name: value`.
pub fn response(status: u16, lines: &[&str]) -> Response<()> {
    let mut response = Response::builder().status(status);
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        response = response.header(name, value);
    }
    response.body(()).unwrap()
}
