//! Report as JSON.

use serde_json::{Map, Value, json};
use tidegate::Micros;

use super::load::LoadModel;
use super::report::{BenchReport, EndReason, Quantiles};
use super::workload::{DescriptorTemplate, WorkloadTarget};

impl BenchReport {
    /// One object. Times are in microseconds.
    pub(crate) fn object(&self) -> Value {
        let errors = self.errors.iter().map(
            |errors| json!({ "kind": errors.kind, "count": errors.count, "example": errors.example }),
        );
        json!({
            "target": self.target,
            "options": self.options(),
            "ended": match self.ended {
                EndReason::Done => "done",
                EndReason::Stopped => "stopped",
            },
            "elapsed_us": self.elapsed.get(),
            "requests": self.requests,
            "allowed": self.allowed,
            "denied": self.denied,
            "errors": self.error_count(),
            "unsent": self.unsent,
            "warmup_requests": self.warmup_requests,
            "achieved_per_second": self.achieved(),
            "kept_up": self.kept_up(),
            "latency_us": quantiles(&self.latency),
            "behind_us": self.behind.as_ref().map(quantiles),
            "note": self.note,
            "errors_by_kind": errors.collect::<Vec<_>>(),
        })
    }

    fn options(&self) -> Value {
        let plan = &self.plan;
        let (kind, rate) = match plan.load {
            LoadModel::Closed => ("closed", None),
            LoadModel::Open(rate) => ("open", Some(rate.to_string())),
        };
        let mut options = json!({
            "loop": kind,
            "rate": rate,
            "connections": plan.connections,
            "pipeline": plan.pipeline,
            "duration_us": plan.duration.get(),
            "warmup_us": plan.warmup.get(),
            "timeout_us": plan.timeout.get(),
            "keys": plan.keys,
            "zipf": plan.zipf.map(super::report_text::thousandths),
            "seed": plan.seed,
            "cost": self.workload.cost,
        });
        match &self.workload.target {
            WorkloadTarget::Rule(name) => options["rule"] = name.as_str().into(),
            WorkloadTarget::Limit(limit) => options["limit"] = limit.to_string().into(),
            WorkloadTarget::Descriptor(DescriptorTemplate { domain, entries }) => {
                options["domain"] = domain.as_str().into();
                let entry = |(key, value): &(String, String)| json!({ "key": key, "value": value });
                options["descriptor"] = entries.iter().map(entry).collect();
            }
        }
        options
    }
}

fn quantiles(of: &Quantiles) -> Value {
    let mut object = Map::new();
    let mut set = |name: &str, span: Micros| object.insert(name.into(), span.get().into());
    set("min", of.min);
    set("mean", of.mean);
    for ((_, name), span) in Quantiles::PERCENTILES.iter().zip(of.percentiles) {
        set(&name.replace('.', "_"), span);
    }
    set("max", of.max);
    Value::Object(object)
}
