//! A report as JSON.

use serde_json::{Map, Value, json};
use tidegate::Micros;

use super::plan::Load;
use super::question::{About, Descriptor};
use super::report::{Ended, Report, Spread};

impl Report {
    /// All of it as one object. Times are in microseconds.
    pub fn object(&self) -> Value {
        let errors = self.errors.iter().map(
            |errors| json!({ "kind": errors.kind, "count": errors.count, "example": errors.example }),
        );
        json!({
            "target": self.target,
            "options": self.options(),
            "ended": match self.ended {
                Ended::Done => "done",
                Ended::Stopped => "stopped",
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
            "latency_us": spread(&self.latency),
            "behind_us": self.behind.as_ref().map(spread),
            "note": self.note,
            "errors_by_kind": errors.collect::<Vec<_>>(),
        })
    }

    fn options(&self) -> Value {
        let (plan, about) = (&self.plan, &self.question.about);
        let (kind, rate) = match plan.load {
            Load::Closed => ("closed", None),
            Load::Open(rate) => ("open", Some(rate.to_string())),
        };
        let mut options = json!({
            "loop": kind,
            "rate": rate,
            "connections": plan.connections,
            "pipeline": plan.pipeline,
            "duration_us": plan.duration.get(),
            "warmup_us": plan.warmup.get(),
            "timeout_us": plan.patience.get(),
            "keys": plan.keys,
            "zipf": plan.zipf.map(super::words::thousandths),
            "seed": plan.seed,
            "cost": self.question.cost,
        });
        match about {
            About::Rule(name) => options["rule"] = name.as_str().into(),
            About::Limit(limit) => options["limit"] = limit.to_string().into(),
            About::Descriptor(Descriptor { domain, entries }) => {
                options["domain"] = domain.as_str().into();
                let entry = |(key, value): &(String, String)| json!({ "key": key, "value": value });
                options["descriptor"] = entries.iter().map(entry).collect();
            }
        }
        options
    }
}

fn spread(spread: &Spread) -> Value {
    let mut object = Map::new();
    let mut set = |name: &str, span: Micros| object.insert(name.into(), span.get().into());
    set("min", spread.min);
    set("mean", spread.mean);
    for ((_, name), span) in Spread::PERCENTILES.iter().zip(spread.percentiles) {
        set(&name.replace('.', "_"), span);
    }
    set("max", spread.max);
    Value::Object(object)
}
