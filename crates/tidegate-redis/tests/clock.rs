//! Clocks that step and clocks that are wrong.
//!
//! A stock server runs under a small library that shifts its time of day. Whatever is claimed is
//! computed from the raw log of the decisions, in true time, which nobody shifts.
//!
//! The server's own expiry of keys goes by the same clock. A step forward therefore removes keys at
//! once, but only those whose state would have recovered by then, so nothing is forgotten that still
//! counts. A step back lets keys live that much longer than they need to, until they are written
//! again: it costs memory, never permits.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "support/server.rs"]
mod server;

use std::fs;
use std::io::{Write as _, stderr};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use redis::{Connection, cmd};
use tidegate::{Clock, Limit, Limiter, Micros, SystemClock};
use tidegate_redis::Redis;

use crate::server::Server;

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// Of no window's length, so that windows end elsewhere after a step.
const ODD: u64 = 333_333;

// --- the server's clock steps -------------------------------------------------------------------

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_of_24_hours_adds_nothing_and_locks_nobody_out() {
    step(Step::Back(DAY + ODD)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_within_a_window_adds_nothing_and_locks_nobody_out() {
    step(Step::Back(ODD)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_forward_of_an_hour_adds_no_more_than_an_hour_would_have() {
    step(Step::Forward(HOUR + ODD)).await;
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Back(u64),
    Forward(u64),
}

/// Greedy traffic on every limit, with a step of the server's clock in the middle.
async fn step(step: Step) {
    const BEFORE: u64 = 1_500_000;
    const AFTER: u64 = 3_000_000;
    const LATE: u64 = 200_000;
    let Some(shim) = Shim::new() else { return };
    let server = shim.server();
    let stop = Arc::new(AtomicBool::new(false));
    let limits = limits();
    let tasks: Vec<_> = (0..2 * limits.len())
        .map(|i| tokio::spawn(greedy(limiter(&server, &limits[i / 2]), stop.clone())))
        .collect();
    pass(BEFORE).await;
    let stepping = SystemClock.elapsed().get();
    shim.shift(match step {
        Step::Back(span) => -i64::try_from(span).unwrap(),
        Step::Forward(span) => i64::try_from(span).unwrap(),
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
        let within = |from: u64, to: u64| -> Vec<Entry> {
            log.iter().copied().filter(|entry| from <= entry.before && entry.after <= to).collect()
        };
        let (before, after) = (within(0, stepping), within(stepped, u64::MAX));
        let extra = limit.excess(&log);
        let may = match step {
            Step::Back(_) => limit.extra_back(),
            Step::Forward(span) => limit.extra_forward(span),
        };
        let (locked_out, wait) = (
            locked_out(&before).max(locked_out(&after)),
            log.iter().map(|e| e.wait).max().unwrap(),
        );
        say(&format!(
            "{step:?} us: {}: {} decisions, admitted {}, of these {} after the step; extra {extra}, \
             bound {may}; longest lock-out {} ms, longest wait told {} ms, recovery {} ms",
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
        assert!(extra <= may, "{}: {extra} extra, bound {may}", limit.notation());
        // Seen from outside, calls and their turns on a busy machine come on top.
        let seen = limit.recovery() + LATE;
        assert!(locked_out <= seen, "{}: {locked_out} us", limit.notation());
        assert!(wait <= limit.recovery(), "{}: told to wait {wait} us", limit.notation());
        // The traffic was greedy, and so were we.
        assert!(admitted(&log) >= limit.size, "{}", limit.notation());
    }
}

async fn greedy(limiter: Limiter, stop: Arc<AtomicBool>) -> Vec<Entry> {
    let mut log = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        log.push(ask(&limiter, 0).await);
    }
    log
}

/// Asks once. `ahead` is by how much this process's time of day is shifted, 0 if it is not.
async fn ask(limiter: &Limiter, ahead: i64) -> Entry {
    let now = || match ahead {
        0 => SystemClock.elapsed().get(),
        _ => SystemClock.now().get().checked_add_signed(-ahead).unwrap(),
    };
    let before = now();
    let decision = limiter.check("k").await.unwrap();
    let wait = decision.retry_after().span().unwrap().get();
    Entry { before, after: now(), allowed: decision.allowed(), wait }
}

// --- the clients' clocks are wrong --------------------------------------------------------------

const AHEAD: &str = "TIDEGATE_TEST_AHEAD";
const URL: &str = "TIDEGATE_TEST_URL";

#[test]
fn clients_whose_clocks_are_two_hours_apart_share_one_bound() {
    let server = Server::start();
    let shims = [Shim::new(), Shim::new()];
    let [Some(fast), Some(slow)] = &shims else { return };
    let hour = i64::try_from(HOUR).unwrap();
    let spawn = |(shim, ahead): (&Shim, i64)| {
        shim.shift(ahead);
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_client_asks_for_two_seconds", "--ignored", "--nocapture"])
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
            let entry = Entry { before, after, allowed: true, wait: 0 };
            logs[usize::try_from(limit).unwrap()].push(entry);
        }
    }
    for (limit, log) in limits.iter().zip(&logs) {
        let (extra, passed) = (limit.excess(log), admitted(log));
        let notation = limit.notation();
        say(&format!("clients 2 h apart: {notation}: admitted {passed}, over-admitted {extra}"));
        assert_eq!(extra, 0, "{}", limit.notation());
        assert!(passed >= limit.size, "{}", limit.notation());
    }
}

#[tokio::test]
#[ignore = "a process of its own for the test above, under a clock of its own"]
async fn a_client_asks_for_two_seconds() {
    let ahead: i64 = std::env::var(AHEAD).unwrap().parse().unwrap();
    let url = std::env::var(URL).unwrap();
    let mut connection = redis::Client::open(&*url).unwrap().get_connection().unwrap();
    let theirs = redis_now(&mut connection);
    let ours = SystemClock.now().get();
    assert!(ours.abs_diff(theirs).abs_diff(HOUR) < MINUTE, "the clock is not shifted");
    let limiters: Vec<_> = limits().iter().map(|limit| limiter_at(&url, limit)).collect();
    let end = SystemClock.elapsed().get() + 2 * SECOND;
    let mut lines = String::new();
    while SystemClock.elapsed().get() < end {
        for (i, limiter) in limiters.iter().enumerate() {
            let entry = ask(limiter, ahead).await;
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
    let server = Server::start();
    let mut connection = connect(&server);
    set(&mut connection, "slowlog-log-slower-than", "0");
    set(&mut connection, "slowlog-max-len", "10000");
    for limit in limits() {
        limiter(&server, &limit).check("k").await.unwrap();
    }
    type Slow = (i64, i64, i64, Vec<Vec<u8>>, String, String);
    let slow: Vec<Slow> = cmd("SLOWLOG").arg(&["GET", "10000"]).query(&mut connection).unwrap();
    let mut scripts = 0;
    for (.., words, _, _) in slow {
        if words[0].eq_ignore_ascii_case(b"EVALSHA") {
            let keys: usize = std::str::from_utf8(&words[2]).unwrap().parse().unwrap();
            assert_eq!(words[3 + keys], b"1", "the protocol");
            assert_eq!(words[5 + keys], b"", "an instant was sent");
            scripts += 1;
        }
    }
    assert!(scripts >= limits().len(), "{scripts}");
}

#[tokio::test]
async fn a_day_is_the_servers_day_after_at_most_one_repeat() {
    const NOTATION: &str = "fixed-window 10/d tz Asia/Shanghai";
    let Some(shim) = Shim::new() else { return };
    let server = shim.server();
    let mut connection = connect(&server);
    for hours in [30, -30, 60, -60, 24 * 400, -24 * 400] {
        let mut shift = hours * i64::try_from(HOUR).unwrap();
        shim.shift(shift);
        // No day may end while we count.
        if until_midnight(redis_now(&mut connection)) < MINUTE {
            shift += 2 * i64::try_from(MINUTE).unwrap();
            shim.shift(shift);
        }
        let limiter = limiter_of(&server.url(), NOTATION);
        let key = hours.to_string();
        limiter.check(&key).cost(2).await.unwrap();
        cmd("CONFIG").arg("RESETSTAT").exec(&mut connection).unwrap();
        for asked in 1..=10 {
            let decision = limiter.check(&key).await.unwrap();
            assert_eq!(decision.allowed(), asked <= 8, "{hours} h, question {asked}");
            let now = redis_now(&mut connection);
            let wait = decision.retry_after().span().unwrap().get();
            if !decision.allowed() {
                // Asked up to a second before we read the clock.
                let late = wait.checked_sub(until_midnight(now)).unwrap();
                assert!(late < SECOND, "{hours} h: told to wait {wait} us, {late} too long");
            }
        }
        let stats: String = cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1).unwrap();
        let calls: u64 = calls.split(',').next().unwrap().parse().unwrap();
        say(&format!("a clock {hours} h off: 10 decisions took {calls} scripts"));
        assert!(calls <= 20, "{hours} h: {calls} scripts for 10 decisions");
    }
}

/// From `now` until midnight in Shanghai.
fn until_midnight(now: u64) -> u64 {
    DAY - (now + 8 * HOUR) % DAY
}

// --- limits, and what they promise --------------------------------------------------------------

/// `size` permits per `window`.
#[derive(Clone, Copy)]
struct Case {
    kind: Kind,
    size: u64,
    window: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    TokenBucket,
    Every,
    LeakyBucket,
    Aligned,
    FirstHit,
    Log,
    SubWindows,
    Approximate,
}

/// Short ones, that recover while the test runs, and long ones, that a step of an hour carries into
/// the next window but one at most.
fn limits() -> Vec<Case> {
    use Kind::*;
    let kinds = [TokenBucket, Every, LeakyBucket, Aligned, FirstHit, Log, SubWindows, Approximate];
    let windows = [SECOND, 40 * MINUTE];
    let case = |window| kinds.map(|kind| Case { kind, size: 20, window });
    windows.into_iter().flat_map(case).collect()
}

impl Case {
    fn notation(&self) -> String {
        let (size, ms) = (self.size, self.window / 1_000);
        match self.kind {
            Kind::TokenBucket => format!("token-bucket {size}/{ms}ms"),
            Kind::Every => format!("token-bucket {size}/{ms}ms every {}ms", self.step() / 1_000),
            Kind::LeakyBucket => format!("leaky-bucket {size}/{ms}ms"),
            Kind::Aligned => format!("fixed-window {size}/{ms}ms"),
            Kind::FirstHit => format!("fixed-window {size}/{ms}ms first-hit"),
            Kind::Log => format!("sliding-log {size}/{ms}ms"),
            Kind::SubWindows => {
                format!("sliding-window {size}/{ms}ms precision {}ms", self.step() / 1_000)
            }
            Kind::Approximate => format!("sliding-window {size}/{ms}ms approximate"),
        }
    }

    /// Of `every` or of a sub-window; an `every` brings back a quarter.
    fn step(&self) -> u64 {
        self.window / 4
    }

    fn amount(&self) -> u64 {
        self.size / 4
    }

    /// The most that may pass in any `span`, ends included, if no clock steps.
    fn bound(&self, span: u64) -> u64 {
        let windows = span / self.window;
        match self.kind {
            Kind::TokenBucket | Kind::LeakyBucket => self.size + span * self.size / self.window,
            Kind::Every => self.size + self.amount() * (span / self.step() + 1),
            Kind::Aligned | Kind::FirstHit | Kind::Approximate => self.size * (windows + 2),
            Kind::Log | Kind::SubWindows => self.size * (windows + 1),
        }
    }

    /// What a step back may add to that.
    fn extra_back(&self) -> u64 {
        match self.kind {
            Kind::Aligned => self.size,
            Kind::Every => self.amount(),
            _ => 0,
        }
    }

    /// What a step forward by `span` may add to that.
    fn extra_forward(&self, span: u64) -> u64 {
        match self.kind {
            Kind::TokenBucket | Kind::LeakyBucket => (span * self.size).div_ceil(self.window),
            Kind::Every => self.amount() * (span / self.step() + 1),
            _ => self.size * (span / self.window + 1),
        }
    }

    /// How long somebody may have to wait for one permit, whatever the clock does.
    fn recovery(&self) -> u64 {
        match self.kind {
            Kind::SubWindows => self.window + self.step(),
            // What a step back finds of two windows is counted in one, and fades during the next.
            Kind::Approximate => 2 * self.window,
            _ => self.window,
        }
    }

    /// By how much the worst of all intervals exceeds the bound. Only what was decided inside it
    /// for certain is counted.
    fn excess(&self, log: &[Entry]) -> u64 {
        let mut passed: Vec<&Entry> = log.iter().filter(|entry| entry.allowed).collect();
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

/// One decision as its caller saw it, in microseconds of true time.
#[derive(Clone, Copy, Debug)]
struct Entry {
    before: u64,
    after: u64,
    allowed: bool,
    wait: u64,
}

fn admitted(log: &[Entry]) -> u64 {
    log.iter().filter(|entry| entry.allowed).count() as u64
}

/// For how long, for certain, somebody was denied whenever they asked.
fn locked_out(log: &[Entry]) -> u64 {
    let mut log: Vec<&Entry> = log.iter().collect();
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

// --- tools --------------------------------------------------------------------------------------

fn limiter(server: &Server, case: &Case) -> Limiter {
    limiter_at(&server.url(), case)
}

fn limiter_at(url: &str, case: &Case) -> Limiter {
    limiter_of(url, &case.notation())
}

/// The server runs on its own clock, so a test has to let true time pass.
async fn pass(micros: u64) {
    SystemClock.sleep_until(SystemClock.elapsed().saturating_add(Micros::new(micros))).await;
}

/// Each with an engine and a connection of its own.
fn limiter_of(url: &str, notation: &str) -> Limiter {
    let limit: Limit = notation.parse().unwrap_or_else(|error| panic!("{notation}: {error}"));
    Limiter::new(Redis::builder(url).deadline(Duration::from_secs(30)).build().unwrap(), limit)
}

fn say(line: &str) {
    let mut err = stderr().lock();
    writeln!(err, "{line}").unwrap();
}

fn connect(server: &Server) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

fn set(connection: &mut Connection, name: &str, value: &str) {
    cmd("CONFIG").arg(&["SET", name, value]).exec(connection).unwrap();
}

fn redis_now(connection: &mut Connection) -> u64 {
    let (seconds, micros): (u64, u64) = cmd("TIME").query(connection).unwrap();
    seconds * SECOND + micros
}

/// A library that shifts the clock of a process that is started under it.
struct Shim {
    dir: PathBuf,
    offset: fs::File,
}

impl Shim {
    /// None, and the reason printed, if it cannot be built here.
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tidegate-clock-{}-{count}", process::id()));
        fs::create_dir_all(&dir).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/clock_shim.c");
        let built = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .args([&dir.join("shim.so"), &source])
            .status();
        let offset = fs::File::create(dir.join("offset")).unwrap();
        let shim = Self { dir, offset };
        shim.shift(0);
        match built {
            Ok(status) => assert!(status.success(), "cc cannot build {}", source.display()),
            Err(error) => {
                say(&format!("skipped: clocks cannot be stepped without cc ({error})"));
                return None;
            }
        }
        Some(shim)
    }

    /// Shows the true time plus this many microseconds from now on.
    fn shift(&self, micros: i64) {
        self.offset.write_all_at(&micros.to_ne_bytes(), 0).unwrap();
    }

    fn env(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.dir.join("shim.so")), ("TIDEGATE_CLOCK", self.dir.join("offset"))]
    }

    fn server(&self) -> Server {
        let server = Server::start_in(&self.env());
        // Or nothing would be tested.
        let mut connection = connect(&server);
        self.shift(i64::try_from(DAY).unwrap());
        let ahead = redis_now(&mut connection).saturating_sub(SystemClock.now().get());
        assert!(ahead > DAY - HOUR, "the server's clock does not step");
        self.shift(0);
        server
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
