//! Report as JSON lines, each with a `type`.

use std::io::{self, Write};

use serde_json::{Value, json};
use tidegate::{Micros, Wait};

use super::counts::RuleCounts;
use super::policy_run::PolicyRun;
use super::report_text::MAX_KEYS;
use super::sizing::{Percentile, SizeEstimates};
use super::top_keys::{KeyCount, TopKeys};
use super::{DeniedRequest, LogSummary, Replay, time_text};

impl Replay {
    pub(crate) fn write_json(&self, to: &mut impl Write) -> io::Result<()> {
        let mut write_object = |object: Value| writeln!(to, "{object}");
        write_object(self.summary.object())?;
        for example in &self.summary.examples {
            write_object(
                json!({ "type": "malformed", "line": example.line, "why": example.why, "text": example.text }),
            )?;
        }
        for note in self.notes() {
            write_object(json!({ "type": "note", "text": note }))?;
        }
        for run in &self.runs {
            run.objects(self.suggest).into_iter().try_for_each(&mut write_object)?;
        }
        let (Some(comparison), [one, other]) = (&self.comparison, &*self.runs) else {
            return Ok(());
        };
        let [first, second] = &comparison.only;
        write_object(
            json!({ "type": "comparison", "configs": [one.name, other.name], "denied_by_both": comparison.both,
                    "denied_by_first_only": first.denied, "denied_by_second_only": second.denied }),
        )?;
        for (run, only) in [(one, first), (other, second)] {
            for counted in only.keys.most(MAX_KEYS, None) {
                write_object(run.key_object("only_denied_key", counted, &only.keys))?;
            }
        }
        Ok(())
    }
}

impl DeniedRequest<'_> {
    /// The denial as an object.
    pub(crate) fn object(&self) -> Value {
        let Self { config, line, at, rule, key, wait } = self;
        json!({ "type": "denied", "config": config, "line": line, "at": time_text(*at), "rule": rule, "key": key,
                "retry_after_ms": millis(Some(*wait)) })
    }
}

impl LogSummary {
    fn object(&self) -> Value {
        json!({
            "type": "log", "log": self.log, "format": self.format.map(|format| format.name()), "lines": self.lines,
            "requests": self.requests, "malformed": self.malformed, "out_of_order": self.out_of_order,
            "without_address": self.without_address, "from": self.first.map(time_text),
            "to": self.last.map(time_text), "complete": self.cut_short.is_none(),
        })
    }
}

impl PolicyRun {
    fn objects(&self, suggest: Option<Percentile>) -> Vec<Value> {
        let Self { name, counts, .. } = self;
        let mut objects = vec![json!({
            "type": "policy", "config": name, "matched": counts.matched, "denied": counts.denied,
            "would_deny": counts.would_deny, "refused": counts.refused, "undecided": counts.undecided,
        })];
        for (place, rule) in counts.rules.iter().enumerate() {
            objects.push(self.rule_object(rule));
            for (kind, top) in
                [("denied_key", &counts.denied_keys), ("would_deny_key", &counts.would_deny_keys)]
            {
                objects.extend(
                    top.most(MAX_KEYS, Some(place))
                        .into_iter()
                        .map(|counted| self.key_object(kind, counted, top)),
                );
            }
        }
        let seconds = counts.timeline.width().get() / 1_000_000;
        objects.extend(counts.timeline.buckets().map(|(from, bucket)| {
            json!({ "type": "bucket", "config": name, "from": time_text(from), "seconds": seconds,
                    "requests": bucket.requests, "denied": bucket.denied, "would_deny": bucket.would_deny })
        }));
        if let Some(percentile) = suggest {
            objects.extend(self.suggestions(percentile));
        }
        objects
    }

    fn rule_object(&self, rule: &RuleCounts) -> Value {
        let instant = |at: Option<Micros>| at.map(time_text);
        let limits: Vec<Value> = rule
            .limits
            .iter()
            .map(|(limit, count)| {
                let denied = if limit.is_shadow() { "would_deny" } else { "denied" };
                json!({ "policy": limit.policy(), "limit": limit.limit().to_string(), denied: count })
            })
            .collect();
        json!({
            "type": "rule", "config": self.name, "rule": rule.name, "matched": rule.matched,
            "allowed": rule.matched - rule.denied, "denied": rule.denied, "denied_by_list": rule.denied_by_list,
            "exempt": rule.exempt, "would_deny": rule.would_deny, "first_denial": instant(rule.first_denial),
            "last_denial": instant(rule.last_denial), "longest_wait_ms": millis(rule.longest_wait),
            "never": rule.longest_wait == Some(Wait::Never), "limits": limits,
        })
    }

    fn key_object(&self, kind: &str, counted: &KeyCount, top: &TopKeys) -> Value {
        let rule = &self.counts.rules[counted.rule].name;
        json!({ "type": kind, "config": self.name, "rule": rule, "key": counted.key, "count": counted.count,
                "exact": top.is_exact() })
    }

    fn suggestions(&self, percentile: Percentile) -> impl Iterator<Item = Value> {
        let size = |size: u64| (size != SizeEstimates::BEYOND).then_some(size);
        self.distributions(percentile).map(move |found| {
            json!({
                "type": "suggestion", "config": self.name, "policy": found.limit.policy(),
                "limit": found.limit.limit().to_string(), "percentile": percentile.to_string(),
                "suggested": found.suggested.as_ref().map(ToString::to_string), "keys": found.keys,
                "uncounted_keys": found.uncounted, "upper_bound": found.is_upper_bound,
                "keys_above": found.keys_above,
                "need": { "p50": size(found.p50), "p90": size(found.p90), "p99": size(found.p99),
                          "max": size(found.max), "wanted": size(found.wanted) },
            })
        })
    }
}

/// Rounded up; `None` if there is no wait, or if waiting never helps.
fn millis(wait: Option<Wait>) -> Option<u64> {
    wait.and_then(Wait::span).map(|span| span.get().div_ceil(1_000))
}
