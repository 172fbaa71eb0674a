use super::*;

const MS: u64 = 1_000;

/// A machine that has just opened, at this instant.
fn opened(at: Micros) -> Machine {
    let mut machine = Machine::new(7);
    let changes: Vec<_> = (0..5).filter_map(|_| machine.passed(at, false)).collect();
    assert_eq!(changes, [Change::Opened]);
    machine
}

/// How long after `from` the next call is let through, looking every millisecond.
fn next_probe(machine: &mut Machine, from: Micros, up: bool) -> Option<Micros> {
    for ms in 0..10_000 {
        let now = from.saturating_add(Micros::from_millis(ms));
        if machine.ask(now) == Ask::Look && machine.begin(now, up) {
            return Some(Micros::from_millis(ms));
        }
    }
    None
}

#[test]
fn an_open_circuit_asks_nobody_until_its_pause_is_over_and_then_one_at_a_time() {
    let start = Micros::from_secs(100);
    let mut machine = opened(start);
    assert_eq!(machine.circuit(), Circuit::Open);
    assert_eq!(machine.ask(start), Ask::Refuse);
    let first = next_probe(&mut machine, start, true).unwrap();
    assert!((50 * MS..=100 * MS).contains(&first.get()), "{first:?}");
    let mut now = start.saturating_add(first);
    assert_eq!(machine.circuit(), Circuit::HalfOpen);
    for good in 1..=Machine::GOOD_PROBES {
        assert_eq!(machine.ask(now), Ask::Refuse, "one is on its way");
        now = now.saturating_add(Micros::from_millis(1));
        let change = machine.probed(now, true);
        let after = now.saturating_sub(start);
        let closed = (good == Machine::GOOD_PROBES).then_some(Change::Closed { after });
        assert_eq!(change, closed);
        if closed.is_none() {
            assert!(machine.ask(now) == Ask::Look && machine.begin(now, true), "the next at once");
        }
    }
    assert_eq!((machine.circuit(), machine.ask(now)), (Circuit::Closed, Ask::Pass));
}

#[test]
fn probes_that_fail_come_less_and_less_often_but_soon_enough() {
    let mut now = Micros::from_secs(100);
    let mut machine = opened(now);
    for most in [100, 200, 200, 200, 200, 200] {
        let pause = next_probe(&mut machine, now, true).unwrap();
        assert!((most * MS / 2..=most * MS + MS).contains(&pause.get()), "{most}: {pause:?}");
        now = now.saturating_add(pause);
        assert_eq!(machine.probed(now, false), None);
        assert_eq!(machine.circuit(), Circuit::Open);
    }
}

#[test]
fn one_good_probe_among_bad_ones_closes_nothing() {
    let mut now = Micros::from_secs(100);
    let mut machine = opened(now);
    for probe in 0..300 {
        now = now.saturating_add(next_probe(&mut machine, now, true).unwrap());
        assert_eq!(machine.probed(now, probe % 3 != 2), None, "two of three are good");
    }
}

#[test]
fn a_store_that_is_not_there_is_asked_rarely_and_at_once_when_it_is_back() {
    let start = Micros::from_secs(100);
    let mut machine = opened(start);
    let mut asked = 0;
    let mut now = start;
    while now < start.saturating_add(Micros::from_secs(60)) {
        if machine.ask(now) == Ask::Look && machine.begin(now, false) {
            asked += 1;
            // As long as a caller's deadline.
            now = now.saturating_add(Micros::from_millis(25));
            assert_eq!(machine.probed(now, false), None);
        }
        now = now.saturating_add(Micros::from_millis(1));
    }
    assert!((60..=160).contains(&asked), "{asked} of a minute's calls");
    let back = next_probe(&mut machine, now, true).unwrap();
    assert!(back <= Machine::LOOK_EVERY, "{back:?}");
}

#[test]
fn a_probe_that_is_given_up_makes_room_for_the_next() {
    let start = Micros::from_secs(100);
    let mut machine = opened(start);
    let now = start.saturating_add(Micros::from_secs(1));
    for _ in 0..10 {
        assert!(machine.ask(now) == Ask::Look && machine.begin(now, true));
        machine.give_up();
    }
    assert_eq!(machine.circuit(), Circuit::Open, "none of them was good");
}

/// Closes by good probes, and counts them.
fn close(machine: &mut Machine, now: &mut Micros) -> u32 {
    for good in 1..=100 {
        *now = now.saturating_add(next_probe(machine, *now, true).unwrap());
        if machine.probed(*now, true).is_some() {
            return good;
        }
    }
    panic!("it does not close");
}

#[test]
fn whoever_opens_again_too_early_needs_twice_as_many_good_probes() {
    let mut now = Micros::from_secs(100);
    let mut machine = opened(now);
    for needed in [3, 6, 12, 24, 48, 48] {
        assert_eq!(close(&mut machine, &mut now), needed);
        now = now.saturating_add(Micros::from_secs(29));
        (0..5).for_each(|_| _ = machine.passed(now, false));
    }
    close(&mut machine, &mut now);
    now = now.saturating_add(Machine::TOO_EARLY);
    (0..5).for_each(|_| _ = machine.passed(now, false));
    assert_eq!(close(&mut machine, &mut now), 3, "all is forgiven");
}

/// The pauses before the first probe: of a store that answers as soon as nobody asks it anything, and
/// of one that was really gone each time.
#[test]
fn a_store_that_breaks_under_its_load_is_left_alone_for_longer_each_time() {
    for (gone, expected) in
        [(false, [100, 200, 400, 800, 1_600, 3_200, 6_400, 6_400]), (true, [100; 8])]
    {
        let mut now = Micros::from_secs(100);
        let mut machine = opened(now);
        for most in expected {
            if gone {
                // A look that found nobody, and one a little later that found it back.
                now = now.saturating_add(Machine::FIRST_PAUSE);
                assert!(machine.ask(now) == Ask::Look && !machine.begin(now, false));
            }
            let pause = next_probe(&mut machine, now, true).unwrap().get();
            let pauses = if gone { 0..=20 * MS } else { most * MS / 2..=(most + 100) * MS };
            assert!(pauses.contains(&pause), "{most}: {pause}");
            now = now.saturating_add(Micros::new(pause));
            machine.give_up();
            close(&mut machine, &mut now);
            now = now.saturating_add(Micros::from_secs(1));
            (0..5).for_each(|_| _ = machine.passed(now, false));
        }
    }
}
