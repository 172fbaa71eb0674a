//! Calls of several limits: all or none.

use tidegate_core::Micros;

use super::harness::{EVERY_LIMIT, Harness};
use crate::Op;

pub(super) async fn run(new: impl Fn() -> Harness) {
    a_denied_call_charges_no_rule(&new()).await;
    an_allowed_call_charges_every_rule(&new()).await;
    charges_of_the_same_limit_and_key_are_summed(&new()).await;
    the_longest_wait_is_the_most_restrictive(&new()).await;
}

async fn a_denied_call_charges_no_rule(harness: &Harness) {
    for text in EVERY_LIMIT {
        let first = harness.limit("first", text);
        let full = harness.limit("full", "sliding-log 1/60s");
        let third = harness.limit("third", "10/s");
        harness.check(&full, text, 1).await;
        let call = [(&first, text, 2), (&full, text, 1), (&third, text, 3)];
        let denied = harness.call(Op::Check, &call).await.expect("a decision");
        assert!(!denied.allowed(), "{text}");
        let each: Vec<bool> = denied.verdicts.iter().map(|verdict| verdict.allowed).collect();
        assert_eq!(each, [true, false, true], "every limit has its verdict, {text}");
        assert_eq!(harness.peek(&first, text).await.remaining, 10, "{text}");
        assert_eq!(harness.peek(&third, text).await.remaining, 10, "{text}");
        harness.advance(Micros::from_secs(120));
    }
}

async fn an_allowed_call_charges_every_rule(harness: &Harness) {
    let limits: Vec<_> = (0..EVERY_LIMIT.len())
        .map(|i| harness.limit(&format!("all-{i}"), EVERY_LIMIT[i]))
        .collect();
    let call: Vec<_> = limits.iter().zip(1..).map(|(l, i)| (l, "k", 1 + i % 3)).collect();
    let decision = harness.call(Op::Check, &call).await.expect("a decision");
    for ((limit, _, cost), verdict) in call.iter().zip(&decision.verdicts) {
        assert!(verdict.allowed);
        assert_eq!(verdict.remaining, 10 - cost, "{}", limit.limit());
    }
}

async fn charges_of_the_same_limit_and_key_are_summed(harness: &Harness) {
    for text in EVERY_LIMIT {
        let limit = harness.limit("twice", text);
        let denied = harness.call(Op::Check, &[(&limit, text, 6), (&limit, text, 5)]).await;
        assert!(!denied.expect("a decision").allowed(), "11 of 10, {text}");
        let allowed = harness.call(Op::Check, &[(&limit, text, 6), (&limit, text, 4)]).await;
        let allowed = allowed.expect("a decision");
        assert!(allowed.allowed(), "10 of 10, {text}");
        assert_eq!(allowed.verdicts.len(), 2, "one verdict per charge");
        assert!(allowed.verdicts.iter().all(|verdict| verdict.remaining == 0), "{text}");
    }
}

async fn the_longest_wait_is_the_most_restrictive(harness: &Harness) {
    let short = harness.limit("short", "1/s");
    let long = harness.limit("long", "fixed-window 1/60s first-hit");
    let call = [(&short, "k", 1), (&long, "k", 1)];
    assert!(harness.call(Op::Check, &call).await.expect("a decision").allowed());
    let denied = harness.call(Op::Check, &call).await.expect("a decision");
    assert_eq!(denied.most_restrictive(), 1);
    assert_eq!(denied.retry_after().span(), Some(Micros::from_secs(60)));
    harness.advance(Micros::from_secs(60));
    assert!(harness.call(Op::Check, &call).await.expect("a decision").allowed());
}
