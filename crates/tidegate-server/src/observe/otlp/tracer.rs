//! Begins spans.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::HeaderMap;

use super::collector::Collector;
use super::export::Exporter;
use super::queue::{SpanCounts, SpanQueue};
use super::record::SpanContext;
use super::sampling::SamplingRatio;
use super::span::RequestSpan;
use super::traceparent::TraceParent;
use crate::observe::metrics::ListenerKind;
use crate::observe::metrics::exposition::{Exposition, MetricType};

/// Which calls are traced, and where spans go.
#[derive(Clone, Debug)]
pub struct OtlpOptions {
    /// Receives spans as OTLP over HTTP.
    pub collector: Collector,
    /// The ratio of calls with a span, among those without a parent span.
    pub sampling: SamplingRatio,
    /// The `service.name` of all spans.
    pub service_name: Box<str>,
}

/// Begins spans, and queues them for an [`Exporter`] when they end. It never waits for the
/// exporter.
#[derive(Debug)]
pub struct Tracer {
    queue: Arc<SpanQueue>,
    sampling: SamplingRatio,
}

impl Tracer {
    /// A tracer and the exporter of its spans.
    pub fn new(options: &OtlpOptions) -> (Arc<Self>, Exporter) {
        let (queue, waiting) = SpanQueue::new();
        let OtlpOptions { collector, sampling, service_name } = options;
        let exporter =
            Exporter::new(collector.clone(), service_name, waiting, queue.counts.clone());
        (Arc::new(Self { queue: Arc::new(queue), sampling: *sampling }), exporter)
    }

    /// A span from now until it is dropped, if this call is sampled: as its parent span decided,
    /// or by the ratio if it has none.
    pub fn begin(
        &self,
        listener: ListenerKind,
        headers: Option<&HeaderMap>,
    ) -> Option<RequestSpan> {
        let parent = headers.and_then(TraceParent::of);
        let ids = SpanContext::below(parent);
        let sampled =
            parent.map_or_else(|| self.sampling.takes(ids.trace), |parent| parent.sampled);
        sampled.then(|| RequestSpan::new(self.queue.clone(), listener, ids))
    }

    /// The number of spans by result, in the text format of Prometheus.
    pub fn render(&self) -> String {
        let mut out = Exposition::default();
        let help = "Spans by result: exported, dropped (queue full), failed (collector \
                    unavailable), rejected.";
        let mut spans = out.family("tidegate_trace_spans_total", MetricType::Counter, help);
        let SpanCounts { exported, dropped, failed, rejected } = &*self.queue.counts;
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::otlp::queue::MAX_QUEUED;

    #[test]
    fn a_full_queue_drops_spans_and_counts_them() {
        let options = OtlpOptions {
            collector: "http://127.0.0.1:1".parse().unwrap(),
            sampling: SamplingRatio::ALL,
            service_name: "tidegate".into(),
        };
        let (tracer, exporter) = Tracer::new(&options);
        for _ in 0..MAX_QUEUED + 7 {
            drop(tracer.begin(ListenerKind::Resp, None).unwrap());
        }
        let line = r#"tidegate_trace_spans_total{outcome="dropped"} 7"#;
        assert!(tracer.render().contains(line), "{}", tracer.render());
        drop(exporter);
        drop(tracer.begin(ListenerKind::Resp, None).unwrap());
        let line = r#"tidegate_trace_spans_total{outcome="dropped"} 8"#;
        assert!(tracer.render().contains(line), "the exporter is gone: {}", tracer.render());
    }

    #[test]
    fn the_parent_span_decides_before_the_ratio() {
        let options = |sampling| OtlpOptions {
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
            tracer.begin(ListenerKind::Http, Some(&headers)).is_some()
        };
        let sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let not_sampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        for (sampling, traceparent, expected) in [
            (SamplingRatio::ALL, None, true),
            (SamplingRatio::NONE, None, false),
            (SamplingRatio::NONE, Some(sampled), true),
            (SamplingRatio::ALL, Some(not_sampled), false),
            (SamplingRatio::ALL, Some("00-nonsense"), true),
            (SamplingRatio::NONE, Some("00-nonsense"), false),
        ] {
            assert_eq!(begins(sampling, traceparent), expected, "{sampling:?} {traceparent:?}");
        }
    }
}
