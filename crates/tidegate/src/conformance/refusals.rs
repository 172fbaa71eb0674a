//! Invalid calls: refused, and nothing changed.

use tidegate_core::{Cost, Expiry, Micros};

use super::harness::{EVERY_LIMIT, Harness};
use crate::{Call, Charge, Costs, EngineError, HoldId, Key, Op, Refusal};

pub(super) async fn run(new: impl Fn() -> Harness) {
    a_call_has_charges_or_a_hold(&new()).await;
    a_key_is_bounded_in_length(&new()).await;
    concurrency_can_only_be_held(&new()).await;
    a_hold_needs_a_valid_length_and_a_new_id(&new()).await;
    an_unknown_hold_is_unknown(&new()).await;
}

fn refusal<T: std::fmt::Debug>(result: Result<T, EngineError>) -> Refusal {
    let error = result.expect_err("refused");
    error.refusal().cloned().unwrap_or_else(|| panic!("not a refusal: {error}"))
}

async fn a_call_has_charges_or_a_hold(harness: &Harness) {
    let limit = harness.limit("charges", "10/s");
    let call = |op| Call { op, charges: &[], idempotency_key: None };
    assert_eq!(refusal(harness.engine.decide(call(Op::Check)).await), Refusal::ChargeCount(0));
    let many = vec![(&limit, "k", 0); Call::MAX_CHARGES + 1];
    let count = Refusal::ChargeCount(Call::MAX_CHARGES + 1);
    assert_eq!(refusal(harness.call(Op::Check, &many).await), count);
    let settle = Op::Settle { id: HoldId::from(1), costs: Costs::AsHeld };
    assert_eq!(refusal(harness.call(settle, &[(&limit, "k", 1)]).await), Refusal::ChargeCount(1));
}

async fn a_key_is_bounded_in_length(harness: &Harness) {
    let limit = harness.limit("length", "10/s");
    let long = "x".repeat(Key::MAX_LEN + 1);
    let key = Key::from(&*long);
    let charge = Charge { limit: &limit, key, cost: Cost::ONE, caller: None };
    let call = Call { op: Op::Check, charges: &[charge], idempotency_key: None };
    assert_eq!(refusal(harness.engine.decide(call).await), Refusal::KeyTooLong);
    assert_eq!(refusal(harness.engine.inspect(&limit, key).await), Refusal::KeyTooLong);
}

async fn concurrency_can_only_be_held(harness: &Harness) {
    let holders = harness.limit("holders", "concurrency 2");
    let other = harness.limit("other", "10/m");
    for op in [Op::Check, Op::Record, Op::Refund] {
        let refused = refusal(harness.call(op, &[(&other, "k", 1), (&holders, "k", 1)]).await);
        assert_eq!(refused, Refusal::ConcurrencyNeedsHold, "{op:?}");
    }
    assert_eq!(harness.peek(&other, "k").await.remaining, 10, "nothing was charged");
}

async fn a_hold_needs_a_valid_length_and_a_new_id(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("hold", text);
        let long = HoldId::MAX_TTL.saturating_add(Micros::new(1));
        for ttl in [Micros::ZERO, long, Micros::MAX] {
            let (_, hold) = harness.hold(ttl);
            assert_eq!(
                refusal(harness.call(hold, &[(&limit, text, 1)]).await),
                Refusal::HoldLength
            );
        }
        let (id, hold) = harness.hold(Micros::from_secs(5));
        assert_eq!(refusal(harness.call(hold, &[(&limit, text, 0)]).await), Refusal::EmptyHold);
        let id = harness.one(hold, &limit, text, 1).await.hold().unwrap_or(id);
        assert_eq!(refusal(harness.call(hold, &[(&limit, text, 1)]).await), Refusal::IdReused);
        assert_eq!(refusal(harness.renew(id, Micros::ZERO).await), Refusal::HoldLength);
        assert_eq!(harness.peek(&limit, text).await.remaining, 9, "{text}");
    }
}

async fn an_unknown_hold_is_unknown(harness: &Harness) {
    let (id, _) = harness.hold(Micros::from_secs(5));
    assert_eq!(refusal(harness.settle(id, Some(1)).await), Refusal::UnknownHold);
    assert_eq!(refusal(harness.renew(id, Micros::from_secs(5)).await), Refusal::UnknownHold);
    let limit = harness.limit("denied", "10/s");
    let denied = Op::hold(id, Micros::from_secs(5), Expiry::Release);
    assert!(!harness.one(denied, &limit, "k", 11).await.allowed());
    assert_eq!(refusal(harness.settle(id, Some(1)).await), Refusal::UnknownHold, "never made");
}
