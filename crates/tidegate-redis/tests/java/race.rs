//! Java and Rust at once, as fast as both can, and a checker that goes by what Redis has seen and by what each of them says,
//! and asks no limiter.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use tidegate::{Clock, SystemClock};
use tidegate_redis::Client;
use tidegate_redis::redisson::{Mode, Rate, RateLimiter};
use tokio::task::JoinSet;

use crate::cluster::Cluster;
use crate::driver::{Java, Version, answer};
use crate::lab::{PATIENCE, SECOND, client, overall, say};
use crate::server::Server;

const RATE: usize = 50;
const NAME: &str = "race";
/// Of Java, and tasks of ours.
const RACERS: u32 = 2;

/// A permit that was taken, by somebody who began to ask and was answered, in us.
#[derive(Clone, Copy, Debug)]
struct Permit {
    start: u64,
    end: u64,
}

/// An entry as Redis saw it come: when, and with which score, in us.
#[derive(Clone, Copy, Debug)]
struct Entry {
    seen: i64,
    score: i64,
    of_java: bool,
}

impl Entry {
    fn lag(&self) -> i64 {
        self.seen - self.score
    }
}

/// Races, and checks. A minute if there is time for it.
pub(crate) async fn race(version: &Version, java: &Java, client: &Client, server: &Server) {
    let span = Duration::from_secs(if is_long() { 60 } else { 8 });
    let limiter = RateLimiter::new(client, NAME);
    assert!(limiter.try_set_rate(overall(RATE as u64)).await.unwrap());
    let monitor = Monitor::start(server);
    let ms = span.as_millis().to_string();
    let theirs = java.begin(&["race", NAME, &RACERS.to_string(), &ms]);
    let ours = ours(&limiter, span);
    let waited = tokio::task::spawn_blocking(move || answer_of_race(&theirs, span));
    let (ours, theirs) = (ours.await, waited.await.unwrap());
    let entries = monitor.entries(server);
    let left = limiter.available_permits().await.unwrap();
    assert!(left <= RATE as u64);
    assert!(java.told(&["available", NAME]).parse::<usize>().unwrap() <= RATE);
    assert_eq!(limiter.config().await.unwrap(), Some(overall(RATE as u64)));
    assert_eq!(java.told(&["config", NAME]), "OVERALL 50 1000");

    // Everybody who says that it took something did, and nobody else.
    let of_java = entries.iter().filter(|entry| entry.of_java).count();
    assert_eq!((of_java, entries.len() - of_java), (theirs.len(), ours.len()));
    let lag = |of_java| {
        let lags = entries.iter().filter(|entry| entry.of_java == of_java).map(Entry::lag);
        lags.max().unwrap_or(0)
    };
    let (java_lag, own_lag) = (lag(true), lag(false));
    let bound = within(1_000_000, java_lag.max(own_lag));
    let (seen, told) = (most_seen(&entries, bound), most_told(&ours, &theirs, bound));
    say(&format!(
        "raced Redisson {} for {span:?} at {RATE}/s: {of_java} by Java, {} by Rust; largest lag of Java {} us, of \
         ours {own_lag} us; at most {seen} in any {bound} us by Redis, {told} by the racers' own word",
        version.name,
        ours.len(),
        java_lag,
    ));
    assert!(seen <= RATE && told <= RATE, "{seen} {told}");
    was_a_race(of_java, ours.len(), span);
}

fn is_long() -> bool {
    env::var("TIDEGATE_LONG").as_deref() == Ok("1")
}

/// It was a race, and the limit was reached. On a machine that does other things as well, a short one may not be.
fn was_a_race(one: usize, other: usize, span: Duration) {
    assert!(one + other > 0);
    if is_long() {
        assert!(one > 0 && other > 0, "{one} and {other}");
        let due = RATE * usize::try_from(span.as_secs()).unwrap();
        assert!((one + other) * 10 >= due * 7, "{one} and {other} of {due}");
    }
}

/// In which span the rate has to hold, when an entry may be so much older than it says. Of one that is older than all of it,
/// nothing can be said.
fn within(span: i64, lag: i64) -> i64 {
    let bound = span - lag.max(0);
    if bound <= 0 {
        say(&format!("a lag of {lag} us, so that nothing is checked: the machine is too busy"));
    }
    bound.max(0)
}

/// Two clients of ours on one limiter of a Cluster, each with its own connections.
pub(crate) async fn race_in_a_cluster(cluster: &Cluster) {
    const SPAN: Duration = Duration::from_secs(5);
    let limiters = [(), ()].map(|()| RateLimiter::new(&client(&cluster.url()), NAME));
    assert!(limiters[0].try_set_rate(overall(RATE as u64)).await.unwrap());
    let primary = &cluster.nodes[cluster.primary_of(cluster.slot_of(NAME))];
    let monitor = Monitor::start(primary);
    let (one, other) = tokio::join!(ours(&limiters[0], SPAN), ours(&limiters[1], SPAN));
    let entries = monitor.entries(primary);
    assert_eq!(entries.len(), one.len() + other.len());
    let lag = entries.iter().map(Entry::lag).max().unwrap().max(0);
    let bound = within(1_000_000, lag);
    let (seen, told) = (most_seen(&entries, bound), most_told(&one, &other, bound));
    say(&format!(
        "raced in a Cluster for {SPAN:?} at {RATE}/s: {} and {} by two clients; largest lag {lag} us; at most {seen} in \
         any {bound} us by Redis, {told} by the racers' own word",
        one.len(),
        other.len(),
    ));
    assert!(seen <= RATE && told <= RATE, "{seen} {told}");
    was_a_race(one.len(), other.len(), SPAN);
}

/// More entries than are looked at in one call, by Redis's own clock, counted again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_entries_of_several_clients_stay_within_the_rate() {
    const MANY: u64 = 1_500;
    const SPAN: Duration = Duration::from_secs(6);
    let server = Server::start();
    let limiters = [(), (), ()].map(|()| RateLimiter::new(&client(&server.url()), NAME));
    let rate = Rate::new(Mode::Overall, MANY, 2 * SECOND).unwrap();
    assert!(limiters[0].try_set_rate(rate).await.unwrap());
    let monitor = Monitor::start(&server);
    let (one, other, third) =
        tokio::join!(ours(&limiters[0], SPAN), ours(&limiters[1], SPAN), ours(&limiters[2], SPAN));
    let parts = server.cli(&["INFO", "commandstats"]).contains("cmdstat_zrank:");
    let entries = monitor.entries(&server);
    let lag = entries.iter().map(Entry::lag).max().unwrap().max(0);
    let seen = most_seen(&entries, within(2_000_000, lag));
    let taken = one.len() + other.len() + third.len();
    say(&format!(
        "{taken} of {} by three clients, at most {seen} in any 2 s less {lag} us",
        3 * MANY
    ));
    assert_eq!(entries.len(), taken);
    assert!(seen <= usize::try_from(MANY).unwrap(), "{seen}");
    assert!(parts || seen < 1_000, "a slow machine, or they were counted in parts");
    // Nothing was lost on the way.
    let sum = "local sum = tonumber(redis.call('GET', '{race}:value')) \
               for _, m in ipairs(redis.call('ZRANGE', '{race}:permits', 0, -1)) do \
               local _, n = struct.unpack('Bc0I', m) sum = sum + n end return sum";
    assert_eq!(server.cli(&["EVAL", sum, "0"]), MANY.to_string());
}

fn answer_of_race(
    receiver: &std::sync::mpsc::Receiver<crate::driver::Said>,
    span: Duration,
) -> Vec<Permit> {
    // Permits come all the time, so that its patience is never tried.
    assert!(span > SECOND);
    let (permits, answer) = answer(receiver);
    assert_eq!(answer.unwrap().parse(), Ok(permits.len()), "no error on their side");
    permits.into_iter().map(|(start, end)| Permit { start, end }).collect()
}

async fn ours(limiter: &RateLimiter, span: Duration) -> Vec<Permit> {
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
                // No error on our side.
                if limiter.try_acquire_for(1, left).await.unwrap().allowed() {
                    permits.push(Permit { start, end: clock.now().get() });
                } else {
                    tokio::time::sleep(left).await;
                }
            }
            permits
        });
    }
    racers.join_all().await.into_iter().flatten().collect()
}

/// The most entries within any interval of `span`, by when Redis saw them.
fn most_seen(entries: &[Entry], span: i64) -> usize {
    let mut seen: Vec<i64> = entries.iter().map(|entry| entry.seen).collect();
    seen.sort_unstable();
    let within =
        |first: usize| seen[first..].iter().take_while(|at| **at < seen[first] + span).count();
    (0..seen.len()).map(within).max().unwrap_or(0)
}

/// The most permits that were asked for and given within any interval of `span`.
fn most_told(ours: &[Permit], theirs: &[Permit], span: i64) -> usize {
    let span = u64::try_from(span).expect("no less than nothing");
    let all: Vec<Permit> = ours.iter().chain(theirs).copied().collect();
    let within = |first: &Permit| {
        let from = first.start;
        all.iter().filter(|permit| permit.start >= from && permit.end < from + span).count()
    };
    all.iter().map(within).max().unwrap_or(0)
}

/// What Redis does, as it says itself.
struct Monitor(BufReader<TcpStream>);

impl Monitor {
    fn start(server: &Server) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, "+OK\r\n");
        Self(reader)
    }

    /// All entries that have come by now.
    fn entries(mut self, server: &Server) -> Vec<Entry> {
        const END: &str = "that is all";
        server.cli(&["ECHO", END]);
        let mut entries = Vec::new();
        loop {
            let mut line = Vec::new();
            self.0.read_until(b'\n', &mut line).unwrap();
            let line = String::from_utf8_lossy(&line);
            if line.contains(END) {
                return entries;
            }
            entries.extend(entry(&line));
        }
    }
}

/// `+1700000000.123456 [0 lua] "zadd" "{race}:permits" "1700000000120" "..`; ours are in capitals.
fn entry(line: &str) -> Option<Entry> {
    let (time, rest) = line.strip_prefix('+')?.split_once(" [0 lua] ")?;
    let mut words = rest.split('"').skip(1).step_by(2);
    let name = words.next().filter(|name| name.eq_ignore_ascii_case("zadd"))?;
    if words.next() != Some("{race}:permits") {
        return None;
    }
    let score: i64 = words.next()?.parse().ok()?;
    let (seconds, micros) = time.split_once('.')?;
    let seen = seconds.parse::<i64>().ok()? * 1_000_000 + micros.parse::<i64>().ok()?;
    Some(Entry { seen, score: score * 1_000, of_java: name == "zadd" })
}

#[test]
fn the_checker_finds_one_too_many() {
    let entry = |seen| Entry { seen, score: seen, of_java: true };
    let entries: Vec<Entry> = (0..10).map(|nth| entry(nth * 100)).collect();
    assert_eq!(most_seen(&entries, 500), 5);
    assert_eq!(most_seen(&entries, 501), 6);
    let permit = |start| Permit { start, end: start + 10 };
    let permits: Vec<Permit> = (0..10).map(|nth| permit(nth * 100)).collect();
    assert_eq!(most_told(&permits[..5], &permits[5..], 510), 5);
    assert_eq!(most_told(&permits[..5], &permits[5..], 511), 6);
    let line = "+1794783140.217113 [0 lua] \"zadd\" \"{race}:permits\" \"1794783140160\" \"\\x10\\xe9L\"\r\n";
    let found = super::race::entry(line).unwrap();
    assert_eq!((found.lag(), found.of_java), (57_113, true));
}
