//! Bounds over every interval, on a clock that never steps.

use tidegate_core::{CalendarUnit, Cost, Holds, Micros, Moment};
use tidegate_model::{PrintOnPanic, TraceRng, print_line};

use super::attacker::{Attacker, Event};
use super::bound::{Case, Draw, FAMILIES, calendar, case};
use super::histories;

const DAY: u64 = 86_400_000_000;

/// Runs random histories of one family and checks all intervals of each.
pub(crate) fn try_family(what: &str, (name, draw): (&str, Draw), act: impl Fn(&mut Attacker)) {
    let histories = histories(2_000);
    let (mut intervals, mut full) = (0, 0);
    // Families that draw the same numbers must not run the same histories.
    let salt = name.bytes().fold(0_u64, |salt, byte| salt.wrapping_mul(257) + u64::from(byte));
    for seed in 0..histories {
        let _named = PrintOnPanic(format!("{what}: {name}: history {seed}"));
        let mut rng = TraceRng::new(seed ^ salt);
        let case = case(draw, &mut rng);
        let mut attacker = Attacker::new(rng, case);
        for _ in 0..80 {
            attacker.wait();
            act(&mut attacker);
        }
        let checked = attacker.check_intervals();
        intervals += checked.0;
        full += checked.1;
    }
    assert!(full > 0, "{what}: {name}: the attacker never reached the bound");
    print_line(&format!(
        "{what}: {name}: {histories} histories, {intervals} intervals ({full} full), 0 broken"
    ));
}

#[test]
fn no_interval_admits_more_than_the_bound() {
    for family in FAMILIES {
        try_family("bound", family, Attacker::attack);
    }
}

#[test]
fn refunds_add_no_more_than_themselves() {
    for family in FAMILIES {
        try_family("bound with refunds", family, |attacker| {
            if attacker.rng.one_in(4) {
                attacker.refund();
            } else {
                attacker.attack();
            }
        });
    }
}

#[test]
fn holds_settled_for_no_more_than_they_hold_add_nothing() {
    for family in FAMILIES {
        try_family("bound with holds", family, |attacker| match attacker.rng.below(6) {
            0 | 1 => attacker.hold(),
            2 => attacker.settle(),
            _ => attacker.attack(),
        });
    }
}

#[test]
fn an_aligned_window_admits_at_most_its_limit() {
    let mut windows = 0;
    for seed in 0..histories(600) {
        let mut rng = TraceRng::new(seed);
        let case = case(FAMILIES[4].1, &mut rng);
        let Case { edge: length, .. } = case;
        let limit = case.limit.capacity();
        let mut attacker = Attacker::new(rng, case);
        for _ in 0..80 {
            attacker.wait();
            attacker.attack();
        }
        let mut per_window = std::collections::BTreeMap::<u64, u64>::new();
        for event in &attacker.log {
            if let Event::Admit { at, permits } = *event {
                *per_window.entry(at / length).or_default() += permits;
            }
        }
        windows += per_window.len();
        assert!(per_window.values().all(|&admitted| admitted <= limit));
    }
    print_line(&format!("limit per window: {windows} windows, 0 broken"));
}

/// Plausible calendar boundaries: days with an hour of daylight saving, or the months of 2023-2025.
fn boundaries(rng: &mut TraceRng, unit: CalendarUnit) -> Vec<u64> {
    let start = 1_672_531_200_000_000;
    let days: Vec<u64> = match unit {
        CalendarUnit::Day => (0..40).map(|_| 1).collect(),
        CalendarUnit::Week => (0..40).map(|_| 7).collect(),
        CalendarUnit::Month => {
            let year = |february| [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            [year(28), year(29), year(28)].concat()
        }
    };
    let mut boundary = start;
    let mut boundaries = vec![boundary];
    for days in days {
        boundary += days * DAY;
        let hour = 3_600_000_000;
        let saving = rng.pick(&[0, 0, 0, hour]);
        boundaries.push(boundary - saving);
    }
    boundaries
}

#[test]
fn no_interval_as_short_as_a_calendar_window_admits_more_than_twice_its_limit() {
    for unit in [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month] {
        let mut intervals = 0;
        for seed in 0..histories(200) {
            intervals += attack_calendar(&mut TraceRng::new(seed), unit);
        }
        print_line(&format!(
            "bound: fixed-window calendar {unit:?}: {intervals} intervals, 0 broken"
        ));
    }
}

fn attack_calendar(rng: &mut TraceRng, unit: CalendarUnit) -> u64 {
    let boundaries = boundaries(rng, unit);
    let count = rng.between(1, 20);
    let limit = calendar(count, unit);
    let mut state = None;
    // Window, instant, permits.
    let mut log: Vec<(usize, u64, u64)> = Vec::new();
    let mut now = boundaries[0];
    for _ in 0..120 {
        let window = boundaries.partition_point(|&boundary| boundary <= now) - 1;
        let Some(&end) = boundaries.get(window + 1) else { break };
        let micros = Micros::new;
        let at = Moment::within(micros(now), micros(boundaries[window]), micros(end)).unwrap();
        let remaining = limit.standing(state.as_ref(), Holds::NONE, &at).remaining;
        let wanted = if rng.one_in(2) { remaining } else { rng.between(0, remaining) };
        let wanted = Cost::new(wanted).unwrap();
        if limit.look(state.as_ref(), Holds::NONE, &at, wanted).allowed {
            limit.charge(&mut state, &at, wanted, None);
            log.push((window, now, wanted.get()));
        }
        now = match rng.below(4) {
            0 => rng.around(end),
            1 => end + rng.magnitude(DAY / 2),
            _ => now + rng.magnitude(end - now),
        }
        .max(now);
    }
    let mut intervals = 0;
    for (index, &(first_window, start, _)) in log.iter().enumerate() {
        let mut admitted = 0;
        for &(window, at, permits) in &log[index..] {
            let touched = boundaries[first_window..].windows(2).take(window - first_window + 1);
            let shortest = touched.map(|pair| pair[1] - pair[0]).min().unwrap();
            admitted += permits;
            intervals += 1;
            assert!(window != first_window || admitted <= count, "{admitted} in one window");
            assert!(at - start >= shortest || admitted <= 2 * count, "{admitted} in {log:?}");
        }
    }
    intervals
}

#[test]
fn a_bucket_accumulates_no_more_than_its_burst() {
    use tidegate_core::Limit;
    let limit = Limit::per_minute(60).burst(10).build().unwrap();
    let at = |second: u64| Moment::new(Micros::from_secs(1_700_000_000 + second));
    let mut state = None;
    let mut admitted = |second: u64| {
        let one = |_: &u64| {
            let allowed = limit.look(state.as_ref(), Holds::NONE, &at(second), Cost::ONE).allowed;
            if allowed {
                limit.charge(&mut state, &at(second), Cost::ONE, None);
            }
            allowed
        };
        (0..100).filter(one).count()
    };
    assert_eq!(admitted(0), 10);
    assert_eq!(admitted(17), 10, "17 permits refill in 17 seconds, capped at the burst");
    assert_eq!(admitted(18), 1);
}

#[test]
fn a_fresh_bucket_admits_exactly_its_burst_in_the_middle_of_a_tick() {
    use tidegate_core::{Limit, Tick};
    for (limit, burst, tick) in [
        (Limit::per_day(77_777), 77_777, Tick::Milli),
        (Limit::per_day(1).burst(100_000), 100_000, Tick::Milli),
        (Limit::per(1, Micros::from_secs(365 * 86_400)).burst(200_000), 200_000, Tick::Second),
        (Limit::per_second(1_000).burst(7), 7, Tick::Micro),
    ] {
        let limit = limit.build().unwrap();
        assert_eq!(limit.tick(), tick);
        for offset in [0, 1, 500, 999_999] {
            let at = Moment::new(Micros::new(1_700_000_000_000_000 + offset));
            let mut state = None;
            let mut admitted = 0;
            while limit.look(state.as_ref(), Holds::NONE, &at, Cost::ONE).allowed {
                limit.charge(&mut state, &at, Cost::ONE, None);
                admitted += 1;
            }
            assert_eq!(admitted, burst, "{limit:?} {offset} us after the full second");
        }
    }
}
