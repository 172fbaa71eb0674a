//! Circuits per shard.

use std::time::Duration;

use testkit::engines::{BreakerFixture, StoreMode};

#[test]
fn a_shard_that_fails_does_not_affect_the_others() {
    let bench = BreakerFixture::new(|breaker| breaker);
    bench.store.set(StoreMode::UnavailableFor('c'));
    for _ in 0..20 {
        let _ = bench.check("c1");
        bench.check("a1").unwrap();
        bench.check("b1").unwrap();
    }
    let calls_before = bench.store.calls();
    assert!(bench.check("c2").is_err());
    assert_eq!(bench.store.calls(), calls_before, "the failed shard gets no calls");
    assert_eq!(bench.events(), ["opened 2: made to fail"]);
}

#[test]
fn a_call_over_several_is_refused_if_one_of_them_is_open() {
    let bench = BreakerFixture::new(|breaker| breaker);
    bench.store.set(StoreMode::UnavailableFor('b'));
    (0..5).for_each(|_| _ = bench.check("b"));
    let calls_before = bench.store.calls();
    for keys in [&["a", "b"][..], &["b", "a"], &["a", "b", "c"]] {
        assert!(bench.check_each(keys).is_err(), "{keys:?}");
    }
    assert_eq!(bench.store.calls(), calls_before);
    bench.check_each(&["a", "c"]).unwrap();
}

/// The breaker cannot see which of the shards failed.
#[test]
fn a_shard_opened_by_failures_of_another_closes_by_its_next_probes() {
    let bench = BreakerFixture::new(|breaker| breaker);
    bench.store.set(StoreMode::UnavailableFor('b'));
    for _ in 0..5 {
        assert!(bench.check_each(&["a", "b"]).is_err());
    }
    assert_eq!(bench.events(), ["opened 0: made to fail", "opened 1: made to fail"]);
    assert!(bench.check("a").is_err());
    bench.clock.advance(Duration::from_millis(100));
    bench.close("a");
    assert_eq!(bench.events()[2..], ["closed 0 after 100ms"]);
    // A call of both shards starts a probe of the open one, which fails; the other stays closed.
    for _ in 0..20 {
        assert!(bench.check_each(&["a", "b"]).is_err());
        bench.clock.advance(Duration::from_millis(50));
        (0..5).for_each(|_| drop(bench.check("a").unwrap()));
    }
    bench.store.set(StoreMode::Reply);
    bench.clock.advance(Duration::from_millis(400));
    for last in [false, false, true] {
        assert_eq!(bench.check_each(&["b", "a"]).is_ok(), last);
    }
    assert_eq!(bench.events().len(), 4);
    assert!(bench.events()[3].starts_with("closed 1"), "{:?}", bench.events());
}

/// Two circuits are open, and a call needs both: each is probed when it is due.
#[test]
fn a_call_over_several_probes_each_shard_that_is_due() {
    let bench = BreakerFixture::new(|breaker| breaker);
    bench.store.set(StoreMode::Unavailable);
    (0..5).for_each(|_| _ = bench.check("a"));
    bench.clock.advance(Duration::from_millis(90));
    (0..5).for_each(|_| _ = bench.check("b"));
    bench.clock.advance(Duration::from_millis(20));
    bench.store.set(StoreMode::Reply);
    for _ in 0..10 {
        assert!(bench.check_each(&["a", "b"]).is_err());
    }
    assert!(bench.events()[2].starts_with("closed 0"), "{:?}", bench.events());
    assert_eq!(bench.events().len(), 3, "the other is not due yet");
    bench.clock.advance(Duration::from_millis(100));
    (0..3).for_each(|_| _ = bench.check_each(&["a", "b"]));
    assert!(bench.events()[3].starts_with("closed 1"), "{:?}", bench.events());
}

/// Slots move: what was on this shard is on another one.
#[test]
fn a_shard_without_keys_is_reset_instead_of_probed() {
    let bench = BreakerFixture::new(|breaker| breaker);
    bench.store.set(StoreMode::Unavailable);
    (0..5).for_each(|_| _ = bench.check("c1"));
    bench.store.move_all_to_shard_0();
    let calls_before = bench.store.calls();
    bench.clock.advance(Duration::from_millis(200));
    assert!(bench.probe().is_ok());
    assert_eq!(bench.store.calls(), calls_before, "no key to probe with");
    assert!(bench.events()[1].starts_with("forgot 2"), "{:?}", bench.events());
}
