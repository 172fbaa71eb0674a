//! Shards that fail apart.

use std::time::Duration;

use super::store::{Bench, Fate};

#[test]
fn a_shard_that_fails_leaves_the_others_alone() {
    let bench = Bench::new(|breaker| breaker);
    bench.store.set(Fate::Without('c'));
    for _ in 0..20 {
        let _ = bench.check("c1");
        bench.check("a1").unwrap();
        bench.check("b1").unwrap();
    }
    let asked = bench.store.asked();
    assert!(bench.check("c2").is_err());
    assert_eq!(bench.store.asked(), asked, "nobody asks the shard that is gone");
    assert_eq!(bench.events(), ["opened 2: made to fail"]);
}

#[test]
fn a_call_over_several_is_refused_if_one_of_them_is_open() {
    let bench = Bench::new(|breaker| breaker);
    bench.store.set(Fate::Without('b'));
    (0..5).for_each(|_| _ = bench.check("b"));
    let asked = bench.store.asked();
    for keys in [&["a", "b"][..], &["b", "a"], &["a", "b", "c"]] {
        assert!(bench.check_each(keys).is_err(), "{keys:?}");
    }
    assert_eq!(bench.store.asked(), asked);
    bench.check_each(&["a", "c"]).unwrap();
}

/// Nobody knows which of them did not answer.
#[test]
fn a_shard_that_was_opened_for_the_sake_of_another_heals_by_its_next_probes() {
    let bench = Bench::new(|breaker| breaker);
    bench.store.set(Fate::Without('b'));
    for _ in 0..5 {
        assert!(bench.check_each(&["a", "b"]).is_err());
    }
    assert_eq!(bench.events(), ["opened 0: made to fail", "opened 1: made to fail"]);
    assert!(bench.check("a").is_err());
    bench.clock.advance(Duration::from_millis(100));
    for _ in 0..3 {
        bench.check("a").unwrap();
    }
    assert_eq!(bench.events()[2..], ["closed 0 after 100ms"]);
    // What is asked of both is a probe of the one and fails; the other goes on.
    for _ in 0..20 {
        assert!(bench.check_each(&["a", "b"]).is_err());
        bench.clock.advance(Duration::from_millis(50));
        (0..5).for_each(|_| drop(bench.check("a").unwrap()));
    }
    bench.store.set(Fate::Answer);
    bench.clock.advance(Duration::from_millis(400));
    for _ in 0..3 {
        bench.check_each(&["b", "a"]).unwrap();
    }
    assert_eq!(bench.events().len(), 4);
    assert!(bench.events()[3].starts_with("closed 1"), "{:?}", bench.events());
}

/// Two circuits are open and only one of them lets a probe through: it must not keep that place.
#[test]
fn a_call_that_one_of_two_refuses_takes_the_place_of_no_probe() {
    let bench = Bench::new(|breaker| breaker);
    bench.store.set(Fate::Unavailable);
    (0..5).for_each(|_| _ = bench.check("a"));
    bench.clock.advance(Duration::from_millis(90));
    (0..5).for_each(|_| _ = bench.check("b"));
    bench.clock.advance(Duration::from_millis(20));
    let asked = bench.store.asked();
    bench.store.set(Fate::Answer);
    for _ in 0..10 {
        assert!(bench.check_each(&["a", "b"]).is_err());
    }
    assert_eq!(bench.store.asked(), asked);
    (0..3).for_each(|_| drop(bench.check("a").unwrap()));
    assert!(bench.events()[2].starts_with("closed 0"), "{:?}", bench.events());
}
