//! Clocks that step and clocks that are wrong.
//!
//! A stock server runs with a small library that shifts its time of day. All figures are computed
//! from the log of decisions in true time, which is never shifted.
//!
//! The server expires keys by the same clock. A step forward therefore removes keys at once, but
//! only those whose state would have recovered by then, so no charge that still counts is lost. A
//! step back keeps keys longer than needed, until they are written again. That costs memory, never
//! permits.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::{Write as _, stderr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Connection, cmd};
use tidegate::{Clock, Limit, Limiter, Micros, SystemClock};
use tidegate_redis::Redis;

use testkit::fake_clock::ClockShim;
use testkit::redis::{RedisServer, SCRIPT_COMMANDS};
use testkit::timing::compare_with_goal;

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// Not a multiple of any window, so that windows end at other instants after a step.
const ODD: u64 = 333_333;

// --- the server's clock steps -------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_of_24_hours_adds_nothing_and_locks_no_key_out() {
    step(ClockStep::Back(DAY + ODD)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_within_a_window_adds_nothing_and_locks_no_key_out() {
    step(ClockStep::Back(ODD)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_forward_of_an_hour_adds_no_more_than_an_hour_would_have() {
    step(ClockStep::Forward(HOUR + ODD)).await;
}

#[derive(Clone, Copy, Debug)]
enum ClockStep {
    Back(u64),
    Forward(u64),
}

/// Greedy traffic on every limit, with a step of the server's clock in the middle.
async fn step(step: ClockStep) {
    const BEFORE: u64 = 1_500_000;
    const AFTER: u64 = 3_000_000;
    const LATE: u64 = 200_000;
    let Some(shim) = ClockShim::build() else { return };
    let server = shifted_server(&shim);
    let stop = Arc::new(AtomicBool::new(false));
    let limits = limits();
    let tasks: Vec<_> = (0..2 * limits.len())
        .map(|i| tokio::spawn(greedy(limiter(&server, &limits[i / 2]), stop.clone())))
        .collect();
    pass(BEFORE).await;
    let stepping = SystemClock.elapsed().get();
    shim.shift(match step {
        ClockStep::Back(span) => -i64::try_from(span).unwrap(),
        ClockStep::Forward(span) => i64::try_from(span).unwrap(),
    });
    let stepped = SystemClock.elapsed().get();
    pass(AFTER).await;
    stop.store(true, Ordering::Relaxed);

    let mut logs = Vec::new();
    for task in tasks {
        logs.push(task.await.unwrap());
    }
    for (limit, logs) in limits.iter().zip(logs.chunks(2)) {
        let log = logs.concat();
        let within = |from: u64, to: u64| -> Vec<TimedDecision> {
            log.iter().copied().filter(|entry| from <= entry.before && entry.after <= to).collect()
        };
        let (before, after) = (within(0, stepping), within(stepped, u64::MAX));
        let extra = limit.excess(&log);
        let max_extra = match step {
            ClockStep::Back(_) => limit.extra_back(),
            ClockStep::Forward(span) => limit.extra_forward(span),
        };
        let (locked_out, wait) = (
            locked_out(&before).max(locked_out(&after)),
            log.iter().map(|e| e.wait).max().unwrap(),
        );
        print_line(&format!(
            "{step:?} us: {}: {} decisions, admitted {}, of these {} after the step; extra {extra}, \
             bound {max_extra}; longest lock-out {} ms, longest wait {} ms, recovery {} ms",
            limit.notation(),
            log.len(),
            admitted(&log),
            admitted(&after),
            locked_out / 1_000,
            wait / 1_000,
            limit.recovery() / 1_000,
        ));
        assert_eq!(limit.excess(&before), 0, "{}, before", limit.notation());
        assert_eq!(limit.excess(&after), 0, "{}, after", limit.notation());
        assert!(extra <= max_extra, "{}: {extra} extra, bound {max_extra}", limit.notation());
        // A lock-out would last as long as the step.
        let is_due = limit.recovery() <= AFTER;
        assert!(!is_due || admitted(&after) > 0, "{}: none after the step", limit.notation());
        let [seen, goal] = [locked_out, limit.recovery() + LATE].map(Duration::from_micros);
        compare_with_goal(format_args!("{}: lock-out", limit.notation()), seen, goal);
        assert!(wait <= limit.recovery(), "{}: a wait of {wait} us", limit.notation());
        // The load was high enough to reach the limit.
        assert!(admitted(&log) >= limit.size, "{}", limit.notation());
    }
}

async fn greedy(limiter: Limiter, stop: Arc<AtomicBool>) -> Vec<TimedDecision> {
    let mut log = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        log.push(timed_check(&limiter, 0).await);
    }
    log
}

/// Makes one check. `ahead` is the shift of this process's time of day, 0 if there is none.
async fn timed_check(limiter: &Limiter, ahead: i64) -> TimedDecision {
    let now = || match ahead {
        0 => SystemClock.elapsed().get(),
        _ => SystemClock.now().get().checked_add_signed(-ahead).unwrap(),
    };
    let before = now();
    let decision = limiter.check("k").await.unwrap();
    let wait = decision.retry_after().span().unwrap().get();
    TimedDecision { before, after: now(), allowed: decision.allowed(), wait }
}

// --- the clients' clocks are wrong --------------------------------------------------------------

const AHEAD: &str = "TIDEGATE_TEST_AHEAD";
const URL: &str = "TIDEGATE_TEST_URL";
const MIN_ROUNDS: u32 = 60;

#[test]
fn clients_whose_clocks_are_two_hours_apart_share_one_bound() {
    let server = RedisServer::start();
    let shims = [ClockShim::build(), ClockShim::build()];
    let [Some(fast), Some(slow)] = &shims else { return };
    let hour = i64::try_from(HOUR).unwrap();
    let spawn = |(shim, ahead): (&ClockShim, i64)| {
        shim.shift(ahead);
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_client_makes_calls_for_two_seconds", "--ignored", "--nocapture"])
            .envs(shim.env())
            .env(AHEAD, ahead.to_string())
            .env(URL, server.url())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let clients = [(fast, hour), (slow, -hour)].map(spawn);
    let limits = limits();
    let mut logs = vec![Vec::new(); limits.len()];
    for client in clients {
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success(), "a client failed");
        let text = String::from_utf8(output.stdout).unwrap();
        for line in text.lines().filter_map(|line| line.strip_prefix("allowed ")) {
            let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
            let [limit, before, after] = numbers[..] else { panic!("{line}") };
            let entry = TimedDecision { before, after, allowed: true, wait: 0 };
            logs[usize::try_from(limit).unwrap()].push(entry);
        }
    }
    for (limit, log) in limits.iter().zip(&logs) {
        let (extra, passed) = (limit.excess(log), admitted(log));
        let notation = limit.notation();
        print_line(&format!(
            "clients 2 h apart: {notation}: admitted {passed}, over-admitted {extra}"
        ));
        assert_eq!(extra, 0, "{}", limit.notation());
        assert!(passed >= limit.size, "{}", limit.notation());
    }
}

#[tokio::test]
#[ignore = "a separate process of the test above, with a shifted clock"]
async fn a_client_makes_calls_for_two_seconds() {
    let ahead: i64 = std::env::var(AHEAD).unwrap().parse().unwrap();
    let url = std::env::var(URL).unwrap();
    let mut connection = redis::Client::open(&*url).unwrap().get_connection().unwrap();
    let server_time = redis_now(&mut connection);
    let client_time = SystemClock.now().get();
    assert!(client_time.abs_diff(server_time).abs_diff(HOUR) < MINUTE, "the clock is not shifted");
    let limiters: Vec<_> = limits().iter().map(|limit| limiter_at(&url, limit)).collect();
    let end = SystemClock.elapsed().get() + 2 * SECOND;
    let (mut lines, mut rounds) = (String::new(), 0);
    // A busy machine makes few calls in two seconds, too few for the limits.
    while SystemClock.elapsed().get() < end || rounds < MIN_ROUNDS {
        rounds += 1;
        for (i, limiter) in limiters.iter().enumerate() {
            let entry = timed_check(limiter, ahead).await;
            if entry.allowed {
                lines.push_str(&format!("\nallowed {i} {} {}", entry.before, entry.after));
            }
        }
    }
    std::io::stdout().write_all(lines.as_bytes()).unwrap();
    std::io::stdout().write_all(b"\n").unwrap();
}

#[tokio::test]
async fn no_instant_is_sent() {
    let server = RedisServer::start();
    let mut connection = connect(&server);
    set(&mut connection, "slowlog-log-slower-than", "0");
    set(&mut connection, "slowlog-max-len", "10000");
    for limit in limits() {
        limiter(&server, &limit).check("k").await.unwrap();
    }
    type SlowLogEntry = (i64, i64, i64, Vec<Vec<u8>>, String, String);
    let slow: Vec<SlowLogEntry> =
        cmd("SLOWLOG").arg(&["GET", "10000"]).query(&mut connection).unwrap();
    let mut scripts = 0;
    for (.., words, _, _) in slow {
        let command = String::from_utf8_lossy(&words[0]).to_ascii_lowercase();
        if command != "eval" && SCRIPT_COMMANDS.contains(&&*command) {
            let keys: usize = std::str::from_utf8(&words[2]).unwrap().parse().unwrap();
            match &*words[3 + keys] {
                // `lean.lua`: the protocol, and -1 for Redis's clock.
                [1, instant @ ..] => {
                    assert!(instant.starts_with(&(-1_f64).to_le_bytes()), "an instant was sent");
                }
                protocol => {
                    assert_eq!(protocol, b"1", "the protocol");
                    assert_eq!(words[5 + keys], b"", "an instant was sent");
                }
            }
            scripts += 1;
        }
    }
    assert!(scripts >= limits().len(), "{scripts}");
}

#[tokio::test]
async fn a_day_is_the_servers_day_after_at_most_one_repeat() {
    const NOTATION: &str = "fixed-window 10/d tz Asia/Shanghai";
    let Some(shim) = ClockShim::build() else { return };
    let server = shifted_server(&shim);
    let mut connection = connect(&server);
    for hours in [30, -30, 60, -60, 24 * 400, -24 * 400] {
        let mut shift = hours * i64::try_from(HOUR).unwrap();
        shim.shift(shift);
        // No day may end during the count.
        if until_midnight(redis_now(&mut connection)) < MINUTE {
            shift += 2 * i64::try_from(MINUTE).unwrap();
            shim.shift(shift);
        }
        let limiter = limiter_of(&server.url(), NOTATION);
        let key = hours.to_string();
        limiter.check(&key).cost(2).await.unwrap();
        cmd("CONFIG").arg("RESETSTAT").exec(&mut connection).unwrap();
        for nth in 1..=10 {
            let decision = limiter.check(&key).await.unwrap();
            assert_eq!(decision.allowed(), nth <= 8, "{hours} h, call {nth}");
            let now = redis_now(&mut connection);
            let wait = decision.retry_after().span().unwrap().get();
            if !decision.allowed() {
                // The decision was made up to a second before this reading of the clock.
                let late = wait.checked_sub(until_midnight(now)).unwrap();
                assert!(late < SECOND, "{hours} h: a wait of {wait} us, {late} too long");
            }
        }
        let calls = server.script_calls();
        print_line(&format!("a clock {hours} h off: 10 decisions took {calls} scripts"));
        assert!(calls <= 20, "{hours} h: {calls} scripts for 10 decisions");
    }
}

/// From `now` until midnight in Shanghai.
fn until_midnight(now: u64) -> u64 {
    DAY - (now + 8 * HOUR) % DAY
}

// --- limits and their bounds --------------------------------------------------------------------

/// `size` permits per `window`.
#[derive(Clone, Copy)]
struct LimitCase {
    kind: LimitKind,
    size: u64,
    window: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum LimitKind {
    TokenBucket,
    Every,
    LeakyBucket,
    Aligned,
    FirstHit,
    Log,
    SubWindows,
    Approximate,
}

/// Short windows, which recover while the test runs, and long ones, of which a step of an hour
/// skips at most one.
fn limits() -> Vec<LimitCase> {
    use LimitKind::*;
    let kinds = [TokenBucket, Every, LeakyBucket, Aligned, FirstHit, Log, SubWindows, Approximate];
    let windows = [SECOND, 40 * MINUTE];
    let case = |window| kinds.map(|kind| LimitCase { kind, size: 20, window });
    windows.into_iter().flat_map(case).collect()
}

impl LimitCase {
    fn notation(&self) -> String {
        let (size, ms) = (self.size, self.window / 1_000);
        match self.kind {
            LimitKind::TokenBucket => format!("token-bucket {size}/{ms}ms"),
            LimitKind::Every => {
                format!("token-bucket {size}/{ms}ms every {}ms", self.step() / 1_000)
            }
            LimitKind::LeakyBucket => format!("leaky-bucket {size}/{ms}ms"),
            LimitKind::Aligned => format!("fixed-window {size}/{ms}ms"),
            LimitKind::FirstHit => format!("fixed-window {size}/{ms}ms first-hit"),
            LimitKind::Log => format!("sliding-log {size}/{ms}ms"),
            LimitKind::SubWindows => {
                format!("sliding-window {size}/{ms}ms precision {}ms", self.step() / 1_000)
            }
            LimitKind::Approximate => format!("sliding-window {size}/{ms}ms approximate"),
        }
    }

    /// Length of `every`, which refills a quarter, or of a sub-window.
    fn step(&self) -> u64 {
        self.window / 4
    }

    fn amount(&self) -> u64 {
        self.size / 4
    }

    /// The most that may pass in any `span`, ends included, if the clock does not step.
    fn bound(&self, span: u64) -> u64 {
        let windows = span / self.window;
        match self.kind {
            LimitKind::TokenBucket | LimitKind::LeakyBucket => {
                self.size + span * self.size / self.window
            }
            LimitKind::Every => self.size + self.amount() * (span / self.step() + 1),
            LimitKind::Aligned | LimitKind::FirstHit | LimitKind::Approximate => {
                self.size * (windows + 2)
            }
            LimitKind::Log | LimitKind::SubWindows => self.size * (windows + 1),
        }
    }

    /// Permits that a step back may add to the bound.
    fn extra_back(&self) -> u64 {
        match self.kind {
            LimitKind::Aligned => self.size,
            LimitKind::Every => self.amount(),
            _ => 0,
        }
    }

    /// Permits that a step forward by `span` may add to the bound.
    fn extra_forward(&self, span: u64) -> u64 {
        match self.kind {
            LimitKind::TokenBucket | LimitKind::LeakyBucket => {
                (span * self.size).div_ceil(self.window)
            }
            LimitKind::Every => self.amount() * (span / self.step() + 1),
            _ => self.size * (span / self.window + 1),
        }
    }

    /// The longest wait for one permit, whatever the clock does.
    fn recovery(&self) -> u64 {
        match self.kind {
            LimitKind::SubWindows => self.window + self.step(),
            // After a step back, charges of two windows count in one, and fade during the next.
            LimitKind::Approximate => 2 * self.window,
            _ => self.window,
        }
    }

    /// Permits above the bound in the worst interval. Counts only calls that were certainly decided
    /// inside it.
    fn excess(&self, log: &[TimedDecision]) -> u64 {
        let mut passed: Vec<&TimedDecision> = log.iter().filter(|entry| entry.allowed).collect();
        passed.sort_unstable_by_key(|entry| entry.after);
        let mut worst = 0;
        for start in passed.iter().map(|entry| entry.before) {
            let inside = passed.iter().filter(|entry| entry.before >= start);
            for (count, entry) in (1..).zip(inside) {
                worst = worst.max(u64::saturating_sub(count, self.bound(entry.after - start)));
            }
        }
        worst
    }
}

/// One decision as its caller observed it, in microseconds of true time.
#[derive(Clone, Copy, Debug)]
struct TimedDecision {
    before: u64,
    after: u64,
    allowed: bool,
    wait: u64,
}

fn admitted(log: &[TimedDecision]) -> u64 {
    log.iter().filter(|entry| entry.allowed).count() as u64
}

/// The longest time, for certain, in which every call was denied.
fn locked_out(log: &[TimedDecision]) -> u64 {
    let mut log: Vec<&TimedDecision> = log.iter().collect();
    log.sort_unstable_by_key(|entry| entry.before);
    let (mut passed, mut longest) = (log.first().map_or(0, |first| first.before), 0);
    for entry in log {
        if entry.allowed {
            passed = passed.max(entry.after);
        } else {
            longest = longest.max(entry.before.saturating_sub(passed));
        }
    }
    longest
}

// --- helpers ------------------------------------------------------------------------------------

fn limiter(server: &RedisServer, case: &LimitCase) -> Limiter {
    limiter_at(&server.url(), case)
}

fn limiter_at(url: &str, case: &LimitCase) -> Limiter {
    limiter_of(url, &case.notation())
}

/// Waits in true time, as the server has its own clock.
async fn pass(micros: u64) {
    SystemClock.sleep_until(SystemClock.elapsed().saturating_add(Micros::new(micros))).await;
}

/// A limiter with its own engine and connection.
fn limiter_of(url: &str, notation: &str) -> Limiter {
    let limit: Limit = notation.parse().unwrap_or_else(|error| panic!("{notation}: {error}"));
    Limiter::new(Redis::builder(url).deadline(Duration::from_secs(30)).build().unwrap(), limit)
}

fn print_line(line: &str) {
    let mut err = stderr().lock();
    writeln!(err, "{line}").unwrap();
}

fn connect(server: &RedisServer) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

fn set(connection: &mut Connection, name: &str, value: &str) {
    cmd("CONFIG").arg(&["SET", name, value]).exec(connection).unwrap();
}

fn redis_now(connection: &mut Connection) -> u64 {
    let (seconds, micros): (u64, u64) = cmd("TIME").query(connection).unwrap();
    seconds * SECOND + micros
}

/// A server whose clock the shim shifts.
fn shifted_server(shim: &ClockShim) -> RedisServer {
    let server = RedisServer::start_in(&shim.env());
    // Checks that the shim works.
    let mut connection = connect(&server);
    shim.shift(i64::try_from(DAY).unwrap());
    let ahead = redis_now(&mut connection).saturating_sub(SystemClock.now().get());
    assert!(ahead > DAY - HOUR, "the server's clock does not step");
    shim.shift(0);
    server
}
