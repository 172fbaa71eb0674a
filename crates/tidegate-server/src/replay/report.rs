//! What is told about a replay, for people.

use std::io::{self, Write};

use tidegate::{Micros, Wait};

use super::candidate::Candidate;
use super::comparison::Comparison;
use super::figures::{Table, blocks, grouped, number, percent, span_text};
use super::need::{Distribution, Needs, Percentile};
use super::tally::RuleTally;
use super::timeline::Timeline;
use super::top::Top;
use super::{Log, Replay, instant_text};

/// What the reader of a report sees it on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Text alone: a file, or another program.
    Plain,
    /// A terminal: with a chart.
    Chart,
    /// A terminal that may show colours.
    Colours,
}

/// How many keys are shown of each rule.
pub(super) const KEYS: usize = 10;

impl Replay {
    /// Tells what was found.
    pub fn write(&self, to: &mut impl Write, look: Look) -> io::Result<()> {
        self.read.write(to)?;
        for candidate in &self.candidates {
            candidate.write(to, self.read.requests, look)?;
            if let Some(percentile) = self.suggest {
                write_suggestions(to, candidate, percentile)?;
            }
        }
        match (&self.comparison, &*self.candidates) {
            (Some(comparison), [one, other]) => write_comparison(to, comparison, [one, other]),
            _ => Ok(()),
        }
    }

    /// What should be known before the figures are believed, and what to do about it.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let Log { log, cut_short, without_address, requests, .. } = &self.read;
        if let Some(why) = cut_short {
            notes.push(format!(
                "{log:?} ends in the middle ({why}); what was read up to there is told, so check that it is complete"
            ));
        }
        for candidate in &self.candidates {
            let Candidate { name, loaded, tally, .. } = candidate;
            notes.extend(loaded.warnings.iter().map(ToString::to_string));
            if tally.matched == 0 {
                let example = self.read.example.as_deref().unwrap_or_default();
                notes.push(format!(
                    "{name}: no rule matches any of the {requests} requests, so none is limited; compare `match` with the \
                     first request, {example}"
                ));
            } else {
                for rule in tally.rules.iter().filter(|rule| rule.matched == 0) {
                    notes
                        .push(format!("{name}: rule {:?} matches none of the requests", rule.name));
                }
            }
            let needs_address = loaded.policy.rules().iter().any(|rule| rule.needs_client_ip());
            if needs_address && *without_address > 0 {
                notes.push(format!(
                    "{name}: {without_address} of {requests} requests have no address, and count as one client; log \
                     addresses instead of names, in a column named client_ip or remote_addr"
                ));
            }
            if tally.refused > 0 {
                notes.push(format!(
                    "{name}: {} requests have a key that is too long, and would be refused",
                    tally.refused
                ));
            }
            let is_full = candidate.state_bytes() as usize > Candidate::CAP_BYTES / 10 * 9;
            if tally.undecided > 0 || is_full {
                notes.push(format!(
                    "{name}: there was no room for all keys at once, so that some shared one count and more may be denied \
                     than would be; replay a shorter log"
                ));
            }
        }
        notes
    }
}

impl Log {
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
            let length = span_text(last.saturating_sub(*first));
            writeln!(to, "from {} to {} ({length})", instant_text(*first), instant_text(*last))?;
        }
        if *out_of_order > 0 {
            writeln!(
                to,
                "{} lines are older than one before them, and count as of its time",
                grouped(*out_of_order)
            )?;
            if *out_of_order > *requests / 2 {
                writeln!(
                    to,
                    "  that is most of them: sort the log by time, or turn it round with tac"
                )?;
            }
        }
        if *malformed > 0 {
            writeln!(to, "{} lines cannot be read and are left out:", grouped(*malformed))?;
            for example in &self.examples {
                writeln!(to, "  line {}: {}: {}", example.line, example.why, example.text)?;
            }
        }
        Ok(())
    }
}

impl Candidate {
    fn write(&self, to: &mut impl Write, requests: u64, look: Look) -> io::Result<()> {
        let tally = &self.tally;
        let denied = format!("{} of {} requests denied", grouped(tally.denied), grouped(requests));
        write!(to, "\n{}: {denied} ({})", self.name, percent(tally.denied, requests))?;
        if tally.would_deny > 0 {
            write!(to, ", {} more by limits that look on", grouped(tally.would_deny))?;
        }
        writeln!(to, "\n")?;
        let mut table = Table::new([
            "rule",
            "matched",
            "allowed",
            "denied",
            "share",
            "would deny",
            "first denial",
            "last denial",
            "longest wait",
        ]);
        for rule in &tally.rules {
            table.push(rule_row(rule));
            if rule.limits.len() > 1 {
                rule.limits.iter().for_each(|(limit, count)| {
                    let (denied, would) = if limit.is_shadow() { (0, *count) } else { (*count, 0) };
                    let name = format!("  {} ({})", limit.policy(), limit.limit());
                    table.push([
                        name,
                        "".into(),
                        "".into(),
                        number(denied),
                        "".into(),
                        number(would),
                        "".into(),
                        "".into(),
                        "".into(),
                    ]);
                });
            }
        }
        table.write(to)?;
        for (place, rule) in tally.rules.iter().enumerate() {
            write_keys(to, &format!("keys denied by {}", rule.name), &tally.denied_keys, place)?;
            write_keys(
                to,
                &format!("keys that {} would deny", rule.name),
                &tally.would_deny_keys,
                place,
            )?;
        }
        if tally.denied + tally.would_deny > 0 {
            tally.timeline.write(to, look)?;
        }
        Ok(())
    }
}

fn rule_row(rule: &RuleTally) -> [String; 9] {
    let instant = |at: Option<Micros>| at.map(instant_text).unwrap_or_default();
    let wait = match rule.longest_wait {
        Some(Wait::For(span)) => span_text(span),
        Some(Wait::Never) => "never".into(),
        None => String::new(),
    };
    [
        rule.name.clone(),
        grouped(rule.matched),
        grouped(rule.matched - rule.denied),
        grouped(rule.denied),
        percent(rule.denied, rule.matched),
        number(rule.would_deny),
        instant(rule.first_denial),
        instant(rule.last_denial),
        wait,
    ]
}

fn write_keys(to: &mut impl Write, title: &str, top: &Top, rule: usize) -> io::Result<()> {
    let most = top.most(KEYS, Some(rule));
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
    candidate: &Candidate,
    percentile: Percentile,
) -> io::Result<()> {
    writeln!(to, "\nlimits at which {percentile}% of the keys would never have been denied:")?;
    let mut table = Table::new([
        "limit",
        "now",
        "suggested",
        "keys",
        "p50",
        "p90",
        "p99",
        "max",
        "keys still denied",
    ]);
    let mut is_upper_bound = false;
    for found in candidate.distributions(percentile) {
        is_upper_bound |= found.is_upper_bound;
        let need = |need: u64| if need == Needs::BEYOND { "beyond".into() } else { grouped(need) };
        table.push([
            found.limit.policy().into(),
            found.limit.limit().to_string(),
            found.suggested.as_ref().map_or("none is large enough".into(), ToString::to_string),
            grouped(found.keys as u64) + if found.uncounted > 0 { "+" } else { "" },
            need(found.p50),
            need(found.p90),
            need(found.p99),
            need(found.max),
            grouped(found.keys_above as u64),
        ]);
    }
    table.write(to)?;
    if is_upper_bound {
        writeln!(
            to,
            "some logs were too long to be kept whole: what is suggested is at most too large"
        )?;
    }
    Ok(())
}

impl Candidate {
    /// What keys need, for each limit of each rule that has any.
    pub(super) fn distributions(
        &self,
        percentile: Percentile,
    ) -> impl Iterator<Item = Distribution> {
        let needs = self.tally.rules.iter().flat_map(|rule| rule.needs.iter().flatten());
        needs.filter_map(move |needs| needs.distribution(percentile))
    }
}

fn write_comparison(
    to: &mut impl Write,
    comparison: &Comparison,
    of: [&Candidate; 2],
) -> io::Result<()> {
    writeln!(to, "\nside by side: {} requests denied by both", grouped(comparison.both))?;
    for (i, only) in comparison.only.iter().enumerate() {
        let (own, other) = (of[i], of[1 - i]);
        writeln!(
            to,
            "  {} denied by {} and not by {}",
            grouped(only.denied),
            own.name,
            other.name
        )?;
        for counted in only.keys.most(KEYS, None) {
            let rule = &own.tally.rules[counted.rule].name;
            writeln!(to, "    {:>8}  {rule}  {}", grouped(counted.count), key_text(&counted.key))?;
        }
    }
    Ok(())
}

impl Timeline {
    fn write(&self, to: &mut impl Write, look: Look) -> io::Result<()> {
        let width = span_text(self.width());
        if look == Look::Plain {
            writeln!(to, "\nper {width}, where something was denied:")?;
            let mut table = Table::new(["from", "requests", "denied", "would deny"]);
            for (from, bucket) in
                self.buckets().filter(|(_, bucket)| bucket.denied + bucket.would_deny > 0)
            {
                let cells =
                    [grouped(bucket.requests), grouped(bucket.denied), number(bucket.would_deny)];
                let [requests, denied, would] = cells;
                table.push([instant_text(from), requests, denied, would]);
            }
            return table.write(to);
        }
        let (red, yellow, plain) =
            if look == Look::Colours { ("\x1b[31m", "\x1b[33m", "\x1b[0m") } else { ("", "", "") };
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
            writeln!(to, "  {:<10} {} to {}", "", instant_text(from), instant_text(until))?;
        }
        Ok(())
    }
}

/// The key, if there is anything to see in it.
fn key_text(key: &str) -> &str {
    if key.is_empty() { "(everybody)" } else { key }
}
