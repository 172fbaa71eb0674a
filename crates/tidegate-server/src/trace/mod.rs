//! One span for each call, sent to an OpenTelemetry collector.
//!
//! # Layout
//!
//! - [`Tracer`] begins spans. [`Span`] is one of them; [`note`] says what was decided meanwhile.
//! - [`parent`]: who has asked, as W3C's `traceparent` tells it. [`sampling`]: which calls have a span.
//! - [`export`]: takes spans to the collector, off the way of any call. [`collector`]: where it is.
//!   `json`: what it is sent.
//!
//! A span names a rule and never a key. Without a tracer a call pays for one look at an `Option`.

pub mod collector;
pub mod export;
mod json;
pub mod parent;
pub mod sampling;
mod span;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderMap;
use tokio::sync::mpsc;

use crate::metrics::Door;
use crate::metrics::exposition::{Exposition, Kind};

use self::collector::Collector;
use self::export::Exporter;
use self::parent::Parent;
use self::sampling::Sampling;
use self::span::{Ids, Record};
pub use self::span::{Note, Span, note};

/// What is traced, and for whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the spans go.
    pub collector: Collector,
    /// Which calls have one that nobody upstream has decided about.
    pub sampling: Sampling,
    /// The `service.name` of all of them.
    pub service_name: Box<str>,
}

/// Begins spans, and hands those that have ended to an [`Exporter`]. It never waits for it.
#[derive(Debug)]
pub struct Tracer {
    queue: mpsc::Sender<Record>,
    sampling: Sampling,
    counts: Arc<Counts>,
}

/// Spans that may wait for the exporter. The next one is dropped, and counted.
pub const QUEUE: usize = 8_192;

impl Tracer {
    /// A tracer, and what takes its spans away.
    pub fn new(options: &Options) -> (Arc<Self>, Exporter) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let counts = Arc::new(Counts::default());
        let exporter = Exporter::new(options, waiting, counts.clone());
        (Arc::new(Self { queue, sampling: options.sampling, counts }), exporter)
    }

    /// A span from now until it is dropped, if this call has one: as the caller has decided, or by the
    /// ratio where nobody has.
    pub fn begin(self: &Arc<Self>, door: Door, headers: Option<&HeaderMap>) -> Option<Span> {
        let parent = headers.and_then(Parent::of);
        let ids = Ids::below(parent);
        let chosen = parent.map_or_else(|| self.sampling.takes(ids.trace), |parent| parent.sampled);
        chosen.then(|| Span::new(self.clone(), door, ids))
    }

    /// What became of the spans so far, in the text format of Prometheus.
    pub fn render(&self) -> String {
        let mut out = Exposition::default();
        let help = "Spans by what became of them: exported; dropped, the queue being full; failed, the \
                    collector not answering; rejected by it.";
        let mut spans = out.family("tidegate_trace_spans_total", Kind::Counter, help);
        let Counts { exported, dropped, failed, rejected } = &*self.counts;
        for (outcome, count) in [
            ("exported", exported),
            ("dropped", dropped),
            ("failed", failed),
            ("rejected", rejected),
        ] {
            spans.sample("", &[("outcome", outcome)], count.load(Ordering::Relaxed));
        }
        out.finish()
    }

    fn hand_over(&self, record: Record) {
        if self.queue.try_send(record).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What became of spans.
#[derive(Default, Debug)]
struct Counts {
    exported: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
    rejected: AtomicU64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_spans_and_counts_them() {
        let options = Options {
            collector: "http://127.0.0.1:1".parse().unwrap(),
            sampling: Sampling::ALL,
            service_name: "tidegate".into(),
        };
        let (tracer, exporter) = Tracer::new(&options);
        for _ in 0..QUEUE + 7 {
            drop(tracer.begin(Door::Resp, None).unwrap());
        }
        let line = r#"tidegate_trace_spans_total{outcome="dropped"} 7"#;
        assert!(tracer.render().contains(line), "{}", tracer.render());
        drop(exporter);
        drop(tracer.begin(Door::Resp, None).unwrap());
        let line = r#"tidegate_trace_spans_total{outcome="dropped"} 8"#;
        assert!(tracer.render().contains(line), "nobody takes it any more: {}", tracer.render());
    }

    #[test]
    fn what_upstream_has_decided_goes_before_the_ratio() {
        let options = |sampling| Options {
            collector: "http://127.0.0.1:1".parse().unwrap(),
            sampling,
            service_name: "tidegate".into(),
        };
        let begins = |sampling, traceparent: Option<&'static str>| {
            let (tracer, _exporter) = Tracer::new(&options(sampling));
            let mut headers = HeaderMap::new();
            if let Some(value) = traceparent {
                headers.insert("traceparent", value.parse().unwrap());
            }
            tracer.begin(Door::Http, Some(&headers)).is_some()
        };
        let sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let not_sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        for (sampling, traceparent, expected) in [
            (Sampling::ALL, None, true),
            (Sampling::NONE, None, false),
            (Sampling::NONE, Some(sampled), true),
            (Sampling::ALL, Some(not_sampled), false),
            (Sampling::ALL, Some("00-nonsense"), true),
            (Sampling::NONE, Some("00-nonsense"), false),
        ] {
            assert_eq!(begins(sampling, traceparent), expected, "{sampling:?} {traceparent:?}");
        }
    }
}
