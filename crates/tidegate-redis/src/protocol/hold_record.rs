//! The record of a hold: the limits, subjects and costs with which it can be settled later.

use std::sync::Arc;

use tidegate::{Cost, HoldKind, HoldSpec, Op, RuleLimit};

use crate::protocol::keys::{KeyNames, SubjectHash};
use crate::protocol::request::{LimitCharge, PartHold};

/// The field of the hash in which a hold's record is stored.
pub(crate) const HOLD_RECORD_FIELD: &str = "b";

/// Follows the cost of a part that was charged when the hold was made. Others end with the cost.
const CHARGED: &str = "charged";

/// The record of a hold over these parts. That of a named hold has a line more, by which the call
/// that made it recognizes it.
pub(crate) fn record_of<'a>(op: Op<'_>, held: impl IntoIterator<Item = &'a LimitCharge>) -> String {
    // No field can contain a tab or a line end.
    let line = |part: &LimitCharge| {
        let LimitCharge { limit, subject, cost, per_unit, .. } = part;
        // Whether rules were reserved at one cost is decided by what was wanted.
        let cost = match op.quantity() {
            Some(quantity) => quantity.cost(*cost, *per_unit, quantity.want),
            None => *cost,
        };
        let (rule, policy, state) = (limit.rule(), limit.policy(), limit.state());
        let end = if part.is_held() { "".into() } else { format!("\t{CHARGED}") };
        format!("{subject}\t{rule}\t{policy}\t{state}\t{}\t{cost}{end}\n", limit.limit())
    };
    let mut record: String = held.into_iter().map(line).collect();
    if let Op::Hold(HoldSpec { kind: HoldKind::Named { attempt }, .. }) = op {
        record.push_str(&format!("\t{attempt:016x}\n"));
    }
    record
}

/// The parts in a record, as held or charged. None if it is malformed or empty.
pub(crate) fn parts_of(record: &str, names: &KeyNames) -> Option<Vec<LimitCharge>> {
    let lines = record.lines().filter(|line| !line.starts_with('\t'));
    let parts: Option<Vec<LimitCharge>> = lines.map(|line| part_of(line, names)).collect();
    parts.filter(|parts| !parts.is_empty())
}

fn part_of(line: &str, names: &KeyNames) -> Option<LimitCharge> {
    let mut fields = line.split('\t');
    let subject = SubjectHash(u128::from_str_radix(fields.next()?, 16).ok()?);
    let (rule, policy, state) = (fields.next()?, fields.next()?, fields.next()?);
    let (limit, cost) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let limit = Arc::new(RuleLimit::stored(rule, policy, state, limit));
    let hold = match fields.next() {
        None => PartHold::Ended,
        Some(CHARGED) => PartHold::None,
        Some(_) => return None,
    };
    let part = LimitCharge::new(limit, subject, Cost::total(cost), None, names);
    Some(LimitCharge { hold, ..part })
}

#[cfg(test)]
mod tests {
    use tidegate::{Expiry, HoldId, Micros};

    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_an_empty_one_is_malformed() {
        let rule = tidegate::Rule::new("login", ["5/m".parse().unwrap()]).unwrap();
        let (limit, names) = (rule.limits()[0].clone(), KeyNames::new("tg"));
        let charged = LimitCharge::new(limit, SubjectHash(7), Cost::total(3), None, &names);
        let part = LimitCharge { hold: PartHold::Made(Expiry::Charge), ..charged.clone() };
        let written = record_of(Op::Check, [&part]);
        let read = parts_of(&written, &names).unwrap();
        assert_eq!((read.len(), read[0].subject, read[0].cost), (1, part.subject, part.cost));
        assert_eq!(read[0].hold, PartHold::Ended);
        let kind = HoldKind::Named { attempt: 7 };
        let (id, ttl) = (HoldId::from(1), Micros::from_secs(1));
        let named = Op::Hold(HoldSpec { id, ttl, expiry: Expiry::Release, kind, quantity: None });
        let both = record_of(named, [&charged, &part]);
        assert_ne!(both, record_of(Op::Check, [&charged, &part]));
        let both = parts_of(&both, &names).unwrap();
        assert_eq!((both[0].hold, both[1].hold), (PartHold::None, PartHold::Ended));
        assert_eq!(read[0].limit.state(), "login:token-bucket1");
        assert_eq!(read[0].limit.limit().to_string(), "5/m");
        for bad in ["", "\n", "07\tlogin", &written.replace('\t', " ")] {
            assert!(parts_of(bad, &names).is_none(), "{bad:?}");
        }
    }
}
