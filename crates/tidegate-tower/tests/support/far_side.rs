//! A far side in the same process: it keeps a log of who called when, and answers by a script.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tidegate::{Clock, ManualClock, Micros};
use tower::Service;

/// What becomes of a call.
pub(crate) enum Answer {
    Now(Response<()>),
    After(Duration, Response<()>),
    Never,
    Failure,
}

/// Decides what becomes of the call of this number, counted from 0.
type Script = Box<dyn FnMut(usize, &Request<()>) -> Answer + Send>;

#[derive(Clone)]
pub(crate) struct FarSide {
    clock: ManualClock,
    start: Micros,
    log: Arc<Mutex<Vec<(u64, String)>>>,
    script: Arc<Mutex<Script>>,
}

impl FarSide {
    pub(crate) fn new(
        clock: &ManualClock,
        script: impl FnMut(usize, &Request<()>) -> Answer + Send + 'static,
    ) -> Self {
        let script: Script = Box::new(script);
        Self {
            clock: clock.clone(),
            start: clock.elapsed(),
            log: Arc::default(),
            script: Arc::new(Mutex::new(script)),
        }
    }

    /// Who called, and when, in milliseconds since the start.
    pub(crate) fn log(&self) -> Vec<(u64, String)> {
        self.log.lock().unwrap().clone()
    }

    /// When somebody called, in milliseconds since the start.
    pub(crate) fn times(&self) -> Vec<u64> {
        self.log().into_iter().map(|(at, _)| at).collect()
    }
}

impl Service<Request<()>> for FarSide {
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
        let answer = (*self.script.lock().unwrap())(log.len() - 1, &request);
        let clock = self.clock.clone();
        Box::pin(async move {
            match answer {
                Answer::Now(response) => Ok(response),
                Answer::After(span, response) => {
                    clock.sleep_until(clock.elapsed().saturating_add(span.into())).await;
                    Ok(response)
                }
                Answer::Never => std::future::pending().await,
                Answer::Failure => Err(std::io::Error::other("connection refused")),
            }
        })
    }
}

/// An answer with this status and these headers, as `name: value`.
pub(crate) fn answer(status: u16, lines: &[&str]) -> Response<()> {
    let mut response = Response::builder().status(status);
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        response = response.header(name, value);
    }
    response.body(()).unwrap()
}
