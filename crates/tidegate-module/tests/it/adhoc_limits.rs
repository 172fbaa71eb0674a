//! `TG.LIMIT` and `CL.THROTTLE` decide as the engines of Tidegate do with limits that come with the
//! call.

use tidegate::{
    Call, Charge, Clock as _, Cost, Engine as _, Limit, ManualClock, Memory, Micros, Op, Rule,
    RuleLimit, Verdict,
};
use tidegate_model::{TraceRng, run_size};
use tidegate_module::Reply;

use crate::fixture::{connect, integers, start};
use crate::memory_call::MemoryStore;

/// Limits that share states, as calls bring them along.
const SHARED: [&[&str]; 5] = [
    &["10/s", "3/s burst 10", "7/m burst 30", "1000000/s burst 3", "leaky-bucket 5/s capacity 9"],
    &["leaky-bucket 4/s capacity 6 queue", "leaky-bucket 5/m capacity 9 queue", "6/s"],
    &["fixed-window 20/s", "fixed-window 9/5s", "fixed-window 15/3s first-hit"],
    &["sliding-window 30/s approximate", "sliding-window 12/3s approximate"],
    &["2/s every 500ms burst 9", "6/s every 500ms", "fixed-window 4/s"],
];

fn reply_of(verdict: &Verdict) -> [i64; 6] {
    let signed = |number: u64| i64::try_from(number).unwrap();
    let millis = |span: Micros| signed(span.get().div_ceil(1_000));
    [
        verdict.allowed.into(),
        signed(verdict.limit),
        signed(verdict.remaining),
        verdict.retry_after.span().map_or(-1, millis),
        millis(verdict.reset_after),
        millis(verdict.delay),
    ]
}

#[tokio::test]
async fn limits_that_come_with_calls_are_decided_as_the_memory_engine_does() {
    let steps = run_size(2_000, 60_000, 1_000_000);
    let rng = &mut TraceRng::new(7);
    let (mut store, clock) = (MemoryStore::default(), ManualClock::default());
    let memory = Memory::builder().clock(clock.clone()).build();
    clock.set(Micros::from_secs(1_700_000_000));
    let rules: Vec<Vec<(&str, std::sync::Arc<RuleLimit>)>> = SHARED
        .iter()
        .map(|texts| {
            let rule = |text: &&'static str| {
                let limit: Limit = text.parse().unwrap();
                (*text, Rule::throttle(limit).limits()[0].clone())
            };
            texts.iter().map(rule).collect()
        })
        .collect();
    let mut denied = 0;
    for step in 0..steps {
        let span = rng.pick(&[0, 1, 999, 20_000, 150_000, 400_000, 1_000_000, 3_000_000]);
        let now = clock.now();
        clock.set(match rng.one_in(100) {
            true => now.saturating_sub(Micros::new(rng.below(2_000_000))),
            false => now.saturating_add(Micros::new(span)),
        });
        store.now = clock.now().get();
        let group = rng.index(SHARED.len());
        let (text, limit) = &rules[group][rng.index(rules[group].len())];
        // Keys of a group are shared by limits of one algorithm: others have states of their own.
        let algorithm = limit.limit().algorithm().name();
        let key = format!("{group}:{algorithm}:{}", rng.below(3));
        let cost = rng.pick(&[1, 1, 1, 2, 3, 8, 0, 50]);
        let charges =
            [Charge { limit, key: key.as_str().into(), cost: Cost::total(cost), caller: None }];
        let op = if cost == 0 { Op::Peek } else { Op::Check };
        let call = Call { op, charges: &charges, idempotency_key: None };
        let wanted = reply_of(&memory.decide(call).await.unwrap().verdict());
        let cost = cost.to_string();
        let words = [b"TG.LIMIT", text.as_bytes(), key.as_bytes(), b"COST", cost.as_bytes()];
        let writes = store.writes;
        let found = store.run(&words, |call| tidegate_module::limit(call));
        assert_eq!(found, Ok(Reply::Decision(wanted)), "step {step}: {text} on {key}, {cost}");
        denied += u64::from(wanted[0] == 0);
        assert!(wanted[0] == 1 || span == 0 || store.writes <= writes + 1);
    }
    assert!(denied > steps / 10, "{denied} of {steps}");
}

#[test]
fn a_throttled_key_is_limited_as_in_redis_cell() {
    let server = start();
    let connection = &mut connect(&server);
    let mut throttle = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        integers(connection, &[&["CL.THROTTLE"], &words[..]].concat())
    };
    assert_eq!(throttle("user 2 1 1000"), [0, 3, 2, -1, 1_000]);
    assert_eq!(throttle("user 2 1 1000 0"), [0, 3, 2, -1, 1_000], "a quantity of 0 peeks");
    assert_eq!(throttle("user 2 1 1000 2"), [0, 3, 0, -1, 3_000]);
    assert_eq!(throttle("user 2 1 1000 1"), [1, 3, 0, 1_000, 3_000]);
    assert_eq!(throttle("user 2 1 1000 4"), [1, 3, 0, -1, 3_000], "never");
    assert_eq!(throttle("user 2 1 1000 0"), [0, 3, 0, -1, 3_000]);
    assert_eq!(throttle("user 8 1 1000"), [0, 9, 5, -1, 4_000], "what was used is kept");
    server.cli(&["DEL", "user"]);
    assert_eq!(throttle("user 2 1 1000 3"), [0, 3, 0, -1, 3_000]);
}

#[test]
fn a_calendar_day_is_that_of_utc() {
    let mut store = MemoryStore { now: 1_700_000_000_000_000, ..MemoryStore::default() };
    let mut check = |now: u64, limit: &str| {
        store.now = now;
        store.run(&[b"TG.LIMIT", limit.as_bytes(), b"key"], |call| tidegate_module::limit(call))
    };
    // 2023-11-14 22:13:20 UTC
    let now = 1_700_000_000_000_000;
    let until_midnight = 6_400_000;
    let day = "fixed-window 2/d";
    assert_eq!(check(now, day), Ok(Reply::Decision([1, 2, 1, 0, until_midnight, 0])));
    assert_eq!(check(now, day), Ok(Reply::Decision([1, 2, 0, 0, until_midnight, 0])));
    let denied = [0, 2, 0, until_midnight, until_midnight, 0];
    assert_eq!(check(now, day), Ok(Reply::Decision(denied)));
    assert!(check(now, "fixed-window 3/d").is_err(), "only the scripts carry calendar windows");
    let tomorrow = now + 6_400_000_000;
    assert_eq!(check(tomorrow, day), Ok(Reply::Decision([1, 2, 1, 0, 86_400_000, 0])));
}
