//! The record of a hold: the limits, subjects and costs with which it can be settled later.

use std::sync::Arc;

use tidegate::{Cost, RuleLimit};

use crate::protocol::keys::{KeyNames, SubjectHash};
use crate::protocol::request::LimitCharge;

/// The field of the hash in which a hold's record is stored.
pub(crate) const HOLD_RECORD_FIELD: &str = "b";

/// The record of a hold over these parts.
pub(crate) fn record_of<'a>(held: impl IntoIterator<Item = &'a LimitCharge>) -> String {
    // No field can contain a tab or a line end.
    let line = |part: &LimitCharge| {
        let LimitCharge { limit, subject, cost, .. } = part;
        let (rule, policy, state) = (limit.rule(), limit.policy(), limit.state());
        format!("{subject}\t{rule}\t{policy}\t{state}\t{}\t{cost}\n", limit.limit())
    };
    held.into_iter().map(line).collect()
}

/// The parts in a record. None if it is malformed or empty.
pub(crate) fn parts_of(record: &str, names: &KeyNames) -> Option<Vec<LimitCharge>> {
    let parts: Option<Vec<LimitCharge>> = record.lines().map(|line| part_of(line, names)).collect();
    parts.filter(|parts| !parts.is_empty())
}

fn part_of(line: &str, names: &KeyNames) -> Option<LimitCharge> {
    let mut fields = line.split('\t');
    let subject = SubjectHash(u128::from_str_radix(fields.next()?, 16).ok()?);
    let (rule, policy, state) = (fields.next()?, fields.next()?, fields.next()?);
    let (limit, cost) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let limit = Arc::new(RuleLimit::stored(rule, policy, state, limit));
    Some(LimitCharge::new(limit, subject, Cost::total(cost), None, names))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_an_empty_one_is_malformed() {
        let rule = tidegate::Rule::new("login", ["5/m".parse().unwrap()]).unwrap();
        let (limit, names) = (rule.limits()[0].clone(), KeyNames::new("tg"));
        let part = LimitCharge::new(limit, SubjectHash(7), Cost::total(3), None, &names);
        let written = record_of([&part]);
        let read = parts_of(&written, &names).unwrap();
        assert_eq!((read.len(), read[0].subject, read[0].cost), (1, part.subject, part.cost));
        assert_eq!(read[0].limit.state(), "login:token-bucket1");
        assert_eq!(read[0].limit.limit().to_string(), "5/m");
        for bad in ["", "\n", "07\tlogin", &written.replace('\t', " ")] {
            assert!(parts_of(bad, &names).is_none(), "{bad:?}");
        }
    }
}
