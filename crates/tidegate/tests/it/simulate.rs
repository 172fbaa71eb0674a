//! Simulated traffic: its notation, its arrivals, and decisions that equal those of the engine.
use std::collections::BTreeMap;

use tidegate::simulate::{
    Candidate, InvalidTraffic, Report, START, Simulation, SimulationError, Traffic,
};
use tidegate::{CalendarUnit, Key, Limiter, ManualClock, Memory, Micros, Rule, Wait};
use tidegate_model::{BucketKind, CellEvent, ModelCell, Spec, TraceRng, WindowKind};

fn traffic(text: &str) -> Traffic {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn candidate(text: &str) -> Candidate {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn report(text: &str, seed: u64, limits: &[&str]) -> Report {
    let candidates: Vec<Candidate> = limits.iter().map(|limit| candidate(limit)).collect();
    let simulation = Simulation::new(traffic(text)).seed(seed).hold_time(Micros::from_millis(200));
    simulation.run(&candidates).unwrap()
}

// --- notation -----------------------------------------------------------------------------------

#[test]
fn traffic_prints_as_it_is_read() {
    for (written, printed) in [
        ("steady 120/s for 60s", "steady 120/s for 1m"),
        ("poisson 80/s for 1h", "poisson 80/s for 1h"),
        ("burst 500 every 10s for 5m", "burst 500 every 10s for 5m"),
        ("ramp 0/s to 200/s for 1m", "ramp 0/s to 200/s for 1m"),
        ("ramp 0/min to 7/30s for 1d", "ramp 0/s to 7/30s for 24h"),
        ("poisson 1000/s keys 1000 zipf 1.1 for 10m", "poisson 1000/s keys 1000 zipf 1.1 for 10m"),
        ("steady 5/min for 2h after 90s keys 3", "steady 5/m keys 3 after 90s for 2h"),
        ("steady 1/s keys 2 zipf 2 ", "steady 1/s keys 2 zipf 2 for 1m"),
        ("steady 1/s keys 2 zipf 0.050", "steady 1/s keys 2 zipf 0.05 for 1m"),
        ("steady 10/s", "steady 10/s for 1m"),
        ("steady 10/s + burst 5 every 1s for 5m", "steady 10/s for 5m + burst 5 every 1s for 5m"),
        (
            "steady 10/s after 1m + burst 5 every 1s for 5m",
            "steady 10/s after 1m for 4m + burst 5 every 1s for 5m",
        ),
    ] {
        let read = traffic(written.trim_end());
        assert_eq!(read.to_string(), printed, "{written}");
        assert_eq!(traffic(printed), read, "{written}");
    }
}

#[test]
fn random_traffic_reads_as_it_prints() {
    let mut rng = TraceRng::new(7);
    let units = ["us", "ms", "s", "m", "h"];
    for _ in 0..2_000 {
        let span = |rng: &mut TraceRng| format!("{}{}", rng.between(1, 90), rng.pick(&units));
        let rate = |rng: &mut TraceRng| format!("{}/{}", rng.below(50), span(rng));
        let parts = (0..rng.between(1, 3)).map(|_| {
            let mut part = match rng.below(4) {
                0 => format!("steady {}", rate(&mut rng)),
                1 => format!("poisson {}", rate(&mut rng)),
                2 => format!("burst {} every {}", rng.below(9), span(&mut rng)),
                _ => format!("ramp {} to {}", rate(&mut rng), rate(&mut rng)),
            };
            if rng.one_in(2) {
                part += &format!(" keys {}", rng.between(1, 99));
                part += &if rng.one_in(2) {
                    format!(" zipf 1.{}", rng.below(1_000))
                } else {
                    String::new()
                };
            }
            part +=
                &if rng.one_in(2) { format!(" after {}", span(&mut rng)) } else { String::new() };
            part += &if rng.one_in(2) { format!(" for {}", span(&mut rng)) } else { String::new() };
            part
        });
        let text = parts.collect::<Vec<_>>().join(" + ");
        match text.parse::<Traffic>() {
            Ok(read) => assert_eq!(traffic(&read.to_string()), read, "{text}"),
            Err(error) => assert!(error.invalid().is_some(), "{text}: {error}"),
        }
    }
}

#[test]
fn a_bad_text_is_refused_with_a_reason_a_position_and_a_remedy() {
    #[rustfmt::skip]
    let cases: &[(&str, std::ops::Range<usize>, &str)] = &[
        ("", 0..0, "empty text; write traffic like steady 120/s for 60s"),
        ("   ", 0..3, "empty text; write traffic like steady 120/s for 60s"),
        ("stedy 120/s for 60s", 0..5, "unknown pattern \"stedy\"; write steady 120/s for 60s"),
        ("STEADY 120/s", 0..6, "unknown pattern \"STEADY\"; write steady 120/s"),
        ("120/s for 60s", 0..5, "unknown pattern \"120/s\"; write steady 120/s for 60s"),
        ("wild 120/s", 0..4, "unknown pattern \"wild\"; use steady, poisson, burst or ramp"),
        ("steady", 0..6, "\"steady\" needs a value; add one, like steady 120/s"),
        ("steady 120/parsec", 11..17, "unknown unit \"parsec\"; use us, ms, s, min, h, d, w or month"),
        ("steady 120/S for 1m", 11..12, "unknown unit \"S\"; write steady 120/s for 1m"),
        ("steady 5.5/s", 7..10, "count \"5.5\" is not a whole number in plain digits; write steady 11/2s"),
        ("steady fast", 7..11, "\"fast\" is not a rate; write one like 120/s"),
        ("steady 1/month", 9..14, "in \"month\": a month has no fixed length; use 30d, or fixed-window with /month; write steady 1/30d"),
        ("steady 1/s for month", 15..20, "a month has no fixed length; write steady 1/s for 30d"),
        ("steady 1/s for 1h30m", 15..20, "span \"1h30m\" is not one whole number and one unit; write steady 1/s for 90m"),
        ("steady 1/s for", 11..14, "\"for\" needs a value; add one, like for 10s"),
        ("steady 1/s for 1m for 2m", 18..21, "duplicate \"for\"; remove one"),
        ("steady 1/s during 1m", 11..17, "unknown option \"during\"; use keys, zipf, after or for, or join another part with +"),
        ("steady 1/s fro 1m", 11..14, "unknown option \"fro\"; write steady 1/s for 1m"),
        ("steady 1/s burst 5 every 1s", 11..16, "unknown option \"burst\"; write steady 1/s + burst 5 every 1s"),
        ("burst 500 evry 10s", 10..14, "\"evry\" where \"every\" belongs; write burst 500 every 10s"),
        ("burst 500", 9..9, "\"every\" is missing; write it like burst 500 every 10s"),
        ("burst x every 1s", 6..7, "\"x\" is not a whole number in plain digits; write one like burst 500"),
        ("burst 5 every 0s", 14..16, "in \"0s\": the span is zero; use at least 1us"),
        ("ramp 0/s for 1m", 9..12, "\"for\" where \"to\" belongs; write it like ramp 0/s to 200/s"),
        ("steady 1/s keys 0", 16..17, "keys 0 generates no traffic; use keys 1 or more"),
        ("steady 1/s keys 100001", 16..22, "100001 keys are too many; at most 100000"),
        ("steady 1/s keys ten", 16..19, "\"ten\" is not a whole number in plain digits; write one like keys 1000"),
        ("steady 1/s zipf 1.1", 11..15, "\"zipf\" needs keys; write it after them, like keys 1000 zipf 1.1"),
        ("steady 1/s keys 9 zipf -1", 23..25, "\"-1\" is not an exponent; use one from 0.001 to 10, like zipf 1.1"),
        ("steady 1/s keys 9 zipf 0", 23..24, "\"0\" is not an exponent; use one from 0.001 to 10, like zipf 1.1"),
        ("steady 1/s keys 9 zipf 1.", 23..25, "\"1.\" is not an exponent; use one from 0.001 to 10, like zipf 1.1"),
        ("steady 1/s  for 1m", 11..12, "misplaced whitespace; write steady 1/s for 1m"),
        (" steady 1/s", 0..1, "misplaced whitespace; write steady 1/s"),
        ("steady 1/s\n", 10..11, "misplaced whitespace; write steady 1/s"),
        ("steady 1/s +", 11..12, "nothing after \"+\"; write traffic like steady 120/s for 60s"),
        ("+ steady 1/s", 0..0, "a part is missing; write traffic like steady 120/s for 60s"),
        ("steady 1/s + + steady 2/s", 13..13, "a part is missing; write traffic like steady 120/s for 60s"),
        ("steady 1000/s for 1d", 0..20, "86400000 requests are too many; at most 10000000: lower a rate or shorten a span"),
        ("steady 1/s after 2m + steady 1/s for 1m", 0..19, "this part starts after the others end; give it a length, like for 1m"),
        ("steady 1/d for 201d", 0..19, "201d is too long; at most 200d"),
        ("steady 1/s after 200d for 1us", 0..29, "17280000000001us is too long; at most 200d"),
        ("steady \u{1b}[2J", 7..11, "\"\\u{1b}[2J\" is not a rate; write one like 120/s"),
    ];
    for (text, position, message) in cases {
        let error = text.parse::<Traffic>().unwrap_err();
        assert_eq!(error.to_string(), *message, "{text:?}");
        assert_eq!(error.position(), *position, "{text:?}: {error}");
        assert!(!error.to_string().contains(char::is_control), "{text:?}");
        if let Some(suggestion) = error.suggestion() {
            traffic(suggestion);
        }
    }
}

#[test]
fn any_text_is_read_or_refused_within_its_bounds() {
    let words = [
        "steady",
        "poisson",
        "burst",
        "ramp",
        "to",
        "every",
        "keys",
        "zipf",
        "after",
        "for",
        "+",
        "1/s",
        "0/s",
        "9999999999999999999999/us",
        "99999999999/s",
        "1/us",
        "10",
        "1.1",
        "18446744073709551615",
        "36500d",
        "1us",
        "",
        "\u{e9}",
        "1month",
        "5/week",
    ];
    let mut rng = TraceRng::new(11);
    for _ in 0..30_000 {
        let count = rng.between(1, 12);
        let text = (0..count).map(|_| rng.pick(&words)).collect::<Vec<_>>().join(" ");
        match text.parse::<Traffic>() {
            Ok(read) => {
                assert!(
                    read.requests() <= Traffic::MAX_REQUESTS && read.span() <= Traffic::MAX_SPAN,
                    "{text}"
                );
                assert_eq!(traffic(&read.to_string()), read, "{text}");
            }
            Err(error) => {
                let position = error.position();
                assert!(
                    position.start <= position.end && position.end <= text.len(),
                    "{text:?}: {error}"
                );
                error.underline(&text);
                if let Some(suggestion) = error.suggestion() {
                    traffic(suggestion);
                }
            }
        }
    }
    let long = "steady 1/s".repeat(200);
    assert!(long.parse::<Traffic>().unwrap_err().reason().contains("too long"));
}

#[test]
fn every_bound_has_a_typed_error() {
    let invalid = |text: &str| text.parse::<Traffic>().unwrap_err().invalid();
    assert_eq!(invalid("steady 1000001/s for 10s"), Some(InvalidTraffic::Requests(10_000_010)));
    assert_eq!(
        invalid("burst 4503599627370495 every 1us for 200d"),
        Some(InvalidTraffic::Requests(u64::MAX))
    );
    assert_eq!(invalid("ramp 0/s to 4503599627/us for 1s").map(|_| ()), Some(()));
    assert_eq!(
        invalid("steady 1/d for 200d after 1us"),
        Some(InvalidTraffic::Span(Micros::new(17_280_000_000_001)))
    );
    let parts = vec!["steady 1/s for 1s"; 17].join(" + ");
    assert_eq!(invalid(&parts), Some(InvalidTraffic::Parts(17)));
    assert_eq!(invalid("steady 1/s keys 4294967297"), Some(InvalidTraffic::Keys(u32::MAX)));
    let simulation = Simulation::new(traffic("steady 1/s"));
    assert_eq!(simulation.run(&[]).unwrap_err(), SimulationError::CandidateCount(0));
    assert_eq!(
        simulation.run(&vec![candidate("1/s"); 17]).unwrap_err(),
        SimulationError::CandidateCount(17)
    );
    assert_eq!(
        simulation.run(&[candidate("5/s + concurrency 2")]).unwrap_err(),
        SimulationError::NoHold
    );
}

#[test]
fn a_bad_candidate_is_underlined_at_its_error() {
    for (text, message, underlined) in [
        (
            "100/parsec",
            "unknown unit \"parsec\"; use us, ms, s, min, h, d, w or month",
            "100/parsec\n    ^^^^^^",
        ),
        (
            "1/s + 5/m brust 3",
            "unknown option \"brust\"; write 5/m burst 3",
            "1/s + 5/m brust 3\n          ^^^^^",
        ),
        (
            "fixed-window 5/d tz Mars/Olympus",
            "unknown time zone \"Mars/Olympus\"; use an IANA name like Europe/Berlin",
            "fixed-window 5/d tz Mars/Olympus\n^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        ),
    ] {
        let error = text.parse::<Candidate>().unwrap_err();
        assert_eq!((error.to_string(), error.underline(text)), (message.into(), underlined.into()));
    }
    assert_eq!(candidate("60/60s + sliding-log 5/60s").to_string(), "60/m + sliding-log 5/m");
}

// --- arrivals ----------------------------------------------------------------------------------

fn instants(text: &str) -> Vec<u64> {
    traffic(text).arrivals(1).iter().map(|arrival| arrival.at().get()).collect()
}

#[test]
fn arrivals_follow_the_traffic() {
    assert_eq!(instants("steady 4/s for 1s"), [0, 250_000, 500_000, 750_000]);
    assert_eq!(instants("steady 3/s for 1s"), [0, 333_333, 666_666]);
    assert_eq!(instants("steady 1/s after 2s for 2s"), [2_000_000, 3_000_000]);
    assert_eq!(
        instants("burst 2 every 4s for 9s"),
        [0, 0, 4_000_000, 4_000_000, 8_000_000, 8_000_000]
    );
    // 0 to 10/s in 2 s: 10 in total, the n-th after sqrt(n/2.5) s.
    let ramp = instants("ramp 0/s to 10/s for 2s");
    assert_eq!(
        ramp,
        [
            0, 632_455, 894_427, 1_095_445, 1_264_911, 1_414_213, 1_549_193, 1_673_320, 1_788_854,
            1_897_366
        ]
    );
    // The same ramp down.
    let down = instants("ramp 10/s to 0/s for 2s");
    assert_eq!(down.len(), 10);
    assert_eq!(down[1], 102_633);
    assert_eq!(instants("ramp 5/s to 5/s for 1s"), [0, 200_000, 400_000, 600_000, 800_000]);
    for nothing in
        ["steady 0/s for 1s", "poisson 0/s", "ramp 0/s to 0/s", "burst 0 every 1us for 200d"]
    {
        assert!(instants(nothing).is_empty(), "{nothing}");
    }
    let several = instants("steady 2/s for 1s + burst 1 every 250ms for 1s");
    assert_eq!(several, [0, 0, 250_000, 500_000, 500_000, 750_000]);
}

#[test]
fn poisson_traffic_has_its_rate_and_its_variance() {
    let all = instants("poisson 1000/s for 100s");
    assert!(all.len().abs_diff(100_000) < 1_300, "{}", all.len());
    let mut per_second = [0_u64; 100];
    all.iter().for_each(|at| per_second[usize::try_from(at / 1_000_000).unwrap()] += 1);
    // The variance is close to the mean, unlike that of a steady rate.
    let variance = per_second.iter().map(|count| count.abs_diff(1_000).pow(2)).sum::<u64>() / 100;
    assert!((600..1_500).contains(&variance), "{variance}");
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_seed_another() {
    let text = "poisson 50/s keys 20 zipf 1.1 for 30s + burst 40 every 7s";
    let limits = ["10/s", "sliding-log 20/5s + fixed-window 60/30s", "concurrency 3"];
    let debug_report = |seed| format!("{:?}", report(text, seed, &limits));
    assert_eq!(debug_report(5), debug_report(5));
    assert_ne!(debug_report(5), debug_report(6));
}

/// A platform that computes anything differently fails here.
#[test]
fn the_arrivals_of_a_seed_never_change() {
    let all = traffic("poisson 100/s keys 50 zipf 1.1 for 10s + ramp 0/s to 50/s keys 7 for 10s")
        .arrivals(42);
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for arrival in &all {
        for word in [arrival.at().get(), u64::from(arrival.key())] {
            hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
        }
    }
    assert_eq!((all.len(), hash), (1_260, 15_170_102_477_611_138_749));
}

// --- decisions ---------------------------------------------------------------------------------

const SECOND: u64 = 1_000_000;

/// Limits, and the same limits in the model.
fn specs() -> Vec<(&'static str, Spec)> {
    let bucket = |kind, count, period, size| Spec::Bucket { kind, count, period, size };
    vec![
        ("5/s", bucket(BucketKind::Token, 5, SECOND, None)),
        ("7/3s burst 4", bucket(BucketKind::Token, 7, 3 * SECOND, Some(4))),
        ("77777/d burst 3", bucket(BucketKind::Token, 77_777, 86_400 * SECOND, Some(3))),
        (
            "6/2s burst 9 every 1s",
            Spec::Steps { count: 6, period: 2 * SECOND, every: SECOND, burst: Some(9) },
        ),
        ("leaky-bucket 5/s capacity 8", bucket(BucketKind::Meter, 5, SECOND, Some(8))),
        ("leaky-bucket 3/s capacity 6 queue", bucket(BucketKind::Queue, 3, SECOND, Some(6))),
        ("fixed-window 6/2s", Spec::Fixed { count: 6, window: WindowKind::Aligned(2 * SECOND) }),
        (
            "fixed-window 6/2s first-hit",
            Spec::Fixed { count: 6, window: WindowKind::FirstHit(2 * SECOND) },
        ),
        (
            "fixed-window 40/d",
            Spec::Fixed { count: 40, window: WindowKind::Calendar(CalendarUnit::Day) },
        ),
        ("sliding-log 6/2s", Spec::Log { count: 6, window: 2 * SECOND }),
        ("sliding-window 6/2s", Spec::SubWindows { count: 6, window: 2 * SECOND, precision: None }),
        (
            "sliding-window 6/2s precision 300ms",
            Spec::SubWindows { count: 6, window: 2 * SECOND, precision: Some(300_000) },
        ),
        ("sliding-window 6/2s approximate", Spec::Approximate { count: 6, window: 2 * SECOND }),
        ("0/s", bucket(BucketKind::Token, 0, SECOND, None)),
    ]
}

fn random_traffic(rng: &mut TraceRng) -> Traffic {
    let patterns = [
        format!("poisson {}/s keys 3 zipf 1.2 for 9s", rng.between(1, 15)),
        format!("steady {}/s keys {} for 7s", rng.between(1, 15), rng.between(1, 3)),
        format!("burst {} every {}ms for 8s", rng.between(1, 9), rng.between(300, 2_500)),
        format!("ramp {}/s to {}/s for 6s", rng.below(20), rng.below(20)),
    ];
    let (one, other) = (rng.index(4), rng.index(4));
    traffic(&format!("{} + {}", patterns[one], patterns[other]))
}

#[test]
fn every_request_is_decided_as_the_model_decides_it() {
    let (specs, mut rng) = (specs(), TraceRng::new(3));
    let mut decided = [0; 2];
    for round in 0..120 {
        let (traffic, seed) = (random_traffic(&mut rng), rng.any());
        // One limit, or two in one step.
        let chosen: Vec<_> = (0..rng.between(1, 2)).map(|_| rng.pick(&specs)).collect();
        let text = chosen.iter().map(|(text, _)| *text).collect::<Vec<_>>().join(" + ");
        let mut keys: BTreeMap<u32, Vec<ModelCell>> = BTreeMap::new();
        let simulation = Simulation::new(traffic.clone()).seed(seed);
        let result = simulation.for_each_decision(&candidate(&text), |arrival, simulated| {
            let cells = keys.entry(arrival.key());
            let cells = cells
                .or_insert_with(|| chosen.iter().map(|(_, spec)| ModelCell::new(*spec)).collect());
            let now = i128::from((START.get()) + arrival.at().get());
            let situations: Vec<_> = cells.iter().map(|cell| cell.at(now)).collect();
            let allowed = situations.iter().all(|situation| situation.allows(1));
            assert_eq!(
                simulated.allowed,
                allowed,
                "round {round}: {text} on {traffic} at {:?}",
                arrival.at()
            );
            decided[usize::from(allowed)] += 1;
            if allowed {
                let delay = situations.iter().map(|situation| situation.delay()).max().unwrap();
                assert_eq!(
                    i128::from(simulated.delay.get()),
                    delay,
                    "round {round}: {text} on {traffic}"
                );
                cells.iter_mut().for_each(|cell| cell.push(now, CellEvent::Charge(1)));
                return;
            }
            // A retry after the wait passes, and not a tick earlier.
            let Wait::For(wait) = simulated.retry_after else {
                assert!(situations.iter().any(|situation| situation.spec().capacity() == 0));
                return;
            };
            let fits =
                |span: i128| situations.iter().all(|situation| situation.after(span).allows(1));
            let tick = situations.iter().map(|situation| situation.spec().tick()).max().unwrap();
            assert!(fits(i128::from(wait.get())), "round {round}: {text} on {traffic}");
            assert!(
                !fits((i128::from(wait.get()) - tick).max(0)),
                "round {round}: {text} on {traffic}"
            );
        });
        result.unwrap();
    }
    assert!(decided.iter().all(|count| *count > 1_000), "{decided:?}");
}

#[test]
fn every_request_is_decided_as_the_engine_decides_it() {
    let mut rng = TraceRng::new(4);
    let texts: Vec<&str> =
        specs().iter().map(|(text, _)| *text).chain(["fixed-window 9/d tz Asia/Tokyo"]).collect();
    for _ in 0..60 {
        let (traffic, seed) = (random_traffic(&mut rng), rng.any());
        let text = (0..rng.between(1, 3)).map(|_| rng.pick(&texts)).collect::<Vec<_>>().join(" + ");
        let candidate = candidate(&text);
        let clock = ManualClock::new(START);
        let rule = Rule::new("r", candidate.limits().cloned()).unwrap();
        let limiter =
            Limiter::with_rules(Memory::builder().clock(clock.clone()).build(), [rule]).unwrap();
        let result = Simulation::new(traffic.clone()).seed(seed).for_each_decision(
            &candidate,
            |arrival, simulated| {
                clock.set(START.saturating_add(arrival.at()));
                let key = arrival.key().to_string();
                let decision = limiter.check(Key::from(&key)).now().unwrap();
                assert_eq!(simulated.allowed, decision.allowed(), "{text} on {traffic}");
                if simulated.allowed {
                    assert_eq!(simulated.delay, decision.delay(), "{text} on {traffic}");
                } else {
                    assert_eq!(
                        simulated.retry_after,
                        decision.retry_after(),
                        "{text} on {traffic}"
                    );
                }
            },
        );
        result.unwrap();
    }
}

#[test]
fn holders_stay_for_the_hold_time_or_until_their_lease_ends() {
    // Four at once, every 100 ms; each stays 250 ms.
    let simulation = Simulation::new(traffic("burst 4 every 100ms for 400ms"))
        .hold_time(Micros::from_millis(250));
    let mut decisions = Vec::new();
    simulation
        .for_each_decision(&candidate("concurrency 5"), |_, t| {
            decisions.push((t.allowed, t.retry_after))
        })
        .unwrap();
    let wait = |millis| Wait::For(Micros::from_millis(millis));
    let yes = (true, Wait::NONE);
    assert_eq!(
        decisions[..8],
        [yes, yes, yes, yes, yes, (false, wait(150)), (false, wait(150)), (false, wait(150))]
    );
    assert_eq!(decisions[8..12], [(false, wait(50)); 4]);
    assert_eq!(decisions[12..], [yes, yes, yes, yes]);
    let report = simulation
        .run(&[candidate("concurrency 5"), candidate("concurrency 5 lease 50ms")])
        .unwrap();
    assert_eq!([report.runs[0].admitted, report.runs[1].admitted], [9, 16]);
    assert_eq!(report.runs[0].limits[0].worst.admitted, 5);
    assert_eq!(report.runs[1].limits[0].promise.window, Micros::from_millis(50));
}

// --- reports -----------------------------------------------------------------------------------

#[test]
fn nothing_is_lost_between_offered_admitted_and_denied() {
    let mut rng = TraceRng::new(5);
    let texts: Vec<&str> =
        specs().iter().map(|(text, _)| *text).chain(["concurrency 2 lease 1s"]).collect();
    for _ in 0..100 {
        let (traffic, seed) = (random_traffic(&mut rng).to_string(), rng.any());
        let limits = [rng.pick(&texts), rng.pick(&texts)];
        let report = report(&traffic, seed, &limits);
        assert_eq!(report.offered_series.iter().sum::<u64>(), report.offered);
        for run in &report.runs {
            assert_eq!(run.admitted + run.denied, report.offered, "{traffic}");
            assert_eq!(
                run.passed_series.iter().sum::<u64>() + run.passed_later,
                run.admitted,
                "{traffic}"
            );
            assert_eq!(run.denied_series.iter().sum::<u64>(), run.denied, "{traffic}");
            assert_eq!(run.longest_wait.is_some(), run.denied > 0);
            assert_eq!(run.limits[0].denied, run.denied, "the only limit makes all denials");
        }
    }
}

#[test]
fn no_traffic_exceeds_a_bound_and_some_reaches_it() {
    let mut rng = TraceRng::new(6);
    let texts: Vec<&str> = specs().iter().map(|(text, _)| *text).chain(["concurrency 4"]).collect();
    let mut reached: BTreeMap<&str, u64> = BTreeMap::new();
    for _ in 0..150 {
        let (traffic, seed) = (random_traffic(&mut rng).to_string(), rng.any());
        for text in &texts {
            let report = report(&traffic, seed, &[text]);
            let [limit] = &*report.runs[0].limits else { panic!("one limit") };
            assert!(
                limit.within_guarantee(),
                "{text} on {traffic}, seed {seed}: {:?} of {:?}",
                limit.worst,
                limit.promise
            );
            assert!(
                limit.window_series.iter().all(|count| *count <= limit.worst.admitted),
                "{text} on {traffic}"
            );
            assert!(
                limit.used_series.iter().all(|used| *used <= limit.limit.capacity()),
                "{text} on {traffic}"
            );
            let worst = reached.entry(text).or_default();
            *worst = (*worst).max(limit.worst.admitted);
        }
    }
    for (text, bound) in
        [("sliding-log 6/2s", 6), ("sliding-window 6/2s", 6), ("concurrency 4", 4), ("0/s", 0)]
    {
        assert_eq!(reached[text], bound, "{text}");
    }
    assert!(reached["fixed-window 6/2s"] > 6, "the burst at the boundary shows");
}

#[test]
fn a_report_counts_admissions_denials_and_waits() {
    let report = report(
        "burst 100 every 7s for 1m",
        1,
        &["fixed-window 100/10s", "leaky-bucket 10/s capacity 50 queue", "0/s"],
    );
    assert_eq!((report.offered, report.keys, report.busiest), (900, 1, (0, 900)));
    let [fixed, queue, nothing] = &*report.runs else { panic!("three runs") };
    // Windows 0 0 1 2 2 3 4 4 5: at 7 s, 28 s and 49 s the window has been used up.
    assert_eq!((fixed.admitted, fixed.denied), (600, 300));
    assert_eq!(fixed.longest_wait, Some(Wait::For(Micros::from_secs(3))));
    let worst = fixed.limits[0].worst;
    assert_eq!(
        (worst.admitted, worst.begins, fixed.limits[0].promise.at_most),
        (200, Micros::from_secs(14), 200)
    );
    assert_eq!(fixed.fairness, None, "there is only one key");
    assert_eq!(queue.longest_delay, Micros::from_millis(4_900));
    assert_eq!((queue.limits[0].worst.admitted, queue.limits[0].promise.at_most), (10, 10));
    assert_eq!((nothing.admitted, nothing.longest_wait), (0, Some(Wait::Never)));
}

#[test]
fn traffic_of_nothing_is_a_report_of_nothing() {
    let report = report("steady 0/s for 1s", 1, &["5/s", "sliding-log 5/s", "concurrency 1"]);
    assert_eq!((report.offered, report.keys, report.busiest), (0, 0, (0, 0)));
    assert!(
        report
            .runs
            .iter()
            .all(|run| run.admitted + run.denied == 0 && run.limits[0].within_guarantee())
    );
}

// --- calls that reserve -------------------------------------------------------------------------

fn calls(candidates: &[&str], calls: &str) -> Vec<tidegate::simulate::CandidateReport> {
    let traffic = "poisson 4/s keys 3 for 20m".parse().unwrap();
    let simulation = Simulation::new(traffic).calls(calls.parse().unwrap());
    let candidates: Vec<Candidate> = candidates.iter().map(|text| text.parse().unwrap()).collect();
    simulation.run(&candidates).unwrap().runs
}

#[test]
fn reservations_stay_within_the_guarantee_and_charges_afterwards_do_not() {
    use tidegate::simulate::BudgetMethod;
    let limits = [
        "fixed-window 10000/1m",
        "sliding-log 10000/1m",
        "sliding-window 10000/1m",
        "sliding-window 10000/1m approximate",
        "10000/1m",
    ];
    for run in calls(&limits, "estimate 800 cost 100..800 takes 2s..90s") {
        let methods = run.calls.as_ref().unwrap();
        assert_eq!(methods.iter().map(|one| one.method).collect::<Vec<_>>(), BudgetMethod::ALL);
        let [reserve, refund, after] = &methods[..] else { panic!("{methods:?}") };
        let bound = run.limits[0].promise.at_most;
        assert!(reserve.worst[0] <= bound, "{}: {reserve:?}", run.candidate);
        assert!(after.worst[0] > bound, "{}: {after:?}", run.candidate);
        assert!(after.worst[0] > refund.worst[0], "{}: {refund:?}", run.candidate);
        for one in methods {
            assert_eq!(one.admitted + one.denied, run.admitted + run.denied);
            assert!((one.admitted * 100..=one.admitted * 800).contains(&one.consumed));
        }
    }
}

#[test]
fn a_concurrency_slot_is_held_as_long_as_the_call_takes() {
    let traffic = "steady 1/s for 1m".parse().unwrap();
    let simulation = Simulation::new(traffic).hold_time(Micros::from_secs(1));
    let simulation = simulation.calls("estimate 1 cost 1 takes 10s".parse().unwrap());
    let report = simulation.run(&["concurrency 5".parse().unwrap()]).unwrap();
    for method in report.runs[0].calls.as_ref().unwrap() {
        assert_eq!((method.admitted, method.denied), (30, 30), "{method:?}");
        assert_eq!(method.worst, [0]);
    }
}

#[test]
fn calls_are_the_same_for_every_candidate_and_every_run() {
    let spec = "estimate 1..900 cost 0..4000 takes 1s..1h";
    let both = calls(&["sliding-log 10000/1m", "sliding-log 10000/1m"], spec);
    assert_eq!(both[0].calls, both[1].calls);
    assert_eq!(both[0].calls, calls(&["sliding-log 10000/1m"], spec)[0].calls);
}

#[test]
fn a_profile_of_calls_that_cannot_be_read_is_explained() {
    use tidegate::simulate::CallProfile;
    for text in [
        "",
        "estimate 5",
        "estimate 5 cost 5",
        "estimate 0 cost 5 takes 1s",
        "estimate 5 cost 9..5 takes 1s",
        "estimate 5 cost 5 takes 1month",
        "estimate 5 cost 5 takes 2d",
        "estimate 4294967297 cost 5 takes 1s",
        "estimate 5 cost 5 takes 1s estimate 6",
        "estimate 5 cost 5 takes",
        "estimate 5 price 5 takes 1s",
    ] {
        let error = text.parse::<CallProfile>().unwrap_err().to_string();
        assert!(error.ends_with("write calls like estimate 800 cost 100..4000 takes 2s..90s"));
    }
}
