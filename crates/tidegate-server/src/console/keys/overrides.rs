//! Other limits for one key, for a while.

use tidegate::simulate::{Candidate, ParseCandidateError};
use tidegate::{Client, Micros, Span};

use crate::config::{OneOrMany, OverrideFile, RuleFile};

/// The longest that an override made here lasts.
const LONGEST: Micros = Micros::from_secs(31 * 86_400);

/// Limits and until when they hold.
#[derive(Clone, Debug)]
pub(super) struct Override {
    limits: Vec<String>,
    until: String,
}

impl Override {
    /// From what somebody typed: limits joined with ` + `, and a span from now on.
    pub(super) fn read(limits: &str, lasts: &str, now: Micros) -> Result<Self, String> {
        let faulty =
            |error: ParseCandidateError| format!("{error}\n{}", error.underline(limits.trim()));
        let candidate: Candidate = limits.trim().parse().map_err(faulty)?;
        let span: Span = lasts.trim().parse().map_err(|error| format!("how long: {error}"))?;
        let span = span.length().filter(|span| *span > Micros::ZERO && *span <= LONGEST);
        let span = span.ok_or("how long: use 1us to 31d")?;
        // Whole seconds read better, and nobody is cut short.
        let ends = now.saturating_add(span).get().div_ceil(1_000_000);
        let ends =
            i64::try_from(ends).ok().and_then(|ends| jiff::Timestamp::from_second(ends).ok());
        let until = ends.ok_or("how long: that is too far away")?.to_string();
        Ok(Self { limits: candidate.limits().map(ToString::to_string).collect(), until })
    }

    /// Puts it into a rule, in the place of one for the same key. Those that have ended go, but for the file's own: the
    /// rule is to be the file's again when this one is taken out.
    pub(super) fn put_into(
        self,
        rule: &mut RuleFile,
        in_file: Option<&RuleFile>,
        key: &[String],
        now: Micros,
    ) {
        let ours = OverrideFile {
            key: OneOrMany::Many(key.to_vec()),
            limits: self.limits,
            until: Some(self.until),
        };
        match place(rule, key) {
            Some(place) => rule.overrides[place] = ours,
            None => rule.overrides.push(ours),
        }
        let of_file = in_file.map_or(&[][..], |rule| &rule.overrides);
        rule.overrides.retain(|one| !has_ended(one, now) || of_file.contains(one));
    }
}

/// The override of a rule for this key that is in force.
pub(super) fn of_key<'r>(
    rule: &'r RuleFile,
    key: &[String],
    now: Micros,
) -> Option<&'r OverrideFile> {
    rule.overrides.iter().find(|one| is_same(rule, one.key.texts(), key) && !has_ended(one, now))
}

/// Takes the override for this key out of a rule. If the file has another, that is there again.
pub(super) fn remove(rule: &mut RuleFile, in_file: Option<&RuleFile>, key: &[String]) {
    let Some(ours) = place(rule, key) else { return };
    let of_file = in_file.and_then(|rule| Some(rule.overrides[place(rule, key)?].clone()));
    match of_file {
        Some(of_file) => rule.overrides[ours] = of_file,
        None => {
            rule.overrides.remove(ours);
        }
    }
}

/// Where the override for this key stands in a rule.
fn place(rule: &RuleFile, key: &[String]) -> Option<usize> {
    rule.overrides.iter().position(|one| is_same(rule, one.key.texts(), key))
}

/// Are they the same to the rule? One address may be written in several ways.
fn is_same(rule: &RuleFile, one: &[String], other: &[String]) -> bool {
    let parts = rule.key.as_deref().unwrap_or_default();
    let same =
        |(nth, (one, other)): (usize, (&String, &String))| match parts.get(nth).map(String::as_str)
        {
            Some("client_ip") => Client::key(one) == Client::key(other),
            _ => one == other,
        };
    one.len() == other.len() && one.iter().zip(other).enumerate().all(same)
}

fn has_ended(one: &OverrideFile, now: Micros) -> bool {
    let until = one.until.as_deref().and_then(|until| until.parse::<jiff::Timestamp>().ok());
    let until = until.and_then(|until| u64::try_from(until.as_microsecond()).ok());
    until.is_some_and(|until| until <= now.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = Micros::from_secs(1_700_000_000);

    #[test]
    fn an_override_takes_the_place_of_one_for_the_same_key() {
        let mut rule = RuleFile {
            name: "api".into(),
            key: Some(vec!["client_ip".into()]),
            limits: vec!["1/s".into()],
            ..RuleFile::default()
        };
        let read = |limits| Override::read(limits, "1h", NOW).unwrap();
        read("5/s").put_into(&mut rule, None, &["::ffff:10.0.0.1".into()], NOW);
        read("7/1s + 100/h").put_into(&mut rule, None, &["10.0.0.1".into()], NOW);
        read("9/s").put_into(&mut rule, None, &["10.0.0.2".into()], NOW);
        assert_eq!(rule.overrides.len(), 2);
        let one = of_key(&rule, &["10.0.0.1".into()], NOW).unwrap();
        assert_eq!(one.limits, ["7/s", "100/h"]);
        assert_eq!(one.until.as_deref(), Some("2023-11-14T23:13:20Z"));
        let later = NOW.saturating_add(Micros::from_secs(3_600));
        assert!(of_key(&rule, &["10.0.0.1".into()], later).is_none());
        let ours = Override::read("9/s", "1h", later).unwrap();
        ours.put_into(&mut rule, None, &["10.0.0.3".into()], later);
        assert_eq!(rule.overrides.len(), 1, "those that have ended go");
        remove(&mut rule, None, &["10.0.0.3".into()]);
        assert!(rule.overrides.is_empty());
    }

    #[test]
    fn what_the_file_has_is_there_again_when_ours_is_taken_out() {
        let of_file = |key: &str, until: &str| OverrideFile {
            key: OneOrMany::Many(vec![key.into()]),
            limits: vec!["1000/s".into()],
            until: Some(until.into()),
        };
        let in_file = RuleFile {
            overrides: vec![
                of_file("ended", "2020-01-01T00:00:00Z"),
                of_file("gold", "2020-01-01T00:00:00Z"),
                of_file("silver", "2099-01-01T00:00:00Z"),
            ],
            ..RuleFile::default()
        };
        let mut rule = in_file.clone();
        let ours = Override::read("5/s", "1h", NOW).unwrap();
        ours.clone().put_into(&mut rule, Some(&in_file), &["gold".into()], NOW);
        ours.put_into(&mut rule, Some(&in_file), &["new".into()], NOW);
        assert_eq!(rule.overrides.len(), 4);
        remove(&mut rule, Some(&in_file), &["new".into()]);
        remove(&mut rule, Some(&in_file), &["gold".into()]);
        assert!(rule.overrides == in_file.overrides);
    }

    #[test]
    fn what_is_no_override_says_why() {
        for (limits, lasts, said) in [
            ("5/parsec", "1h", "unknown unit"),
            ("5/s", "", "how long"),
            ("5/s", "32d", "use 1us to 31d"),
            ("5/s", "1month", "how long"),
            ("", "1h", "nothing"),
        ] {
            let error = Override::read(limits, lasts, NOW).unwrap_err();
            assert!(error.contains(said), "{limits} {lasts}: {error}");
        }
    }
}
