//! Exports spans to a collector over OTLP/HTTP: in batches, each with a deadline, outside of calls.
//!
//! A batch that the collector does not accept is counted and dropped. After a failure the exporter
//! pauses, longer each time. Meanwhile spans wait in the queue until it is full.

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
use super::json;
use super::queue::SpanCounts;
use super::record::SpanRecord;
use crate::shutdown;
use crate::shutdown::{Shutdown, ShutdownTrigger};

/// The maximum number of spans in one request.
const MAX_BATCH: usize = 512;
/// How long a span waits for a batch to fill.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// The timeout of a request, including the connection.
const DEADLINE: Duration = Duration::from_secs(5);
/// The timeout for the last spans at shutdown.
const LAST_DEADLINE: Duration = Duration::from_secs(3);
/// The first and the longest pause after a failure.
const BACKOFF: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// The maximum size of a response in bytes.
const MAX_RESPONSE: usize = 64 << 10;

/// Exports the spans of a tracer once it is started.
#[derive(Debug)]
pub struct Exporter {
    waiting: Receiver<SpanRecord>,
    counts: Arc<SpanCounts>,
    collector: Collector,
    resource: Value,
    connection: Option<SendRequest<Full<Bytes>>>,
    pause: Duration,
}

#[derive(Debug)]
pub struct ExporterTask {
    drainer: ShutdownTrigger,
    work: JoinHandle<()>,
}

impl ExporterTask {
    /// Exports the queued spans, for at most 3 s, and stops.
    pub async fn finish(self) {
        self.drainer.begin();
        if tokio::time::timeout(LAST_DEADLINE, self.work).await.is_err() {
            warn!("last spans not exported in time; dropping them");
        }
    }
}

impl Exporter {
    pub(super) fn new(
        collector: Collector,
        service_name: &str,
        waiting: Receiver<SpanRecord>,
        counts: Arc<SpanCounts>,
    ) -> Self {
        let resource = json::resource(service_name);
        Self { waiting, counts, collector, resource, connection: None, pause: Duration::ZERO }
    }

    /// Spawns the export task.
    pub fn start(self) -> ExporterTask {
        let (drainer, drain) = shutdown::channel();
        ExporterTask { drainer, work: tokio::spawn(self.work(drain)) }
    }

    async fn work(mut self, mut drain: Shutdown) {
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

    /// Sends a batch and counts its spans by result.
    async fn export(&mut self, batch: &mut Vec<SpanRecord>) {
        let body = Bytes::from(json::request(&self.resource, batch).to_string());
        let sent = tokio::time::timeout(DEADLINE, self.send(body)).await;
        let sent = sent.unwrap_or_else(|_| Err("timed out".into()));
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        batch.clear();
        match sent {
            Ok(rejected) => {
                let rejected = rejected.min(count);
                self.counts.exported.fetch_add(count - rejected, Ordering::Relaxed);
                self.counts.rejected.fetch_add(rejected, Ordering::Relaxed);
                if !self.pause.is_zero() {
                    info!(collector = %self.collector, "span export resumed");
                }
                self.pause = Duration::ZERO;
            }
            Err(error) => {
                self.connection = None;
                self.counts.failed.fetch_add(count, Ordering::Relaxed);
                if self.pause.is_zero() {
                    warn!(collector = %self.collector, %error, "span export failed; retrying");
                }
                let [first, longest] = BACKOFF;
                self.pause = (self.pause * 2).clamp(first, longest);
            }
        }
    }

    /// Sends a body; returns how many of its spans the collector rejected.
    async fn send(&mut self, body: Bytes) -> Result<u64, BoxError> {
        if let Some(mut connection) = self.connection.take().filter(|open| !open.is_closed()) {
            // The collector may have just closed it as idle; then a new connection is tried.
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

    /// Sends a body over a connection. The outer error is an error of the connection.
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
        let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await?.to_bytes();
        Ok(rejected(status, &body))
    }
}

/// Waits for a span, and then up to [`BATCH_DELAY`] for more.
async fn gather(waiting: &mut Receiver<SpanRecord>, batch: &mut Vec<SpanRecord>) {
    if waiting.recv_many(batch, MAX_BATCH).await == 0 {
        // The queue is closed: no tracer and no open span is left.
        return std::future::pending().await;
    }
    let more = async {
        while batch.len() < MAX_BATCH {
            let free = MAX_BATCH - batch.len();
            if waiting.recv_many(batch, free).await == 0 {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(BATCH_DELAY, more).await;
}

/// How many spans the collector rejected, according to its response.
fn rejected(status: StatusCode, body: &[u8]) -> Result<u64, BoxError> {
    if !status.is_success() {
        return Err(format!("the collector returned {}", status.as_u16()).into());
    }
    // A collector that accepts all spans may return any body.
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let rejected = &body["partialSuccess"]["rejectedSpans"];
    let in_text = || rejected.as_str().and_then(|text| text.parse().ok());
    Ok(rejected.as_u64().or_else(in_text).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_rejected_spans_is_a_number_or_a_text() {
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
