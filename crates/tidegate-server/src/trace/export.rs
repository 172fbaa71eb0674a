//! Takes spans to a collector: in batches, each within a deadline, and never in the way of a call.
//!
//! A batch that the collector does not take is counted and gone. A collector that is not there is tried
//! again after a pause that grows; meanwhile spans wait in the queue until it is full.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinHandle;
use tower::BoxError;
use tracing::{info, warn};

use super::collector::Collector;
use super::span::Record;
use super::{Counts, Options, json};
use crate::drain::{self, Drain, Drainer};

/// The most spans in one request.
const MAX_BATCH: usize = 512;
/// How long a span waits for others to go with it.
const GATHER: Duration = Duration::from_secs(1);
/// How long a request may take, to connect included.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long the last spans may take when the server ends.
const LAST_DEADLINE: Duration = Duration::from_secs(3);
/// How long the collector is left alone that has failed: at first, and in the end.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// The longest answer in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// What takes the spans of a tracer away, once it is started.
#[derive(Debug)]
pub struct Exporter {
    waiting: Receiver<Record>,
    counts: Arc<Counts>,
    collector: Collector,
    resource: Value,
    connection: Option<SendRequest<Full<Bytes>>>,
    pause: Duration,
}

/// An exporter at work.
#[derive(Debug)]
pub struct Exporting {
    drainer: Drainer,
    work: JoinHandle<()>,
}

impl Exporting {
    /// Sends what is left, as far as that can be done within a deadline.
    pub async fn finish(self) {
        self.drainer.begin();
        if tokio::time::timeout(LAST_DEADLINE, self.work).await.is_err() {
            warn!("the collector does not take the last spans; leaving them");
        }
    }
}

impl Exporter {
    pub(super) fn new(options: &Options, waiting: Receiver<Record>, counts: Arc<Counts>) -> Self {
        let resource = json::resource(&options.service_name);
        let collector = options.collector.clone();
        Self { waiting, counts, collector, resource, connection: None, pause: Duration::ZERO }
    }

    /// Begins its work.
    pub fn start(self) -> Exporting {
        let (drainer, drain) = drain::channel();
        Exporting { drainer, work: tokio::spawn(self.work(drain)) }
    }

    async fn work(mut self, mut drain: Drain) {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        while !drain.has_begun() {
            tokio::select! {
                () = gather(&mut self.waiting, &mut batch) => {}
                () = drain.begun() => break,
            }
            self.export(&mut batch).await;
            tokio::select! {
                () = tokio::time::sleep(self.pause) => {}
                () = drain.begun() => {}
            }
        }
        self.waiting.close();
        loop {
            while batch.len() < MAX_BATCH
                && let Ok(record) = self.waiting.try_recv()
            {
                batch.push(record);
            }
            if batch.is_empty() {
                break;
            }
            self.export(&mut batch).await;
        }
    }

    /// Sends a batch, and counts what became of it.
    async fn export(&mut self, batch: &mut Vec<Record>) {
        let body = Bytes::from(json::request(&self.resource, batch).to_string());
        let sent = tokio::time::timeout(DEADLINE, self.send(body)).await;
        let sent = sent.unwrap_or_else(|_| Err("no answer in time".into()));
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        batch.clear();
        match sent {
            Ok(rejected) => {
                let rejected = rejected.min(count);
                self.counts.exported.fetch_add(count - rejected, Ordering::Relaxed);
                self.counts.rejected.fetch_add(rejected, Ordering::Relaxed);
                if !self.pause.is_zero() {
                    info!(collector = %self.collector, "spans are taken again");
                }
                self.pause = Duration::ZERO;
            }
            Err(error) => {
                self.connection = None;
                self.counts.failed.fetch_add(count, Ordering::Relaxed);
                if self.pause.is_zero() {
                    warn!(collector = %self.collector, %error, "spans are not taken; trying on, calls are answered");
                }
                let [first, longest] = PAUSES;
                self.pause = (self.pause * 2).clamp(first, longest);
            }
        }
    }

    /// How many spans of a body the collector did not want.
    async fn send(&mut self, body: Bytes) -> Result<u64, BoxError> {
        if let Some(mut connection) = self.connection.take().filter(|open| !open.is_closed()) {
            // It may have been closed just now, since nobody used it.
            if let Ok(rejected) = self.post(&mut connection, body.clone()).await {
                self.connection = Some(connection);
                return rejected;
            }
        }
        let stream = TcpStream::connect(&*self.collector.host).await?;
        let (mut connection, driver) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move { driver.await.ok() });
        let rejected = self.post(&mut connection, body).await?;
        self.connection = Some(connection);
        rejected
    }

    /// Sends a body over a connection. The outer error is that of the connection.
    async fn post(
        &self,
        connection: &mut SendRequest<Full<Bytes>>,
        body: Bytes,
    ) -> Result<Result<u64, BoxError>, BoxError> {
        connection.ready().await?;
        let request = Request::post(&*self.collector.path)
            .header(HOST, &*self.collector.host)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let response = connection.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await?.to_bytes();
        Ok(rejected(status, &body))
    }
}

/// Waits for a span, and then a while for more.
async fn gather(waiting: &mut Receiver<Record>, batch: &mut Vec<Record>) {
    if waiting.recv_many(batch, MAX_BATCH).await == 0 {
        // Nobody is left who could begin one.
        return std::future::pending().await;
    }
    let more = async {
        while batch.len() < MAX_BATCH {
            let room = MAX_BATCH - batch.len();
            if waiting.recv_many(batch, room).await == 0 {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(GATHER, more).await;
}

/// How many spans the collector did not want, as its answer tells.
fn rejected(status: StatusCode, body: &[u8]) -> Result<u64, BoxError> {
    if !status.is_success() {
        return Err(format!("the collector answered {}", status.as_u16()).into());
    }
    // Whoever takes all of them may answer anything.
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let rejected = &body["partialSuccess"]["rejectedSpans"];
    let in_text = || rejected.as_str().and_then(|text| text.parse().ok());
    Ok(rejected.as_u64().or_else(in_text).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_collector_did_not_want_is_a_number_or_a_text() {
        let of = |status: u16, body: &str| {
            rejected(StatusCode::from_u16(status).unwrap(), body.as_bytes()).ok()
        };
        for (status, body, expected) in [
            (200, "{}", Some(0)),
            (200, "", Some(0)),
            (200, r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"x"}}"#, Some(3)),
            (202, r#"{"partialSuccess":{"rejectedSpans":3}}"#, Some(3)),
            (200, r#"{"partialSuccess":{"rejectedSpans":-3}}"#, Some(0)),
            (400, "{}", None),
            (503, "", None),
            (301, "", None),
        ] {
            assert_eq!(of(status, body), expected, "{status} {body}");
        }
    }
}
