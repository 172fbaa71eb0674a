//! Bad calls: refused, and nothing changed.

use tidegate_core::{Cost, Expiry, Micros};

use super::{Bench, EVERY_LIMIT};
use crate::{Call, Charge, EngineError, HoldId, Key, Op, Refusal};

pub(super) async fn run(new: impl Fn() -> Bench) {
    a_call_has_charges_or_a_hold(&new()).await;
    a_key_has_a_length(&new()).await;
    concurrency_can_only_be_held(&new()).await;
    a_hold_has_a_length_and_a_name_of_its_own(&new()).await;
    an_unknown_hold_is_unknown(&new()).await;
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, EngineError>) -> Refusal {
    let error = answer.expect_err("refused");
    error.refusal().cloned().unwrap_or_else(|| panic!("not a refusal: {error}"))
}

async fn a_call_has_charges_or_a_hold(bench: &Bench) {
    let limit = bench.limit("charges", "10/s");
    let call = |op| Call { op, charges: &[], once: None };
    assert_eq!(refusal(bench.engine.decide(call(Op::Check)).await), Refusal::ChargeCount(0));
    let many = vec![(&limit, "k", 0); Call::MAX_CHARGES + 1];
    let count = Refusal::ChargeCount(Call::MAX_CHARGES + 1);
    assert_eq!(refusal(bench.ask(Op::Check, &many).await), count);
    let settle = Op::Settle { id: HoldId::from(1), cost: None };
    assert_eq!(refusal(bench.ask(settle, &[(&limit, "k", 1)]).await), Refusal::ChargeCount(1));
}

async fn a_key_has_a_length(bench: &Bench) {
    let limit = bench.limit("length", "10/s");
    let long = "x".repeat(Key::MAX_LEN + 1);
    let key = Key::from(&*long);
    let charge = Charge { limit: &limit, key, cost: Cost::ONE, who: None };
    let call = Call { op: Op::Check, charges: &[charge], once: None };
    assert_eq!(refusal(bench.engine.decide(call).await), Refusal::KeyTooLong);
    assert_eq!(refusal(bench.engine.inspect(&limit, key).await), Refusal::KeyTooLong);
}

async fn concurrency_can_only_be_held(bench: &Bench) {
    let holders = bench.limit("holders", "concurrency 2");
    let beside = bench.limit("beside", "10/m");
    for op in [Op::Check, Op::Record, Op::Refund] {
        let refused = refusal(bench.ask(op, &[(&beside, "k", 1), (&holders, "k", 1)]).await);
        assert_eq!(refused, Refusal::ConcurrencyNeedsHold, "{op:?}");
    }
    assert_eq!(bench.peek(&beside, "k").await.remaining, 10, "nothing was charged");
}

async fn a_hold_has_a_length_and_a_name_of_its_own(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("hold", text);
        let long = HoldId::MAX_TTL.saturating_add(Micros::new(1));
        for ttl in [Micros::ZERO, long, Micros::MAX] {
            let (_, hold) = bench.hold(ttl);
            assert_eq!(refusal(bench.ask(hold, &[(&limit, text, 1)]).await), Refusal::HoldLength);
        }
        let (id, hold) = bench.hold(Micros::from_secs(5));
        assert_eq!(refusal(bench.ask(hold, &[(&limit, text, 0)]).await), Refusal::EmptyHold);
        let id = bench.one(hold, &limit, text, 1).await.hold().unwrap_or(id);
        assert_eq!(refusal(bench.ask(hold, &[(&limit, text, 1)]).await), Refusal::IdReused);
        assert_eq!(refusal(bench.renew(id, Micros::ZERO).await), Refusal::HoldLength);
        assert_eq!(bench.peek(&limit, text).await.remaining, 9, "{text}");
    }
}

async fn an_unknown_hold_is_unknown(bench: &Bench) {
    let (id, _) = bench.hold(Micros::from_secs(5));
    assert_eq!(refusal(bench.settle(id, Some(1)).await), Refusal::UnknownHold);
    assert_eq!(refusal(bench.renew(id, Micros::from_secs(5)).await), Refusal::UnknownHold);
    let limit = bench.limit("denied", "10/s");
    let denied = Op::Hold { id, ttl: Micros::from_secs(5), expiry: Expiry::Release };
    assert!(!bench.one(denied, &limit, "k", 11).await.allowed());
    assert_eq!(refusal(bench.settle(id, Some(1)).await), Refusal::UnknownHold, "never made");
}
