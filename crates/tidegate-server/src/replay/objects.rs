//! What is told about a replay, in JSON: one object per line, each with its `type`.

use std::io::{self, Write};

use serde_json::{Value, json};
use tidegate::{Micros, Wait};

use super::candidate::Candidate;
use super::need::{Needs, Percentile};
use super::report::KEYS;
use super::tally::RuleTally;
use super::top::{Counted, Top};
use super::{Denied, Log, Replay, instant_text};

impl Replay {
    /// Tells what was found, an object per line.
    pub fn write_json(&self, to: &mut impl Write) -> io::Result<()> {
        let mut say = |object: Value| writeln!(to, "{object}");
        say(self.read.object())?;
        for example in &self.read.examples {
            say(
                json!({ "type": "malformed", "line": example.line, "why": example.why, "text": example.text }),
            )?;
        }
        for note in self.notes() {
            say(json!({ "type": "note", "text": note }))?;
        }
        for candidate in &self.candidates {
            candidate.objects(self.suggest).into_iter().try_for_each(&mut say)?;
        }
        let (Some(comparison), [one, other]) = (&self.comparison, &*self.candidates) else {
            return Ok(());
        };
        let [first, second] = &comparison.only;
        say(
            json!({ "type": "comparison", "configs": [one.name, other.name], "denied_by_both": comparison.both,
                    "denied_by_first_only": first.denied, "denied_by_second_only": second.denied }),
        )?;
        for (candidate, only) in [(one, first), (other, second)] {
            for counted in only.keys.most(KEYS, None) {
                say(candidate.key_object("only_denied_key", counted, &only.keys))?;
            }
        }
        Ok(())
    }
}

impl Denied<'_> {
    /// The denial as an object.
    pub fn object(&self) -> Value {
        let Self { config, line, at, rule, key, wait } = self;
        json!({ "type": "denied", "config": config, "line": line, "at": instant_text(*at), "rule": rule, "key": key,
                "retry_after_ms": millis(Some(*wait)) })
    }
}

impl Log {
    fn object(&self) -> Value {
        json!({
            "type": "log", "log": self.log, "format": self.format.map(|format| format.name()), "lines": self.lines,
            "requests": self.requests, "malformed": self.malformed, "out_of_order": self.out_of_order,
            "without_address": self.without_address, "from": self.first.map(instant_text),
            "to": self.last.map(instant_text), "complete": self.cut_short.is_none(),
        })
    }
}

impl Candidate {
    fn objects(&self, suggest: Option<Percentile>) -> Vec<Value> {
        let Self { name, tally, .. } = self;
        let mut objects = vec![json!({
            "type": "policy", "config": name, "matched": tally.matched, "denied": tally.denied,
            "would_deny": tally.would_deny, "refused": tally.refused, "undecided": tally.undecided,
        })];
        for (place, rule) in tally.rules.iter().enumerate() {
            objects.push(self.rule_object(rule));
            for (kind, top) in
                [("denied_key", &tally.denied_keys), ("would_deny_key", &tally.would_deny_keys)]
            {
                objects.extend(
                    top.most(KEYS, Some(place))
                        .into_iter()
                        .map(|counted| self.key_object(kind, counted, top)),
                );
            }
        }
        let seconds = tally.timeline.width().get() / 1_000_000;
        objects.extend(tally.timeline.buckets().map(|(from, bucket)| {
            json!({ "type": "bucket", "config": name, "from": instant_text(from), "seconds": seconds,
                    "requests": bucket.requests, "denied": bucket.denied, "would_deny": bucket.would_deny })
        }));
        if let Some(percentile) = suggest {
            objects.extend(self.suggestions(percentile));
        }
        objects
    }

    fn rule_object(&self, rule: &RuleTally) -> Value {
        let instant = |at: Option<Micros>| at.map(instant_text);
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

    fn key_object(&self, kind: &str, counted: &Counted, top: &Top) -> Value {
        let rule = &self.tally.rules[counted.rule].name;
        json!({ "type": kind, "config": self.name, "rule": rule, "key": counted.key, "count": counted.count,
                "exact": top.is_exact() })
    }

    fn suggestions(&self, percentile: Percentile) -> impl Iterator<Item = Value> {
        let need = |need: u64| (need != Needs::BEYOND).then_some(need);
        self.distributions(percentile).map(move |found| {
            json!({
                "type": "suggestion", "config": self.name, "policy": found.limit.policy(),
                "limit": found.limit.limit().to_string(), "percentile": percentile.to_string(),
                "suggested": found.suggested.as_ref().map(ToString::to_string), "keys": found.keys,
                "uncounted_keys": found.uncounted, "upper_bound": found.is_upper_bound,
                "keys_above": found.keys_above,
                "need": { "p50": need(found.p50), "p90": need(found.p90), "p99": need(found.p99),
                          "max": need(found.max), "wanted": need(found.wanted) },
            })
        })
    }
}

/// Rounded up; nothing for a wait that never ends, and for none.
fn millis(wait: Option<Wait>) -> Option<u64> {
    wait.and_then(Wait::span).map(|span| span.get().div_ceil(1_000))
}
