//! The bounded queue between calls and the exporter, and what happened to its spans.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use super::record::SpanRecord;

/// Spans that may wait for the exporter. Further ones are dropped and counted.
pub(crate) const MAX_QUEUED: usize = 8_192;

/// Numbers of spans by result.
#[derive(Default, Debug)]
pub(super) struct SpanCounts {
    pub(super) exported: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) rejected: AtomicU64,
}

/// The sending side of the queue.
#[derive(Debug)]
pub(super) struct SpanQueue {
    sender: mpsc::Sender<SpanRecord>,
    pub(super) counts: Arc<SpanCounts>,
}

impl SpanQueue {
    pub(super) fn new() -> (Self, mpsc::Receiver<SpanRecord>) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED);
        (Self { sender, counts: Arc::default() }, receiver)
    }

    /// Queues a span that has ended. It never waits.
    pub(super) fn push(&self, record: SpanRecord) {
        if self.sender.try_send(record).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
