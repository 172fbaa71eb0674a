use super::*;

const MS: u64 = 1_000;

/// Records a failure at once.
fn fail(machine: &mut CircuitMachine, at: Micros) -> Option<CircuitTransition> {
    machine.on_call(at, CallWait { began: at, is_late: false }, false)
}

/// A circuit that opens at this instant.
fn opened(at: Micros) -> CircuitMachine {
    let mut machine = CircuitMachine::new(7);
    let changes: Vec<_> = (0..5).filter_map(|_| fail(&mut machine, at)).collect();
    assert_eq!(changes, [CircuitTransition::Opened]);
    machine
}

/// Time from `from` to the next probe, trying every millisecond.
fn next_probe(machine: &mut CircuitMachine, from: Micros, up: bool) -> Option<Micros> {
    for ms in 0..10_000 {
        let now = from.saturating_add(Micros::from_millis(ms));
        if machine.admit(now) == CircuitAdmission::MayProbe && machine.begin(now, up) {
            return Some(Micros::from_millis(ms));
        }
    }
    None
}

#[test]
fn an_open_circuit_sends_nothing_during_its_pause_and_then_one_call_at_a_time() {
    let start = Micros::from_secs(100);
    let mut machine = opened(start);
    assert_eq!(machine.circuit(), Circuit::Open);
    assert_eq!(machine.admit(start), CircuitAdmission::Refuse);
    let first = next_probe(&mut machine, start, true).unwrap();
    assert!((50 * MS..=100 * MS).contains(&first.get()), "{first:?}");
    let mut now = start.saturating_add(first);
    assert_eq!(machine.circuit(), Circuit::HalfOpen);
    for good in 1..=CircuitMachine::GOOD_PROBES {
        assert_eq!(machine.admit(now), CircuitAdmission::Refuse, "a probe is in flight");
        now = now.saturating_add(Micros::from_millis(1));
        let change = machine.on_probe(now, true);
        let after = now.saturating_sub(start);
        let closed =
            (good == CircuitMachine::GOOD_PROBES).then_some(CircuitTransition::Closed { after });
        assert_eq!(change, closed);
        if closed.is_none() {
            assert!(
                machine.admit(now) == CircuitAdmission::MayProbe && machine.begin(now, true),
                "the next probe at once"
            );
        }
    }
    assert_eq!((machine.circuit(), machine.admit(now)), (Circuit::Closed, CircuitAdmission::Send));
}

#[test]
fn failed_probes_lengthen_the_pause_up_to_its_maximum() {
    let mut now = Micros::from_secs(100);
    let mut machine = opened(now);
    for max in [100, 200, 200, 200, 200, 200] {
        let pause = next_probe(&mut machine, now, true).unwrap();
        assert!((max * MS / 2..=max * MS + MS).contains(&pause.get()), "{max}: {pause:?}");
        now = now.saturating_add(pause);
        assert_eq!(machine.on_probe(now, false), None);
        assert_eq!(machine.circuit(), Circuit::Open);
    }
}

#[test]
fn successful_probes_between_failed_ones_do_not_close_the_circuit() {
    let mut now = Micros::from_secs(100);
    let mut machine = opened(now);
    for probe in 0..300 {
        now = now.saturating_add(next_probe(&mut machine, now, true).unwrap());
        assert_eq!(machine.on_probe(now, probe % 3 != 2), None, "two of three succeed");
    }
}

#[test]
fn a_store_that_is_down_is_probed_rarely_and_at_once_when_it_is_up() {
    let start = Micros::from_secs(100);
    let mut machine = opened(start);
    let mut probes = 0;
    let mut now = start;
    while now < start.saturating_add(Micros::from_secs(60)) {
        if machine.admit(now) == CircuitAdmission::MayProbe && machine.begin(now, false) {
            probes += 1;
            // The length of a caller's deadline.
            now = now.saturating_add(Micros::from_millis(25));
            assert_eq!(machine.on_probe(now, false), None);
        }
        now = now.saturating_add(Micros::from_millis(1));
    }
    assert!((60..=160).contains(&probes), "{probes} of a minute's calls");
    let back = next_probe(&mut machine, now, true).unwrap();
    assert!(back <= CircuitMachine::HEALTH_POLL_INTERVAL, "{back:?}");
}

#[test]
fn a_cancelled_probe_is_followed_by_the_next() {
    let start = Micros::from_secs(100);
    let mut machine = opened(start);
    let now = start.saturating_add(Micros::from_secs(1));
    for _ in 0..10 {
        assert!(machine.admit(now) == CircuitAdmission::MayProbe && machine.begin(now, true));
        machine.cancel_probe();
    }
    assert_eq!(machine.circuit(), Circuit::Open, "none of them succeeded");
}

/// Closes the circuit by successful probes, and counts them.
fn close(machine: &mut CircuitMachine, now: &mut Micros) -> u32 {
    for good in 1..=100 {
        *now = now.saturating_add(next_probe(machine, *now, true).unwrap());
        if machine.on_probe(*now, true).is_some() {
            return good;
        }
    }
    panic!("the circuit does not close");
}

#[test]
fn a_circuit_that_reopens_too_early_needs_twice_as_many_successful_probes() {
    let mut now = Micros::from_secs(100);
    let mut machine = opened(now);
    for needed in [3, 6, 12, 24, 48, 48] {
        assert_eq!(close(&mut machine, &mut now), needed);
        now = now.saturating_add(Micros::from_secs(29));
        (0..5).for_each(|_| _ = fail(&mut machine, now));
    }
    close(&mut machine, &mut now);
    now = now.saturating_add(CircuitMachine::REOPEN_WINDOW);
    (0..5).for_each(|_| _ = fail(&mut machine, now));
    assert_eq!(close(&mut machine, &mut now), 3, "back to the first number");
}

/// Pauses before the first probe: of a store that recovers as soon as it gets no calls, and of one
/// that was down each time.
#[test]
fn a_store_that_fails_under_load_gets_a_longer_pause_each_time() {
    for (is_down, expected) in
        [(false, [100, 200, 400, 800, 1_600, 3_200, 6_400, 6_400]), (true, [100; 8])]
    {
        let mut now = Micros::from_secs(100);
        let mut machine = opened(now);
        for max in expected {
            if is_down {
                // One poll that finds the store down, and a later one that finds it up.
                now = now.saturating_add(CircuitMachine::FIRST_PAUSE);
                assert!(
                    machine.admit(now) == CircuitAdmission::MayProbe && !machine.begin(now, false)
                );
            }
            let pause = next_probe(&mut machine, now, true).unwrap().get();
            let pauses = if is_down { 0..=20 * MS } else { max * MS / 2..=(max + 100) * MS };
            assert!(pauses.contains(&pause), "{max}: {pause}");
            now = now.saturating_add(Micros::new(pause));
            machine.cancel_probe();
            close(&mut machine, &mut now);
            now = now.saturating_add(Micros::from_secs(1));
            (0..5).for_each(|_| _ = fail(&mut machine, now));
        }
    }
}

/// A store 60 ms away: its replies take 60 ms, and then it is silent.
#[test]
fn a_store_far_away_is_silent_after_twice_the_time_of_a_reply() {
    let ms = Micros::from_millis;
    for (took, expected) in [(None, 75), (Some(1), 75), (Some(37), 75), (Some(60), 120)] {
        let mut machine = CircuitMachine::new(7);
        let start = Micros::from_secs(100);
        if let Some(took) = took {
            let wait = CallWait { began: start, is_late: false };
            machine.on_call(start.saturating_add(ms(took)), wait, true);
        }
        let begun = Micros::from_secs(200);
        (0..5).for_each(|_| machine.on_late(begun));
        let silent = (25..500)
            .find(|after| machine.open_if_silent(begun.saturating_add(ms(*after))).is_some());
        assert_eq!(silent, Some(expected), "{took:?}");
        assert_eq!(machine.circuit(), Circuit::Open);
    }
}

#[test]
fn probes_find_out_how_far_away_a_store_is() {
    let mut now = Micros::from_secs(100);
    let mut machine = opened(now);
    for _ in 0..3 {
        now = now.saturating_add(next_probe(&mut machine, now, true).unwrap());
        now = now.saturating_add(Micros::from_millis(90));
        machine.on_probe(now, true);
    }
    assert_eq!(machine.circuit(), Circuit::Closed);
    (0..5).for_each(|_| machine.on_late(now));
    assert_eq!(machine.open_if_silent(now.saturating_add(Micros::from_millis(179))), None);
    assert!(machine.open_if_silent(now.saturating_add(Micros::from_millis(180))).is_some());
}
