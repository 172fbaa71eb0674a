//! Report as text.

use std::io::{self, Write};

use tidegate::Micros;
use tidegate::policy::{KeyPart, OnMissingKey};

use super::comparison::Comparison;
use super::counts::RuleCounts;
use super::policy_run::PolicyRun;
use super::sizing::{Percentile, SizeDistribution, SizeEstimates};
use super::timeline::Timeline;
use super::top_keys::TopKeys;
use super::{LogSummary, Replay, time_text};
use crate::table::{blocks, names, table};
use tidegate_config::LoadedPolicy;
use tidegate_server::internal::text::format::{number as grouped, percent};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OutputStyle {
    /// For a file or another program.
    Plain,
    /// For a terminal, with charts.
    Chart,
    /// For a terminal, with charts and colours.
    Colours,
}

/// Keys shown per rule.
pub(crate) const MAX_KEYS: usize = 10;

/// What became of requests that lack a part of a rule's key. Missing addresses have a note of their
/// own.
fn notes_on_missing_keys<'a>(
    name: &'a str,
    loaded: &'a LoadedPolicy,
    counts: &'a [RuleCounts],
) -> impl Iterator<Item = String> + 'a {
    let rules = loaded.policy.rules().iter().zip(counts);
    let found = rules.filter(|(_, counts)| counts.without_key > 0);
    found.filter(|(rule, _)| rule.key() != [KeyPart::ClientIp]).map(move |(rule, counts)| {
        let parts: Vec<String> = rule.key().iter().map(KeyPart::describe).collect();
        let what = match rule.on_missing_key() {
            OnMissingKey::Deny => "they are denied",
            _ => "they count as one key",
        };
        format!(
            "{name}: rule {:?}: requests without {} in this log: {}; {what}",
            rule.name(),
            parts.join(" or without "),
            grouped(counts.without_key),
        )
    })
}

impl Replay {
    pub(crate) fn write(&self, to: &mut impl Write, style: OutputStyle) -> io::Result<()> {
        self.summary.write(to)?;
        for run in &self.runs {
            run.write(to, self.summary.requests, style)?;
            if let Some(percentile) = self.suggest {
                write_suggestions(to, run, percentile)?;
            }
        }
        match (&self.comparison, &*self.runs) {
            (Some(comparison), [one, other]) => write_comparison(to, comparison, [one, other]),
            _ => Ok(()),
        }
    }

    /// Caveats about the counts, with remedies.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let LogSummary { log, cut_short, without_address, requests, .. } = &self.summary;
        if let Some(why) = cut_short {
            notes.push(format!("{log:?} is truncated ({why}); the report covers what was read"));
        }
        for run in &self.runs {
            let PolicyRun { name, loaded, counts, .. } = run;
            notes.extend(loaded.warnings.iter().map(ToString::to_string));
            if counts.matched == 0 {
                let example = self.summary.example.as_deref().unwrap_or_default();
                notes.push(format!(
                    "{name}: no rule matches any of the {requests} requests; compare `match` with \
                     the first request, {example}"
                ));
            } else {
                for rule in counts.rules.iter().filter(|rule| rule.matched == 0) {
                    notes
                        .push(format!("{name}: rule {:?} matches none of the requests", rule.name));
                }
            }
            notes.extend(notes_on_missing_keys(name, loaded, &counts.rules));
            let needs_address = loaded.policy.rules().iter().any(|rule| rule.needs_client_ip());
            if needs_address && *without_address > 0 {
                notes.push(format!(
                    "{name}: {without_address} of {requests} requests have no client address and \
                     count as one client; log it as client_ip or remote_addr"
                ));
            }
            if counts.refused > 0 {
                notes.push(format!(
                    "{name}: {} requests have a key above 1024 bytes and would be refused",
                    counts.refused
                ));
            }
            if counts.undecided > 0 || run.has_overflowed() {
                notes.push(format!(
                    "{name}: memory cap reached: some keys share a bucket, so denials may be too \
                     high; replay a shorter log"
                ));
            }
        }
        notes
    }
}

impl LogSummary {
    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let Self { log, lines, requests, malformed, out_of_order, first, last, .. } = self;
        let format = self.format.map_or("", |format| format.name());
        writeln!(
            to,
            "{log} ({format}): {} lines, {} requests",
            grouped(*lines),
            grouped(*requests)
        )?;
        if let (Some(first), Some(last)) = (first, last) {
            let length = last.saturating_sub(*first);
            writeln!(to, "from {} to {} ({length})", time_text(*first), time_text(*last))?;
        }
        if *out_of_order > 0 {
            writeln!(
                to,
                "{} lines are out of order and use the time of the line before",
                grouped(*out_of_order)
            )?;
            if *out_of_order > *requests / 2 {
                writeln!(
                    to,
                    "  most lines are out of order: sort the log by time, or reverse it with tac"
                )?;
            }
        }
        if *malformed > 0 {
            writeln!(to, "{} lines are malformed and skipped:", grouped(*malformed))?;
            for example in &self.examples {
                writeln!(to, "  line {}: {}: {}", example.line, example.why, example.text)?;
            }
        }
        Ok(())
    }
}

impl PolicyRun {
    fn write(&self, to: &mut impl Write, requests: u64, style: OutputStyle) -> io::Result<()> {
        let counts = &self.counts;
        let denied = format!("{} of {} requests denied", grouped(counts.denied), grouped(requests));
        write!(to, "\n{}: {denied} ({})", self.name, percent(counts.denied, requests))?;
        if counts.would_deny > 0 {
            write!(to, ", {} more by shadow limits", grouped(counts.would_deny))?;
        }
        writeln!(to, "\n")?;
        const NAMES: &str =
            "rule,matched,allowed,denied,share,would deny,first denial,last denial,longest wait";
        let mut rows = vec![names(NAMES.split(','))];
        for rule in &counts.rules {
            rows.push(rule_row(rule));
            for (limit, count) in rule.limits.iter().filter(|_| rule.limits.len() > 1) {
                let (denied, would) = if limit.is_shadow() { (0, *count) } else { (*count, 0) };
                let name = format!("  {} ({})", limit.policy(), limit.limit());
                let [denied, would] = [denied, would].map(number);
                rows.push(names([&*name, "", "", &denied, "", &would]));
            }
        }
        to.write_all(table(&rows, &[0]).as_bytes())?;
        for (place, rule) in counts.rules.iter().enumerate() {
            write_keys(to, &format!("keys denied by {}", rule.name), &counts.denied_keys, place)?;
            write_keys(
                to,
                &format!("keys that {} would deny", rule.name),
                &counts.would_deny_keys,
                place,
            )?;
        }
        if counts.denied + counts.would_deny > 0 {
            counts.timeline.write(to, style)?;
        }
        Ok(())
    }
}

/// Empty for 0.
fn number(count: u64) -> String {
    if count == 0 { String::new() } else { grouped(count) }
}

fn rule_row(rule: &RuleCounts) -> Vec<String> {
    let instant = |at: Option<Micros>| at.map(time_text).unwrap_or_default();
    vec![
        rule.name.clone(),
        grouped(rule.matched),
        grouped(rule.matched - rule.denied),
        grouped(rule.denied),
        percent(rule.denied, rule.matched),
        number(rule.would_deny),
        instant(rule.first_denial),
        instant(rule.last_denial),
        rule.longest_wait.map(|wait| wait.to_string()).unwrap_or_default(),
    ]
}

fn write_keys(to: &mut impl Write, title: &str, top: &TopKeys, rule: usize) -> io::Result<()> {
    let most = top.most(MAX_KEYS, Some(rule));
    if most.is_empty() {
        return Ok(());
    }
    let about = if top.is_exact() { "" } else { " (at least)" };
    writeln!(to, "\n{title}, most first{about}:")?;
    let width = most.iter().map(|counted| grouped(counted.count).len()).max().unwrap_or(0);
    most.iter().try_for_each(|counted| {
        writeln!(to, "  {:>width$}  {}", grouped(counted.count), key_text(&counted.key))
    })
}

fn write_suggestions(
    to: &mut impl Write,
    run: &PolicyRun,
    percentile: Percentile,
) -> io::Result<()> {
    writeln!(to, "\nlimits at which {percentile}% of the keys are never denied:")?;
    const NAMES: &str = "limit,now,suggested,keys,p50,p90,p99,max,keys still denied";
    let mut rows = vec![names(NAMES.split(','))];
    let mut is_upper_bound = false;
    for found in run.distributions(percentile) {
        is_upper_bound |= found.is_upper_bound;
        let size =
            |size: u64| if size == SizeEstimates::BEYOND { "beyond".into() } else { grouped(size) };
        rows.push(vec![
            found.limit.policy().into(),
            found.limit.limit().to_string(),
            found.suggested.as_ref().map_or("no limit is large enough".into(), ToString::to_string),
            grouped(found.keys as u64) + if found.uncounted > 0 { "+" } else { "" },
            size(found.p50),
            size(found.p90),
            size(found.p99),
            size(found.max),
            grouped(found.keys_above as u64),
        ]);
    }
    to.write_all(table(&rows, &[0, 1, 2]).as_bytes())?;
    if is_upper_bound {
        writeln!(
            to,
            "some sliding logs were compacted to save memory: suggestions are upper bounds"
        )?;
    }
    Ok(())
}

impl PolicyRun {
    /// For each limit of each rule that has keys.
    pub(crate) fn distributions(
        &self,
        percentile: Percentile,
    ) -> impl Iterator<Item = SizeDistribution> {
        let sizes = self.counts.rules.iter().flat_map(|rule| rule.sizes.iter().flatten());
        sizes.filter_map(move |estimates| estimates.distribution(percentile))
    }
}

fn write_comparison(
    to: &mut impl Write,
    comparison: &Comparison,
    of: [&PolicyRun; 2],
) -> io::Result<()> {
    writeln!(to, "\ncomparison: {} requests denied by both", grouped(comparison.both))?;
    for (i, only) in comparison.only.iter().enumerate() {
        let (own, other) = (of[i], of[1 - i]);
        writeln!(
            to,
            "  {} denied by {} and not by {}",
            grouped(only.denied),
            own.name,
            other.name
        )?;
        for counted in only.keys.most(MAX_KEYS, None) {
            let rule = &own.counts.rules[counted.rule].name;
            writeln!(to, "    {:>8}  {rule}  {}", grouped(counted.count), key_text(&counted.key))?;
        }
    }
    Ok(())
}

impl Timeline {
    fn write(&self, to: &mut impl Write, style: OutputStyle) -> io::Result<()> {
        let width = self.width();
        if style == OutputStyle::Plain {
            writeln!(to, "\nper {width}, where something was denied:")?;
            let mut rows = vec![names(["from", "requests", "denied", "would deny"])];
            for (from, bucket) in
                self.buckets().filter(|(_, bucket)| bucket.denied + bucket.would_deny > 0)
            {
                rows.push(vec![
                    time_text(from),
                    grouped(bucket.requests),
                    grouped(bucket.denied),
                    number(bucket.would_deny),
                ]);
            }
            return to.write_all(table(&rows, &[0]).as_bytes());
        }
        let (red, yellow, plain) = if style == OutputStyle::Colours {
            ("\x1b[31m", "\x1b[33m", "\x1b[0m")
        } else {
            ("", "", "")
        };
        writeln!(to, "\neach column is {width}:")?;
        let rows: [(&str, &str, Vec<u64>); 3] = [
            ("requests", "", self.buckets().map(|(_, bucket)| bucket.requests).collect()),
            ("denied", red, self.buckets().map(|(_, bucket)| bucket.denied).collect()),
            ("would deny", yellow, self.buckets().map(|(_, bucket)| bucket.would_deny).collect()),
        ];
        for (name, colour, counts) in rows {
            let most = counts.iter().copied().max().unwrap_or(0);
            if most > 0 {
                let bars = blocks(&counts);
                let end = if colour.is_empty() { "" } else { plain };
                writeln!(to, "  {name:<10} {colour}{bars}{end}  at most {}", grouped(most))?;
            }
        }
        if let (Some((from, _)), Some((until, _))) = (self.buckets().next(), self.buckets().last())
        {
            writeln!(to, "  {:<10} {} to {}", "", time_text(from), time_text(until))?;
        }
        Ok(())
    }
}

/// A rule without a key counts all requests together.
fn key_text(key: &str) -> &str {
    if key.is_empty() { "(all requests)" } else { key }
}
