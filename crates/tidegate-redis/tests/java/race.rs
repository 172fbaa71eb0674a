//! Java and Rust take permits at the same time, as fast as both can. The checker uses only what
//! Redis recorded and what the callers observed; it calls no limiter.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use tidegate::{Clock, SystemClock};
use tidegate_redis::RedisClient;
use tidegate_redis::redisson::{Mode, Rate, RateLimiter};
use tokio::task::JoinSet;

use crate::fixture::{SECOND, TIMEOUT, client, is_long, overall, print_line};
use crate::jvm::{Java, Version, receive_reply};
use testkit::cluster::RedisCluster;
use testkit::redis::RedisServer;

const RATE: usize = 50;
const NAME: &str = "race";
/// Threads of Java, and tasks of Rust.
const RACERS: u32 = 2;

/// A taken permit: start and end of the call that took it, in us.
#[derive(Clone, Copy, Debug)]
struct TakenPermit {
    start: u64,
    end: u64,
}

/// An entry as Redis recorded it: time of the command and score, in us.
#[derive(Clone, Copy, Debug)]
struct PermitEntry {
    recorded: i64,
    score: i64,
    of_java: bool,
}

impl PermitEntry {
    fn lag(&self) -> i64 {
        self.recorded - self.score
    }
}

/// Runs a race and checks its log. Takes a minute in a long run.
pub(crate) async fn race(
    version: &Version,
    java: &Java,
    client: &RedisClient,
    server: &RedisServer,
) {
    let span = Duration::from_secs(if is_long() { 60 } else { 8 });
    let limiter = RateLimiter::new(client, NAME);
    assert!(limiter.try_set_rate(overall(RATE as u64)).await.unwrap());
    let monitor = Monitor::start(server);
    let ms = span.as_millis().to_string();
    let java_reply = java.begin(&["race", NAME, &RACERS.to_string(), &ms]);
    let rust_permits = take_permits(&limiter, span);
    let waited = tokio::task::spawn_blocking(move || permits_of_java(&java_reply, span));
    let (rust_permits, java_permits) = (rust_permits.await, waited.await.unwrap());
    let entries = monitor.entries(server);
    let left = limiter.available_permits().await.unwrap();
    assert!(left <= RATE as u64);
    assert!(java.command(&["available", NAME]).parse::<usize>().unwrap() <= RATE);
    assert_eq!(limiter.config().await.unwrap(), Some(overall(RATE as u64)));
    assert_eq!(java.command(&["config", NAME]), "OVERALL 50 1000");

    // Redis recorded exactly the permits that the callers observed.
    let of_java = entries.iter().filter(|entry| entry.of_java).count();
    assert_eq!((of_java, entries.len() - of_java), (java_permits.len(), rust_permits.len()));
    let lag = |of_java| {
        let lags = entries.iter().filter(|entry| entry.of_java == of_java).map(PermitEntry::lag);
        lags.max().unwrap_or(0)
    };
    let (java_lag, rust_lag) = (lag(true), lag(false));
    let bound = within(1_000_000, java_lag.max(rust_lag));
    let (recorded, observed) =
        (max_recorded(&entries, bound), max_observed(&rust_permits, &java_permits, bound));
    print_line(&format!(
        "raced Redisson {} for {span:?} at {RATE}/s: {of_java} by Java, {} by Rust; largest lag {} us of Java, \
         {rust_lag} us of Rust; at most {recorded} in any {bound} us recorded by Redis, {observed} observed by the callers",
        version.name,
        rust_permits.len(),
        java_lag,
    ));
    assert!(recorded <= RATE && observed <= RATE, "{recorded} {observed}");
    assert_contention(of_java, rust_permits.len(), span);
    // In a short race, the time until Rust sees the first entry of Java weighs more.
    let (less, more) = (of_java.min(rust_permits.len()), of_java.max(rust_permits.len()));
    let ratio = if is_long() { 2 } else { 20 };
    assert!(more <= ratio * less, "{of_java} by Java, {} by Rust", rust_permits.len());
}

/// Both sides took permits, and the limit was reached. A short race on a busy machine may miss
/// either, so only a long one checks it.
fn assert_contention(one: usize, other: usize, span: Duration) {
    assert!(one + other > 0);
    if is_long() {
        assert!(one > 0 && other > 0, "{one} and {other}");
        let due = RATE * usize::try_from(span.as_secs()).unwrap();
        assert!((one + other) * 10 >= due * 7, "{one} and {other} of {due}");
    }
}

/// The span in which the rate has to hold, if entries may be recorded this much later than their
/// scores. A lag above the span leaves nothing to check.
fn within(span: i64, lag: i64) -> i64 {
    let bound = span - lag.max(0);
    if bound <= 0 {
        print_line(&format!("nothing checked: a lag of {lag} us, the machine is too busy"));
    }
    bound.max(0)
}

/// Two Tidegate clients on one limiter of a Redis Cluster, each with its own connections.
pub(crate) async fn race_in_a_cluster(cluster: &RedisCluster) {
    const SPAN: Duration = Duration::from_secs(5);
    let limiters = [(), ()].map(|()| RateLimiter::new(&client(&cluster.url()), NAME));
    assert!(limiters[0].try_set_rate(overall(RATE as u64)).await.unwrap());
    let primary = &cluster.nodes[cluster.primary_of(cluster.slot_of(NAME))];
    let monitor = Monitor::start(primary);
    let (one, other) =
        tokio::join!(take_permits(&limiters[0], SPAN), take_permits(&limiters[1], SPAN));
    let entries = monitor.entries(primary);
    assert_eq!(entries.len(), one.len() + other.len());
    let lag = entries.iter().map(PermitEntry::lag).max().unwrap().max(0);
    let bound = within(1_000_000, lag);
    let (recorded, observed) = (max_recorded(&entries, bound), max_observed(&one, &other, bound));
    print_line(&format!(
        "raced in a Redis Cluster for {SPAN:?} at {RATE}/s: {} and {} by two clients; largest lag {lag} us; at most \
         {recorded} in any {bound} us recorded by Redis, {observed} observed by the callers",
        one.len(),
        other.len(),
    ));
    assert!(recorded <= RATE && observed <= RATE, "{recorded} {observed}");
    assert_contention(one.len(), other.len(), SPAN);
}

/// More entries than one script call reads, by Redis's clock, so that they are counted in chunks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_entries_of_several_clients_stay_within_the_rate() {
    const MANY: u64 = 1_500;
    const SPAN: Duration = Duration::from_secs(6);
    let server = RedisServer::start();
    let limiters = [(), (), ()].map(|()| RateLimiter::new(&client(&server.url()), NAME));
    let rate = Rate::new(Mode::Overall, MANY, 2 * SECOND).unwrap();
    assert!(limiters[0].try_set_rate(rate).await.unwrap());
    let monitor = Monitor::start(&server);
    let (one, other, third) = tokio::join!(
        take_permits(&limiters[0], SPAN),
        take_permits(&limiters[1], SPAN),
        take_permits(&limiters[2], SPAN)
    );
    let chunked = server.cli(&["INFO", "commandstats"]).contains("cmdstat_zrank:");
    let entries = monitor.entries(&server);
    let lag = entries.iter().map(PermitEntry::lag).max().unwrap().max(0);
    let recorded = max_recorded(&entries, within(2_000_000, lag));
    let taken = one.len() + other.len() + third.len();
    print_line(&format!(
        "{taken} of {} by three clients, at most {recorded} recorded in any 2 s less {lag} us",
        3 * MANY
    ));
    assert_eq!(entries.len(), taken);
    assert!(recorded <= usize::try_from(MANY).unwrap(), "{recorded}");
    assert!(chunked || recorded < 1_000, "{recorded} entries, not counted in chunks");
    // The number of free permits and the entries still add up to the rate.
    let sum = "local sum = tonumber(redis.call('GET', '{race}:value')) \
               for _, m in ipairs(redis.call('ZRANGE', '{race}:permits', 0, -1)) do \
               local _, n = struct.unpack('Bc0I', m) sum = sum + n end return sum";
    assert_eq!(server.cli(&["EVAL", sum, "0"]), MANY.to_string());
}

fn permits_of_java(
    receiver: &std::sync::mpsc::Receiver<crate::jvm::JavaMessage>,
    span: Duration,
) -> Vec<TakenPermit> {
    // Permits arrive all the time, so that no single wait reaches the timeout.
    assert!(span > SECOND);
    let (permits, reply) = receive_reply(receiver);
    assert_eq!(reply.unwrap().parse(), Ok(permits.len()), "no error in Java");
    permits.into_iter().map(|(start, end)| TakenPermit { start, end }).collect()
}

async fn take_permits(limiter: &RateLimiter, span: Duration) -> Vec<TakenPermit> {
    let clock = SystemClock;
    let end = clock.elapsed().saturating_add(span.into());
    let mut racers = JoinSet::new();
    for _ in 0..RACERS {
        let limiter = limiter.clone();
        racers.spawn(async move {
            let mut permits = Vec::new();
            while clock.elapsed() < end {
                let left: Duration = end.saturating_sub(clock.elapsed()).into();
                let start = clock.now().get();
                // Panics on an error: a race has none.
                if limiter.try_acquire_for(1, left).await.unwrap().allowed() {
                    permits.push(TakenPermit { start, end: clock.now().get() });
                } else {
                    tokio::time::sleep(left).await;
                }
            }
            permits
        });
    }
    racers.join_all().await.into_iter().flatten().collect()
}

/// The most entries within any interval of `span`, by the time at which Redis recorded them.
fn max_recorded(entries: &[PermitEntry], span: i64) -> usize {
    let mut recorded: Vec<i64> = entries.iter().map(|entry| entry.recorded).collect();
    recorded.sort_unstable();
    let within = |first: usize| {
        recorded[first..].iter().take_while(|at| **at < recorded[first] + span).count()
    };
    (0..recorded.len()).map(within).max().unwrap_or(0)
}

/// The most permits whose calls began and ended within any interval of `span`.
fn max_observed(rust_permits: &[TakenPermit], java_permits: &[TakenPermit], span: i64) -> usize {
    let span = u64::try_from(span).expect("not negative");
    let all: Vec<TakenPermit> = rust_permits.iter().chain(java_permits).copied().collect();
    let within = |first: &TakenPermit| {
        let from = first.start;
        all.iter().filter(|permit| permit.start >= from && permit.end < from + span).count()
    };
    all.iter().map(within).max().unwrap_or(0)
}

/// Output of Redis's MONITOR command.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn start(server: &RedisServer) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, "+OK\r\n");
        Self(reader)
    }

    /// All entries that were recorded until now.
    fn entries(mut self, server: &RedisServer) -> Vec<PermitEntry> {
        const END: &str = "end of the race";
        server.cli(&["ECHO", END]);
        let mut entries = Vec::new();
        loop {
            let mut line = Vec::new();
            self.0.read_until(b'\n', &mut line).unwrap();
            let line = String::from_utf8_lossy(&line);
            if line.contains(END) {
                return entries;
            }
            // A script of Tidegate adds the entries of several callers at once.
            let count = line.matches(r"RUST\x").count().max(1);
            entries.extend(
                entry(&line).into_iter().flat_map(|entry| std::iter::repeat_n(entry, count)),
            );
        }
    }
}

/// `+1700000000.123456 [0 lua] "zadd" "{race}:permits" "1700000000120" "..`; Tidegate's scripts
/// write the command in capitals.
fn entry(line: &str) -> Option<PermitEntry> {
    let (time, rest) = line.strip_prefix('+')?.split_once(" [0 lua] ")?;
    let mut words = rest.split('"').skip(1).step_by(2);
    let name = words.next().filter(|name| name.eq_ignore_ascii_case("zadd"))?;
    if words.next() != Some("{race}:permits") {
        return None;
    }
    let score: i64 = words.next()?.parse().ok()?;
    let (seconds, micros) = time.split_once('.')?;
    let recorded = seconds.parse::<i64>().ok()? * 1_000_000 + micros.parse::<i64>().ok()?;
    Some(PermitEntry { recorded, score: score * 1_000, of_java: name == "zadd" })
}

#[test]
fn the_checker_finds_one_too_many() {
    let entry = |recorded| PermitEntry { recorded, score: recorded, of_java: true };
    let entries: Vec<PermitEntry> = (0..10).map(|nth| entry(nth * 100)).collect();
    assert_eq!(max_recorded(&entries, 500), 5);
    assert_eq!(max_recorded(&entries, 501), 6);
    let permit = |start| TakenPermit { start, end: start + 10 };
    let permits: Vec<TakenPermit> = (0..10).map(|nth| permit(nth * 100)).collect();
    assert_eq!(max_observed(&permits[..5], &permits[5..], 510), 5);
    assert_eq!(max_observed(&permits[..5], &permits[5..], 511), 6);
    let line = "+1794783140.217113 [0 lua] \"zadd\" \"{race}:permits\" \"1794783140160\" \"\\x10\\xe9L\"\r\n";
    let found = super::race::entry(line).unwrap();
    assert_eq!((found.lag(), found.of_java), (57_113, true));
}
