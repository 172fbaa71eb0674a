//! Bounds of another form than "N per interval": queues, errors of sliding windows, concurrency.

use tidegate_core::{Cost, Expiry, Hold, Holds, Limit, Micros, Moment, Span, State, Tick, Wait};
use tidegate_model::{TraceRng, print_line};

use super::attacker::permits;
use super::bound::sub_windows_of;
use super::histories;

fn plain(span: u64) -> Span {
    Span::Plain(Micros::new(span))
}

fn moment(now: u64) -> Moment {
    Moment::new(Micros::new(now))
}

/// The instant at which a queue starts a request, or `None` if it is full.
fn start(limit: &Limit, state: &mut Option<State>, now: u64, cost: u64) -> Option<u64> {
    let at = moment(now);
    let verdict = limit.look(state.as_ref(), Holds::NONE, &at, permits(cost));
    if verdict.allowed {
        limit.charge(state, &at, permits(cost), None);
    }
    verdict.allowed.then(|| now + verdict.delay.get())
}

#[test]
fn the_kth_start_of_a_queue_is_k_over_the_rate_after_the_first() {
    let mut starts = 0_u64;
    for seed in 0..histories(2_000) {
        let mut rng = TraceRng::new(seed);
        let (count, period) = match rng.below(3) {
            0 => (rng.between(1, 9), rng.between(1, 30)),
            1 => (rng.between(1, 1_000), 1_000_000),
            _ => (rng.between(1, 100_000), 86_400_000_000),
        };
        let size = rng.between(1, 100);
        let builder = Limit::leaky_bucket(count, plain(period)).capacity(size).queue();
        let Ok(limit) = builder.build() else { continue };
        let tick = limit.tick().span().get();
        let now = 1_700_000_000_000_000 + rng.below(10_000_000);
        let mut state = None;
        let first = start(&limit, &mut state, now, 1).unwrap();
        assert_eq!(first, now, "the first request does not wait");
        for k in 1..size {
            let after = start(&limit, &mut state, now, 1).unwrap() - first;
            let (exact, rest) = (k * period / count, k * period % count);
            let min = exact + u64::from(rest > 0);
            if limit.tick() == Tick::Micro {
                assert_eq!(after, min, "{limit:?}, number {k}");
            }
            assert!(after >= min, "{limit:?}, number {k} begins early");
            assert!(after <= min + 2 * tick, "{limit:?}, number {k} begins late");
            starts += 1;
        }
        assert_eq!(start(&limit, &mut state, now, 1), None, "more than its capacity was queued");
    }
    print_line(&format!("queue, all at once: {starts} starts, 0 early, 0 late"));
}

#[test]
fn the_starts_of_a_queue_are_never_closer_than_its_rate() {
    let mut pairs = 0_u64;
    for seed in 0..histories(2_000) {
        let mut rng = TraceRng::new(seed);
        let (count, period) = (rng.between(1, 9), rng.magnitude(86_400_000_000));
        let builder =
            Limit::leaky_bucket(count, plain(period)).capacity(rng.between(1, 20)).queue();
        let Ok(limit) = builder.build() else { continue };
        let tick = limit.tick().span().get();
        let mut now = 1_700_000_000_000_000 + rng.below(10_000_000);
        let mut state = None;
        // Start, permits, and whether the queue was empty.
        let mut starts: Vec<(u64, u64, bool)> = Vec::new();
        for _ in 0..60 {
            now += if rng.one_in(3) { rng.magnitude(2 * period) } else { 0 };
            let cost = rng.between(1, 3);
            let unused = limit.standing(state.as_ref(), Holds::NONE, &moment(now)).used == 0;
            if let Some(start) = start(&limit, &mut state, now, cost) {
                starts.push((start, cost, unused));
            }
        }
        for (index, &(first, _, unused)) in starts.iter().enumerate() {
            let mut before = 0;
            for &(next, cost, _) in &starts[index..] {
                // Work that takes `before / rate` lies between the two starts. Every start but the
                // first is rounded up to the tick, so two of them can be a tick closer.
                let slack = if unused { 0 } else { tick };
                let time = u128::from(next - first + slack);
                assert!(
                    u128::from(before) * u128::from(period) <= time * u128::from(count),
                    "{before} permits in {} us: {limit:?}",
                    next - first
                );
                before += cost;
                pairs += 1;
            }
        }
    }
    print_line(&format!("queue, any traffic: {pairs} pairs of starts, 0 too close"));
}

#[test]
fn a_sliding_window_denies_no_longer_than_its_sub_window_adds() {
    let (mut waits, mut longest) = (0_u64, 0_u64);
    for seed in 0..histories(2_000) {
        let mut rng = TraceRng::new(seed);
        let (count, length, precision) = sub_windows_of(&mut rng);
        let log = Limit::sliding_log(count, plain(length)).build();
        let windows = Limit::sliding_window(count, plain(length)).precision(plain(precision));
        let (Ok(log), Ok(windows)) = (log, windows.build()) else { continue };
        let max = (length.div_ceil(precision) + 1) * precision - length;
        let mut now = 1_700_000_000_000_000 + rng.below(10_000_000);
        let (mut log_state, mut state) = (None, None);
        for _ in 0..60 {
            now = match rng.below(4) {
                0 => rng.around((now / precision + 1) * precision).max(now),
                1 => now + rng.magnitude(2 * length),
                _ => now + rng.below(2),
            };
            let at = moment(now);
            let cost = permits(rng.magnitude(count));
            let by_log = log.look(log_state.as_ref(), Holds::NONE, &at, cost);
            let verdict = windows.look(state.as_ref(), Holds::NONE, &at, cost);
            let (Wait::For(exact), Wait::For(wait)) = (by_log.retry_after, verdict.retry_after)
            else {
                panic!("a cost of at most the limit fits eventually");
            };
            assert!(exact <= wait, "{windows:?} allows what the log denies");
            assert!(wait.get() <= exact.get() + max, "{windows:?} denies {wait:?}, not {exact:?}");
            longest = longest.max(if precision == length { 0 } else { wait.get() - exact.get() });
            waits += 1;
            if verdict.allowed {
                log.charge(&mut log_state, &at, cost, None);
                windows.charge(&mut state, &at, cost, None);
            }
        }
    }
    print_line(&format!("sliding-window against the log: {waits} waits, 0 too long, 0 too short"));
}

/// The maximum that an approximate window admits in any half-open interval of its length, by
/// exhaustive search: at every instant of two windows, every number that it allows.
fn worst_case(
    limit: &Limit,
    length: u64,
    now: u64,
    state: Option<&State>,
    log: &mut Vec<u64>,
) -> u64 {
    let Ok(passed) = usize::try_from(now) else { return 0 };
    if now == 2 * length {
        let length = usize::try_from(length).unwrap();
        return log.windows(length).map(|window| window.iter().sum()).max().unwrap();
    }
    let remaining = limit.standing(state, Holds::NONE, &moment(now)).remaining;
    let mut worst = 0;
    for cost in 0..=remaining {
        let mut next = state.cloned();
        limit.charge(&mut next, &moment(now), permits(cost), None);
        log.truncate(passed);
        log.push(cost);
        worst = worst.max(worst_case(limit, length, now + 1, next.as_ref(), log));
    }
    worst
}

#[test]
fn an_approximate_window_admits_twice_its_limit_less_one_at_worst() {
    let mut searched = 0;
    for (count, longest) in [(1, 6), (2, 6), (3, 5), (4, 4)] {
        for length in 1..=longest {
            let limit = Limit::sliding_window(count, plain(length)).approximate().build().unwrap();
            let worst = worst_case(&limit, length, 0, None, &mut Vec::new());
            // All permits at the last instant of a window, and in the next one all that fits just
            // before a window's length has passed.
            let expected = count.max(2 * count - (2 * count).div_ceil(length));
            assert_eq!(worst, expected, "{count} per {length} us");
            assert!(worst < 2 * count);
            searched += 1;
        }
    }
    // A window with more instants than these reaches the worst case.
    let limit = Limit::sliding_window(100, Span::SECOND).approximate().build().unwrap();
    let mut state = None;
    let mut take = |now: u64, cost: u64| {
        let at = moment(now);
        let allowed = limit.look(state.as_ref(), Holds::NONE, &at, permits(cost)).allowed;
        limit.charge(&mut state, &at, permits(if allowed { cost } else { 0 }), None);
        allowed
    };
    assert!(take(1_999_999, 100));
    assert!(!take(2_999_998, 100));
    assert!(take(2_999_998, 99), "199 within one second");
    print_line(&format!("sliding-window approximate: {searched} limits searched, worst 2L - 1"));
}

#[test]
fn there_are_never_more_holders_than_the_limit() {
    let mut grants = 0_u64;
    for seed in 0..histories(2_000) {
        let mut rng = TraceRng::new(seed);
        let max = rng.between(1, 6);
        let limit = Limit::concurrency(max).build().unwrap();
        let steps_back = rng.one_in(2);
        let (mut now, mut clock) = (1_700_000_000_000_000, 1_700_000_000_000_000);
        let mut holds = Holds::default();
        // Each holder knows in true time when its hold ends: id, permits, end.
        let mut holders: Vec<(u128, u64, u64)> = Vec::new();
        for id in 0..80 {
            let span = rng.below(2) * rng.magnitude(200);
            now += span;
            clock += span;
            if steps_back && rng.one_in(6) {
                clock -= rng.magnitude(500);
            }
            let at = moment(clock);
            limit.expire(&mut None, &mut holds, &at);
            holders.retain(|&(_, _, end)| now < end);
            let ttl = rng.magnitude(300);
            let until = at.now().saturating_add(Micros::new(ttl));
            let index = usize::try_from(rng.below(holders.len() as u64)).unwrap();
            match rng.below(8) {
                0 if !holders.is_empty() => {
                    holds.remove(holders.remove(index).0).expect("it still holds");
                }
                1 if !holders.is_empty() => {
                    let hold = holds.remove(holders[index].0).expect("it still holds");
                    holds.insert(Hold { deadline: until, ttl: Micros::new(ttl), ..hold });
                    holders[index].2 = now + ttl;
                }
                _ => {
                    let cost = Cost::new(rng.between(1, 2)).unwrap();
                    let free = max - holders.iter().map(|&(_, cost, _)| cost).sum::<u64>();
                    if !limit.look(None, &holds, &at, cost).allowed {
                        // On a steady clock a free slot is granted.
                        assert!(steps_back || cost.get() > free);
                        continue;
                    }
                    assert!(cost.get() <= free, "{cost} more than {max} holders");
                    let expiry = Expiry::Release;
                    let ttl = Micros::new(ttl);
                    holds.insert(Hold { id, cost, deadline: until, ttl, expiry });
                    holders.push((id, cost.get(), now + ttl.get()));
                    grants += 1;
                }
            }
        }
    }
    print_line(&format!("concurrency: {grants} grants, 0 too many"));
}
