//! `tidegate diff BEFORE AFTER`

use std::collections::HashSet;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};
use tidegate::{Limit, Micros, PolicyRule};

use crate::error::{CliError, ExitStatus};
use crate::output::print_line;
use tidegate_config::{LoadedPolicy, LoadedRule, MatchFile, PolicyLoader, RuleFile};

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tidegate diff policy.yaml next.yaml
  git show HEAD:policy.yaml > before.yaml; tidegate diff before.yaml policy.yaml
  tidegate diff policy.yaml next.yaml --json | jq .changed

Exit code 0 if both policies decide alike, 1 if they differ. To see which requests of a log would
be decided differently, use `tidegate replay LOG --config BEFORE --config AFTER`.")]
pub(crate) struct Options {
    /// Policy file in force
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Policy file to come
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Print the differences as one line of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitStatus, CliError> {
    let before = PolicyLoader::load(&options.before)?;
    let after = PolicyLoader::load(&options.after)?;
    let diff = Differences::between(&before, &after);
    if options.json {
        print_line(diff.to_json())?;
    } else {
        print_line(diff.to_text())?;
    }
    Ok(if diff.is_empty() { ExitStatus::Success } else { ExitStatus::Negative })
}

/// What differs between two policies.
#[derive(Default)]
struct Differences<'a> {
    added: Vec<&'a LoadedRule>,
    removed: Vec<&'a LoadedRule>,
    changed: Vec<(&'a LoadedRule, Vec<String>)>,
    reordered: bool,
    /// Settings other than rules.
    settings: Vec<&'static str>,
    /// Those of them that a reload does not change.
    restart: Vec<&'static str>,
}

impl<'a> Differences<'a> {
    fn between(before: &'a LoadedPolicy, after: &'a LoadedPolicy) -> Self {
        let find = |policy: &'a LoadedPolicy, name: &str| {
            policy.rules.iter().position(|rule| rule.file.name == name)
        };
        let gone = |rule: &&LoadedRule| find(after, &rule.file.name).is_none();
        let mut found =
            Self { removed: before.rules.iter().filter(gone).collect(), ..Self::default() };
        let mut last = 0;
        for rule in &after.rules {
            let Some(index) = find(before, &rule.file.name) else {
                found.added.push(rule);
                continue;
            };
            found.reordered |= index < last;
            last = last.max(index);
            let old = &before.rules[index];
            if old.file != rule.file || old.on_store_failure != rule.on_store_failure {
                found.changed.push((rule, effects(old, rule)));
            }
        }
        found.settings = after.settings.changed_since(&before.settings);
        found.restart = after.settings.changed_at_start(&before.settings);
        found
    }

    fn is_empty(&self) -> bool {
        let Self { added, removed, changed, reordered, settings, .. } = self;
        added.is_empty()
            && removed.is_empty()
            && changed.is_empty()
            && settings.is_empty()
            && !reordered
    }

    /// A rule that was removed and is otherwise the same.
    fn old_name(&self, rule: &LoadedRule) -> Option<&str> {
        let same = |old: &&&LoadedRule| {
            RuleFile { name: rule.file.name.clone(), ..old.file.clone() } == rule.file
        };
        self.removed.iter().find(same).map(|old| &*old.file.name)
    }

    fn to_text(&self) -> String {
        let mut lines: Vec<String> =
            self.removed.iter().map(|rule| format!("- {}", summary(rule))).collect();
        for rule in &self.added {
            lines.push(format!("+ {}", summary(rule)));
            if let Some(old) = self.old_name(rule) {
                lines.push(format!("    renamed from {old}: {UNUSED}"));
            }
        }
        for (rule, effects) in &self.changed {
            lines.push(format!("~ {} ({})", rule.file.name, scope(rule)));
            lines.extend(effects.iter().map(|effect| format!("    {effect}")));
        }
        if self.reordered {
            lines.push("  rules are evaluated in another order".into());
        }
        for name in &self.settings {
            let note = if self.restart.contains(name) { ", which needs a restart" } else { "" };
            lines.push(format!("  setting {name} changes{note}"));
        }
        if lines.is_empty() { "no differences".into() } else { lines.join("\n") }
    }

    fn to_json(&self) -> Value {
        let names = |rules: &[&LoadedRule]| -> Vec<Value> {
            rules.iter().map(|rule| rule.file.name.as_str().into()).collect()
        };
        let changed = self.changed.iter();
        let changed: Vec<Value> = changed
            .map(|(rule, effects)| json!({ "name": rule.file.name, "effects": effects }))
            .collect();
        json!({
            "added": names(&self.added),
            "removed": names(&self.removed),
            "changed": changed,
            "reordered": self.reordered,
            "settings": self.settings,
            "needs_restart": self.restart,
        })
    }
}

const UNUSED: &str = "every key starts unused";

/// Name, requests, key and limits of a rule.
fn summary(rule: &LoadedRule) -> String {
    let shadow = rule.file.shadow_limits.iter().map(|limit| format!("{limit} (shadow)"));
    let limits: Vec<String> = rule.file.limits.iter().cloned().chain(shadow).collect();
    format!("{} ({}): {}", rule.file.name, scope(rule), limits.join(" + "))
}

/// Which requests a rule is for, and by what it counts.
fn scope(rule: &LoadedRule) -> String {
    format!("{}, {}", requests(&rule.file.matches), keys(&rule.rule))
}

fn requests(matches: &MatchFile) -> String {
    let mut parts = vec![matches.method.texts().join("|")];
    parts.extend(
        matches.host.clone().map(|host| format!("{host}{}", matches.path.as_deref().unwrap_or(""))),
    );
    parts.extend(matches.path.clone().filter(|_| matches.host.is_none()));
    parts.extend(matches.header.iter().map(|(name, value)| format!("{name}: {value}")));
    parts.retain(|part| !part.is_empty());
    if parts.is_empty() { "every request".into() } else { parts.join(" ") }
}

fn keys(rule: &PolicyRule) -> String {
    let parts: Vec<String> = rule.key().iter().map(ToString::to_string).collect();
    match parts.is_empty() {
        true => "all requests together".into(),
        false => format!("for each {}", parts.join(" and ")),
    }
}

/// One line for each change of a rule: what it means for its requests.
fn effects(before: &LoadedRule, after: &LoadedRule) -> Vec<String> {
    let (old, new) = (&before.file, &after.file);
    let mut lines = Vec::new();
    if old.matches != new.matches {
        let (from, to) = (requests(&old.matches), requests(&new.matches));
        lines.push(format!("requests: {from} -> {to}"));
    }
    let is_new_key = before.rule.key() != after.rule.key();
    if is_new_key {
        lines.push(format!("{} -> {}: {UNUSED}", keys(&before.rule), keys(&after.rule)));
    }
    let kept = if is_new_key { Usage::Lost } else { Usage::Kept };
    lines.extend(limits("", &old.limits, &new.limits, kept));
    lines.extend(limits("shadow ", &old.shadow_limits, &new.shadow_limits, kept));
    lines.extend(entries("allow", &old.allow, &new.allow));
    lines.extend(entries("deny", &old.deny, &new.deny));
    let overridden = |file: &RuleFile| -> Vec<String> {
        let one = |one: &tidegate_config::OverrideFile| {
            let until = one.until.as_ref().map(|until| format!(" until {until}"));
            let key = one.key.texts().join(" | ");
            format!("{key} {}{}", one.limits.join(" + "), until.unwrap_or_default())
        };
        file.overrides.iter().map(one).collect()
    };
    lines.extend(entries("overrides", &overridden(old), &overridden(new)));
    lines.extend(other_fields(old, new));
    if before.on_store_failure != after.on_store_failure
        && old.on_store_failure == new.on_store_failure
    {
        lines.push("on_store_failure of the file changes".into());
    }
    lines
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Usage {
    Kept,
    Lost,
}

/// Compares limits. The n-th limit of an algorithm keeps the usage of the n-th before.
fn limits(kind: &str, before: &[String], after: &[String], usage: Usage) -> Vec<String> {
    let mut unpaired: Vec<Option<Limit>> = before.iter().map(|text| text.parse().ok()).collect();
    let mut lines = Vec::new();
    for text in after {
        let Ok(limit) = text.parse::<Limit>() else { continue };
        let pair = unpaired
            .iter_mut()
            .find(|old| old.as_ref().is_some_and(|old| old.algorithm() == limit.algorithm()));
        match pair.and_then(Option::take) {
            Some(old) if old == limit => {}
            Some(old) => {
                let kept = if usage == Usage::Kept { ", usage is kept" } else { "" };
                lines.push(format!(
                    "{kind}limit {old} -> {limit}: {}{kept}",
                    direction(&old, &limit)
                ));
            }
            None => lines.push(format!("{kind}limit {limit} is new and starts unused")),
        }
    }
    let removed = unpaired.into_iter().flatten();
    lines.extend(removed.map(|limit| format!("{kind}limit {limit} is removed")));
    lines
}

/// Whether the second limit allows more, by burst and by sustained rate.
fn direction(before: &Limit, after: &Limit) -> &'static str {
    let spans = (before.span().length(), after.span().length());
    let spans = match spans {
        (Some(old), Some(new)) => (old, new),
        _ if before.span() == after.span() => (Micros::new(1), Micros::new(1)),
        _ => return "changes",
    };
    // count / span, compared without division.
    let rate = |limit: &Limit, span: Micros| u128::from(limit.count()) * u128::from(span.get());
    let rates = rate(after, spans.0).cmp(&rate(before, spans.1));
    let bursts = after.capacity().cmp(&before.capacity());
    match (rates.is_lt() || bursts.is_lt(), rates.is_gt() || bursts.is_gt()) {
        (false, true) => "allows more",
        (true, false) => "allows less",
        (true, true) if rates.is_gt() => "allows more over time, less at once",
        (true, true) => "allows less over time, more at once",
        (false, false) => "changes",
    }
}

/// Entries that a list gains and loses. Lists may have thousands.
fn entries(list: &str, before: &[String], after: &[String]) -> Vec<String> {
    const MAX_LISTED: usize = 10;
    let side = |sign: &str, all: &[String], others: &[String]| {
        let others: HashSet<&String> = others.iter().collect();
        let found: Vec<&str> =
            all.iter().filter(|entry| !others.contains(entry)).map(|entry| &**entry).collect();
        let more = found.len().saturating_sub(MAX_LISTED);
        let mut shown: Vec<String> =
            found.iter().take(MAX_LISTED).map(|entry| format!("{list}: {sign} {entry}")).collect();
        if more > 0 {
            shown.push(format!("{list}: {sign} {more} more"));
        }
        shown
    };
    [side("-", before, after), side("+", after, before)].concat()
}

/// The fields that have no line of their own.
fn other_fields(before: &RuleFile, after: &RuleFile) -> Vec<String> {
    const OWN: [&str; 8] =
        ["name", "match", "key", "limits", "shadow_limits", "allow", "deny", "overrides"];
    let fields = |rule: &RuleFile| match serde_json::to_value(rule) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let (before, after) = (fields(before), fields(after));
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    let shown = |value: Option<&Value>| value.map_or("default".into(), ToString::to_string);
    names
        .into_iter()
        .filter(|name| !OWN.contains(&name.as_str()) && before.get(*name) != after.get(*name))
        .map(|name| format!("{name}: {} -> {}", shown(before.get(name)), shown(after.get(name))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(before: &str, after: &str) -> String {
        let load = |text: &str| PolicyLoader::load_str("policy.yaml", text).unwrap();
        Differences::between(&load(before), &load(after)).to_text()
    }

    fn rule(fields: &str) -> String {
        format!("rules: [{{ name: a, {fields} }}]\n")
    }

    #[test]
    fn a_changed_limit_tells_its_direction_and_what_becomes_of_usage() {
        let cases = [
            ("5/m", "9/m", "limit 5/m -> 9/m: allows more, usage is kept"),
            ("9/m", "5/m", "limit 9/m -> 5/m: allows less, usage is kept"),
            ("fixed-window 60/m", "fixed-window 2/s", "allows more over time, less at once"),
            ("fixed-window 2/s", "fixed-window 60/m", "allows less over time, more at once"),
            ("10/s burst 20", "10/s burst 30", "allows more, usage is kept"),
            ("fixed-window 9/month", "fixed-window 9/d", ": changes, usage is kept"),
            ("5/m", "sliding-log 5/m", "limit sliding-log 5/m is new and starts unused"),
        ];
        for (before, after, expected) in cases {
            let limits = |limit: &str| rule(&format!("limits: [\"{limit}\"]"));
            let text = diff(&limits(before), &limits(after));
            assert!(text.contains(expected), "{before} -> {after}: {text}");
        }
    }

    #[test]
    fn rules_are_added_removed_renamed_and_reordered() {
        let two = "rules: [{ name: a, limits: [1/s] }, { name: b, limits: [2/s] }]\n";
        let swapped = "rules: [{ name: b, limits: [2/s] }, { name: a, limits: [1/s] }]\n";
        assert_eq!(diff(two, two), "no differences");
        assert_eq!(diff(two, swapped), "  rules are evaluated in another order");
        let renamed = "rules: [{ name: a, limits: [1/s] }, { name: c, limits: [2/s] }]\n";
        let expected = "- b (every request, all requests together): 2/s\n\
                        + c (every request, all requests together): 2/s\n    \
                        renamed from b: every key starts unused";
        assert_eq!(diff(two, renamed), expected);
    }

    #[test]
    fn another_key_starts_unused_and_lists_are_compared_by_entry() {
        let before = rule(
            "match: { method: POST, path: /x }, key: [client_ip], limits: [5/m], \
                           deny: [10.0.0.1]",
        );
        let after = rule(
            "match: { path: /x }, key: [bearer], limits: [6/m], stop: true, \
                          deny: [10.0.0.2]",
        );
        let expected = "~ a (/x, for each bearer)\n    requests: POST /x -> /x\n    \
                        for each client_ip -> for each bearer: every key starts unused\n    \
                        limit 5/m -> 6/m: allows more\n    deny: - 10.0.0.1\n    \
                        deny: + 10.0.0.2\n    stop: default -> true";
        assert_eq!(diff(&before, &after), expected);
        let settings = diff(
            &rule("limits: [1/s]"),
            &format!("memory: 1GiB\nadhoc: false\n{}", rule("limits: [1/s]")),
        );
        let expected = "  setting memory changes, which needs a restart\n  setting adhoc changes";
        assert_eq!(settings, expected);
    }
}
