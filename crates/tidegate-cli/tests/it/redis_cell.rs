//! `CL.THROTTLE` against a model of redis-cell, written from its description, on a manual clock.
use std::collections::HashMap;
use std::io::Write as _;
use std::time::Duration;

use testkit::resp::{FuzzRng, RespConnection};
use testkit::resp_listener::RespListener;

const CALLS: u32 = 20_000;
const SECOND: i128 = 1_000_000;

/// The numbers of a call.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Numbers {
    max_burst: i128,
    count: i128,
    period: i128,
}

/// Emission intervals from 1 ms to a week, each a whole number of ms.
const NUMBERS: [Numbers; 10] = [
    numbers(15, 30, 60),
    numbers(0, 1, 1),
    numbers(4, 10, 1),
    numbers(999, 1_000, 1),
    numbers(99, 100, 60),
    numbers(0, 8, 1),
    numbers(2, 7, 7),
    numbers(1, 5, 86_400),
    numbers(1_000_000, 1_000, 3_600),
    numbers(3, 1, 604_800),
];

const fn numbers(max_burst: i128, count: i128, period: i128) -> Numbers {
    Numbers { max_burst, count, period }
}

impl Numbers {
    fn limit(self) -> i128 {
        self.max_burst + 1
    }

    /// Microseconds between two at the steady rate.
    fn interval(self) -> i128 {
        let interval = self.period * SECOND / self.count;
        assert_eq!(interval % 1_000, 0, "{self:?} is not to be compared");
        interval
    }

    fn tolerance(self) -> i128 {
        self.interval() * self.limit()
    }
}

/// GCRA: one instant per key, at which everything taken is replenished at the steady rate.
#[derive(Default)]
struct Cell(HashMap<String, i128>);

impl Cell {
    fn throttle(&mut self, now: i128, key: &str, numbers: Numbers, quantity: i128) -> [i128; 5] {
        let paid = self.0.get(key).copied().unwrap_or(now).max(now);
        let cost = numbers.interval() * quantity;
        let early = paid + cost - numbers.tolerance() - now;
        let limited = early > 0;
        if !limited && quantity > 0 {
            self.0.insert(key.into(), paid + cost);
        }
        let owed = if limited { paid } else { paid + cost } - now;
        let remaining = (numbers.tolerance() - owed) / numbers.interval();
        let can_pass = cost <= numbers.tolerance();
        let retry_after = if limited && can_pass { seconds(early) } else { -1 };
        [limited.into(), numbers.limit(), remaining, retry_after, seconds(owed)]
    }
}

/// Rounded up.
fn seconds(micros: i128) -> i128 {
    (micros + SECOND - 1) / SECOND
}

/// Differs from redis-cell: what was used under other numbers is counted in permits, and recovers
/// as the numbers say that charged last. A call fits if that leaves room in its own limit.
#[derive(Default)]
struct Sharing {
    cell: Cell,
    last: HashMap<String, Numbers>,
}

impl Sharing {
    fn throttle(&mut self, now: i128, key: &str, numbers: Numbers, quantity: i128) -> [i128; 5] {
        let last = self.last.get(key).copied().unwrap_or(numbers);
        let owed = self.cell.0.get(key).map_or(0, |paid| (*paid - now).max(0));
        if last == numbers || owed == 0 {
            if quantity > 0 && quantity <= numbers.limit() {
                self.last.insert(key.into(), numbers);
            }
            return self.cell.throttle(now, key, numbers, quantity);
        }
        let used = (owed + last.interval() - 1) / last.interval();
        let remaining = (numbers.limit() - used).max(0);
        let limited = quantity > remaining;
        if !limited && quantity > 0 {
            let owed = (owed * numbers.interval() + last.interval() - 1) / last.interval();
            self.cell.0.insert(key.into(), now + owed);
            self.last.insert(key.into(), numbers);
            return self.cell.throttle(now, key, numbers, quantity);
        }
        let early = owed - (numbers.limit() - quantity) * last.interval();
        let can_pass = quantity <= numbers.limit();
        let retry_after = if limited && can_pass { seconds(early) } else { -1 };
        [limited.into(), numbers.limit(), remaining, retry_after, seconds(owed)]
    }
}

/// The server, its clock and the time since the start.
struct Bench {
    listener: RespListener,
    client: RespConnection,
    now: i128,
}

impl Bench {
    fn new() -> Self {
        let listener = RespListener::open();
        let client = RespConnection::connect(listener.address);
        Self { listener, client, now: 0 }
    }

    fn advance(&mut self, micros: i128) {
        self.now += micros;
        self.listener.clock.advance(Duration::from_micros(micros.try_into().unwrap()));
    }

    fn throttle(&mut self, key: &str, numbers: Numbers, quantity: i128) -> [i128; 5] {
        let Numbers { max_burst, count, period } = numbers;
        let line = format!("CL.THROTTLE {key} {max_burst} {count} {period} {quantity}");
        let reply = self.client.send(&line);
        let integers: Vec<i128> = reply.items().iter().map(|item| item.integer().into()).collect();
        integers.try_into().unwrap_or_else(|_| panic!("{line}: {reply}"))
    }
}

/// From zero to beyond the burst, with more values at the edges.
fn some_quantity(random: &mut FuzzRng, numbers: Numbers) -> i128 {
    let limit = numbers.limit();
    let any = i128::from(random.next_u64()) % (limit + 1);
    random.pick(&[1, 1, 1, 1, 2, 0, any, limit - 1, limit, limit + 1, 10 * limit])
}

/// From zero to the full refill time, with more values at the edges.
fn some_time(random: &mut FuzzRng, numbers: Numbers) -> i128 {
    let interval = numbers.interval();
    let within = i128::from(random.next_u64()) % interval;
    let any = i128::from(random.next_u64()) % numbers.tolerance();
    random.pick(&[0, 0, 0, 1, within, interval - 1, interval, interval + 1, any, SECOND])
}

#[test]
fn the_five_integers_are_those_of_redis_cell() {
    let mut bench = Bench::new();
    let mut cell = Cell::default();
    let mut random = FuzzRng::new(1);
    let (mut limited, mut never, mut peeked) = (0, 0, 0);
    for call in 0..CALLS {
        let at = random.below(NUMBERS.len() as u64);
        let numbers = NUMBERS[usize::try_from(at).unwrap()];
        let key = format!("user-{at}");
        let step = some_time(&mut random, numbers);
        bench.advance(step);
        let quantity = some_quantity(&mut random, numbers);
        let expected = cell.throttle(bench.now, &key, numbers, quantity);
        let got = bench.throttle(&key, numbers, quantity);
        assert_eq!(got, expected, "call {call} at {}: {key} {numbers:?} {quantity}", bench.now);
        limited += got[0];
        never += i128::from(got[0] == 1 && got[3] == -1);
        peeked += i128::from(quantity == 0);
    }
    assert!(limited > 1_000 && never > 1_000 && peeked > 1_000, "{limited} {never} {peeked}");
    writeln!(
        std::io::stderr(),
        "redis-cell: {CALLS} calls agree, {limited} of them limited, {never} for ever"
    )
    .unwrap();
}

#[test]
fn other_numbers_on_the_same_key_count_what_was_used() {
    let mut bench = Bench::new();
    let mut sharing = Sharing::default();
    let mut random = FuzzRng::new(2);
    let (mut changes, mut retries) = (0, 0);
    let mut numbers = NUMBERS[0];
    for call in 0..CALLS / 2 {
        if random.below(3) == 0 {
            let next = random.pick(&NUMBERS[..8]);
            changes += i128::from(next != numbers);
            numbers = next;
        }
        let step = some_time(&mut random, numbers);
        bench.advance(step);
        let quantity = some_quantity(&mut random, numbers);
        let expected = sharing.throttle(bench.now, "k", numbers, quantity);
        let got = bench.throttle("k", numbers, quantity);
        assert_eq!(got, expected, "call {call} at {}: {numbers:?} {quantity}", bench.now);
        if got[3] > 0 && random.below(2) == 0 {
            bench.advance(got[3] * SECOND);
            sharing.throttle(bench.now, "k", numbers, quantity);
            let [limited, ..] = bench.throttle("k", numbers, quantity);
            assert_eq!(limited, 0, "call {call} after {} s: {numbers:?} {quantity}", got[3]);
            retries += 1;
        }
    }
    assert!(changes > 1_000 && retries > 100, "{changes} {retries}");
}

/// A readable example: 15 at once and one more, 30 in 60 seconds.
#[test]
fn a_burst_then_the_steady_rate() {
    let mut bench = Bench::new();
    let user = numbers(15, 30, 60);
    let table = [
        // After, quantity, and the five.
        (0, 1, [0, 16, 15, -1, 2]),
        (0, 15, [0, 16, 0, -1, 32]),
        (0, 1, [1, 16, 0, 2, 32]),
        (SECOND, 1, [1, 16, 0, 1, 31]),
        (1, 1, [1, 16, 0, 1, 31]),
        (SECOND - 1, 1, [0, 16, 0, -1, 32]),
        // A quantity of zero takes nothing, and more than the burst never passes.
        (0, 0, [0, 16, 0, -1, 32]),
        (0, 17, [1, 16, 0, -1, 32]),
        (0, 9_007_199_254_740_992, [1, 16, 0, -1, 32]),
        (0, 16, [1, 16, 0, 32, 32]),
        (32 * SECOND, 0, [0, 16, 16, -1, 0]),
        (0, 16, [0, 16, 0, -1, 32]),
    ];
    for (after, quantity, expected) in table {
        bench.advance(after);
        assert_eq!(bench.throttle("user123", user, quantity), expected, "{quantity}");
    }
    let without = bench.client.send("CL.THROTTLE other 15 30 60");
    assert!(without.is("[0, 16, 15, -1, 2]"), "a quantity of 1 need not be written: {without}");
}

#[test]
fn changed_numbers_are_reported_in_few_lines() {
    let mut bench = Bench::new();
    let wide = numbers(15, 30, 60);
    let narrow = numbers(4, 10, 60);
    let table = [
        (0, wide, 10, [0, 16, 6, -1, 20]),
        // Four of five may be used: in 12 s six of the ten have recovered, one every 2 s.
        (0, narrow, 1, [1, 5, 0, 12, 20]),
        // A denied call changes nothing.
        (0, wide, 0, [0, 16, 6, -1, 20]),
        (12 * SECOND - 1, narrow, 1, [1, 5, 0, 1, 9]),
        // An allowed call keeps the used permits, which then recover at its own rate.
        (1, narrow, 1, [0, 5, 0, -1, 30]),
        (0, wide, 14, [1, 16, 11, 18, 30]),
        (18 * SECOND, wide, 14, [0, 16, 0, -1, 32]),
    ];
    let large = numbers(999, 1_000, 3_600);
    assert_eq!(bench.throttle("t", large, 1_000), [0, 1_000, 0, -1, 3_600]);
    let small = numbers(9, 10, 2);
    assert_eq!(bench.throttle("t", small, 1), [1, 10, 0, 3_568, 3_600], "991 at 3.6 s each");
    for (after, numbers, quantity, expected) in table {
        bench.advance(after);
        assert_eq!(bench.throttle("k", numbers, quantity), expected, "{numbers:?} {quantity}");
    }
}

#[test]
fn del_forgets_keys_and_counts_those_that_had_something() {
    let mut bench = Bench::new();
    let user = numbers(4, 1, 1);
    for key in ["a", "b"] {
        assert_eq!(bench.throttle(key, user, 5), [0, 5, 0, -1, 5]);
    }
    assert!(bench.client.send("DEL a missing a").is("1"));
    assert_eq!(bench.throttle("a", user, 0), [0, 5, 5, -1, 0]);
    assert_eq!(bench.throttle("b", user, 0), [0, 5, 0, -1, 5]);
    bench.advance(5 * SECOND);
    assert!(bench.client.send("DEL b").is("0"), "it has drained: an empty bucket is no bucket");
}

#[test]
fn other_names_are_the_same_command() {
    let mut bench = Bench::new();
    for (words, expected) in [
        ("CL.THROTTLE k 4 1 1000", "[0, 5, 4, -1, 1000]"),
        ("GCRA k 4 1 1000", "[0, 5, 3, -1, 2000]"),
        ("gcra k 4 1 1000 TOKENS 2", "[0, 5, 1, -1, 4000]"),
        ("RL.THROTTLE k 4 1 1000 2", "[1, 5, 1, 1000, 4000]"),
    ] {
        let reply = bench.client.send(words);
        assert!(reply.is(expected), "{words}: {reply}");
    }
    let refused = bench.client.send("GCRA k 4 1 1000 TOKENS").to_string();
    let usage = "GCRA key max_burst count period [TOKENS quantity]";
    assert_eq!(refused, format!("-ERR syntax error; usage: {usage}"));
}

#[test]
fn numbers_that_make_no_limit_are_refused_and_change_nothing() {
    let mut bench = Bench::new();
    let user = numbers(4, 1, 1);
    bench.throttle("k", user, 2);
    let number = "-ERR value is not a whole number from 0 to 2^53";
    let limit = "-ERR invalid limit; count and period must be above 0 and in range";
    let cost = "-ERR the cost is too large; use at most 4294967296";
    let arity = "-ERR wrong number of arguments";
    let syntax = "-ERR syntax error";
    let table = [
        ("4 0 1 1", limit),
        ("4 1 0 1", limit),
        ("9007199254740991 1 1 1", limit),
        ("9007199254740992 1 1 1", limit),
        ("4 1 9007199254740992 1", limit),
        ("8589934592 1000000 1 4294967297", cost),
        ("4 9007199254740992 1 1", limit),
        ("-1 1 1 1", number),
        ("4 -1 1 1", number),
        ("4 1 -1 1", number),
        ("4 1 1 -1", number),
        ("4 1 1 9007199254740993", number),
        ("4 1 1 9223372036854775807", number),
        ("9223372036854775807 1 1 1", number),
        ("4 1 1 99999999999999999999999", number),
        ("4 1 1 1.0", number),
        ("4 one 1 1", number),
        ("4 1 1s 1", number),
        ("4 1", arity),
        ("4 1 1 1 1", syntax),
    ];
    for (words, expected) in table {
        let reply = bench.client.send(&format!("CL.THROTTLE k {words}"));
        let shown = reply.to_string();
        assert_eq!(shown.split("; usage: CL.THROTTLE").next(), Some(expected), "{words}");
        assert_eq!(bench.throttle("k", user, 0), [0, 5, 3, -1, 2], "{words}");
    }
}
