//! Calls of several limits: all or none.

use tidegate_core::Micros;

use super::{Bench, EVERY_LIMIT};
use crate::Op;

pub(super) async fn run(new: impl Fn() -> Bench) {
    a_denied_call_charges_no_rule(&new()).await;
    an_allowed_call_charges_every_rule(&new()).await;
    the_same_limit_and_key_twice_is_one_of_both_costs(&new()).await;
    the_longest_wait_speaks(&new()).await;
}

async fn a_denied_call_charges_no_rule(bench: &Bench) {
    for text in EVERY_LIMIT {
        let first = bench.limit("first", text);
        let full = bench.limit("full", "sliding-log 1/60s");
        let third = bench.limit("third", "10/s");
        bench.check(&full, text, 1).await;
        let call = [(&first, text, 2), (&full, text, 1), (&third, text, 3)];
        let denied = bench.ask(Op::Check, &call).await.expect("a decision");
        assert!(!denied.allowed(), "{text}");
        let each: Vec<bool> = denied.verdicts.iter().map(|verdict| verdict.allowed).collect();
        assert_eq!(each, [true, false, true], "every limit says what it thinks, {text}");
        assert_eq!(bench.peek(&first, text).await.remaining, 10, "{text}");
        assert_eq!(bench.peek(&third, text).await.remaining, 10, "{text}");
        bench.advance(Micros::from_secs(120));
    }
}

async fn an_allowed_call_charges_every_rule(bench: &Bench) {
    let limits: Vec<_> =
        (0..EVERY_LIMIT.len()).map(|i| bench.limit(&format!("all-{i}"), EVERY_LIMIT[i])).collect();
    let call: Vec<_> = limits.iter().zip(1..).map(|(l, i)| (l, "k", 1 + i % 3)).collect();
    let decision = bench.ask(Op::Check, &call).await.expect("a decision");
    for ((limit, _, cost), verdict) in call.iter().zip(&decision.verdicts) {
        assert!(verdict.allowed);
        assert_eq!(verdict.remaining, 10 - cost, "{}", limit.limit());
    }
}

async fn the_same_limit_and_key_twice_is_one_of_both_costs(bench: &Bench) {
    for text in EVERY_LIMIT {
        let limit = bench.limit("twice", text);
        let denied = bench.ask(Op::Check, &[(&limit, text, 6), (&limit, text, 5)]).await;
        assert!(!denied.expect("a decision").allowed(), "11 of 10, {text}");
        let allowed = bench.ask(Op::Check, &[(&limit, text, 6), (&limit, text, 4)]).await;
        let allowed = allowed.expect("a decision");
        assert!(allowed.allowed(), "10 of 10, {text}");
        assert_eq!(allowed.verdicts.len(), 2, "one verdict per charge");
        assert!(allowed.verdicts.iter().all(|verdict| verdict.remaining == 0), "{text}");
    }
}

async fn the_longest_wait_speaks(bench: &Bench) {
    let short = bench.limit("short", "1/s");
    let long = bench.limit("long", "fixed-window 1/60s first-hit");
    let call = [(&short, "k", 1), (&long, "k", 1)];
    assert!(bench.ask(Op::Check, &call).await.expect("a decision").allowed());
    let denied = bench.ask(Op::Check, &call).await.expect("a decision");
    assert_eq!(denied.speaker(), 1);
    assert_eq!(denied.retry_after().span(), Some(Micros::from_secs(60)));
    bench.advance(Micros::from_secs(60));
    assert!(bench.ask(Op::Check, &call).await.expect("a decision").allowed());
}
