//! Callers drop their futures at every point of a call. No caller gets the reply of another, and no
//! permit stays held.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tidegate::{Decision, Limiter, Rule, Source};
use tidegate_model::TraceRng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::options::Options;
use crate::stack::{Setup, TIMEOUT};
use crate::table::FigureTable;
use testkit::redis::RedisServer;
use testkit::timing::HANG;

/// Each has a different limit, by which a decision is recognised.
const SITES: u64 = 32;
const MIN_LIMIT: u64 = 1_000_000;
const TASKS: u64 = 64;
/// TTL of a reservation that is committed; a busy machine may take seconds to commit it.
const COMMITTED: Duration = Duration::from_secs(5);
/// Maximum of polls before a call is dropped.
const MAX_POLLS: u64 = 8;

pub(super) async fn run(options: &Options) -> FigureTable {
    let count = options.count(2_000, 100_000);
    let server = RedisServer::start();
    let stack = Setup::on(&server.url()).deadline(TIMEOUT).build();
    stack.until_up().await;
    let sites: Vec<TestLimiter> = (0..SITES)
        .map(|nth| {
            let limit = format!("fixed-window {}/365d first-hit", MIN_LIMIT + nth);
            let rule = Rule::new(&format!("site-{nth}"), [limit.parse().unwrap()]).unwrap();
            let slots = format!("concurrency {} lease 10min", MIN_LIMIT + nth);
            let slots = Rule::new(&format!("slots-{nth}"), [slots.parse().unwrap()]).unwrap();
            let [limiter, slots] = [rule, slots].map(|rule| stack.limiter([rule]));
            TestLimiter { limiter, slots, limit: MIN_LIMIT + nth }
        })
        .collect();
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (sites, mut rng) = (sites.clone(), TraceRng::new(options.seed ^ task << 32));
        tasks.spawn(async move {
            let mut counts = vec![CallCounts::default(); sites.len()];
            // A call that completes before it is dropped does not count.
            while counts.iter().map(|counts| counts.dropped).sum::<u64>() < count.div_ceil(TASKS) {
                let nth = rng.below(SITES) as usize;
                sites[nth].call(&mut rng, &mut counts[nth]).await;
                sites[nth].whole_call(&mut counts[nth]).await;
            }
            counts
        });
    }
    let mut total = vec![CallCounts::default(); sites.len()];
    for counts in tasks.join_all().await {
        total.iter_mut().zip(counts).for_each(|(total, counts)| total.add(&counts));
    }
    let took = begun.elapsed();

    let sum = |of: fn(&CallCounts) -> u64| total.iter().map(of).sum::<u64>();
    let mut table = FigureTable::new("callers drop their futures at every point of a call");
    table.at_least("calls that were dropped", sum(|t| t.dropped), count);
    table.report("calls that completed", format!("{} in {took:?}", sum(|t| t.completed)));
    table.report("of them decided by the fallback", sum(|t| t.local));
    table.at_least("of them decided in Redis", sum(|t| t.completed - t.local), count / 2);
    table.exactly("replies to another caller", sum(|t| t.crossed), 0);
    table.exactly("errors to callers", sum(|t| t.errors), 0);
    let (mut over, mut under) = (0, 0);
    for (site, counts) in sites.iter().zip(&total) {
        let used = site.used().await;
        over += used.saturating_sub(counts.charged + counts.maybe_charged);
        under += counts.charged.saturating_sub(used);
    }
    table.exactly("charges beyond those requested", over, 0);
    table.exactly("charges lost", under, 0);
    let (held, after) = until_free(&sites).await;
    table.report("all released", format!("{after:?} after the last call"));
    table.exactly("permits and slots still held", held, 0);
    table
}

#[derive(Clone)]
struct TestLimiter {
    limiter: Limiter,
    slots: Limiter,
    limit: u64,
}

/// Counts of one limiter.
#[derive(Clone, Default)]
struct CallCounts {
    dropped: u64,
    completed: u64,
    /// Completed by the fallback: on a busy machine the circuit may be open for a moment.
    local: u64,
    crossed: u64,
    errors: u64,
    /// Reported as charged, and maybe charged by a call that was dropped or fell back.
    charged: u64,
    maybe_charged: u64,
}

impl TestLimiter {
    /// A random call, dropped after some polls.
    async fn call(&self, rng: &mut TraceRng, counts: &mut CallCounts) {
        let polls = rng.below(MAX_POLLS);
        match rng.below(5) {
            0 => {
                let output = polled(polls, async { self.limiter.check("key").await }).await;
                counts.count(output, self.limit, 1);
            }
            1 => {
                let wait = self.limiter.acquire("key", TIMEOUT);
                let output = polled(polls, async { wait.await.map_err(drop) }).await;
                counts.count(output, self.limit, 1);
            }
            2 => {
                let reserve = async { self.limiter.reserve("key", 3).await };
                let output = polled(polls, reserve).await;
                // The reservation is dropped at once.
                let output = output.map(|made| made.map(|made| made.decision().cloned().unwrap()));
                counts.count(output, self.limit, 0);
            }
            3 => {
                let commit = async {
                    // A reservation dropped during its commit stays held until its TTL: the work
                    // was done.
                    let reserve = self.limiter.reserve("key", 3).ttl(COMMITTED);
                    let made = reserve.await.map_err(drop)?;
                    let settled = made.commit(2).await.map_err(drop)?;
                    Ok::<_, ()>(settled.into_decision())
                };
                counts.count(polled(polls, commit).await, self.limit, 2);
            }
            _ => {
                let enter = async { self.slots.enter("key").await };
                let output = polled(polls, enter).await;
                let output = output.map(|entered| entered.map(|entered| entered.decision));
                counts.count(output, self.limit, 0);
            }
        }
    }

    /// Used permits in Redis. On a busy machine the circuit may be open for a moment.
    async fn used(&self) -> u64 {
        let begun = Instant::now();
        loop {
            match self.limiter.inspect("key").await {
                Ok(rules) => return rules[0].standing.used,
                Err(error) => assert!(begun.elapsed() < HANG, "{error}"),
            }
            sleep(TIMEOUT).await;
        }
    }

    /// A call that completes.
    async fn whole_call(&self, counts: &mut CallCounts) {
        counts.count(Some(self.limiter.check("key").await), self.limit, 1);
    }
}

impl CallCounts {
    fn count<E>(&mut self, output: Option<Result<Decision, E>>, limit: u64, cost: u64) {
        match output {
            None => {
                self.dropped += 1;
                self.maybe_charged += cost;
            }
            Some(Err(_)) => self.errors += 1,
            // Its limit is a fraction of the one in Redis.
            Some(Ok(decision)) if decision.source == Source::Fallback => {
                self.completed += 1;
                self.local += 1;
                self.maybe_charged += cost;
            }
            Some(Ok(decision)) => {
                self.completed += 1;
                self.charged += cost;
                self.crossed += u64::from(decision.verdict().limit != limit);
            }
        }
    }

    fn add(&mut self, other: &Self) {
        self.dropped += other.dropped;
        self.completed += other.completed;
        self.local += other.local;
        self.crossed += other.crossed;
        self.errors += other.errors;
        self.charged += other.charged;
        self.maybe_charged += other.maybe_charged;
    }
}

/// Output of the future within so many polls; `None` if it is dropped then.
async fn polled<T>(max: u64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == max {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if polls == max => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Waits until nothing is held. Returns what is still held, and the time it took.
async fn until_free(sites: &[TestLimiter]) -> (u64, Duration) {
    let begun = Instant::now();
    loop {
        let mut held = 0;
        for site in sites {
            for limiter in [&site.limiter, &site.slots] {
                held += limiter.inspect("key").await.unwrap()[0].standing.held;
            }
        }
        if held == 0 || begun.elapsed() > HANG {
            return (held, begun.elapsed());
        }
        sleep(Duration::from_millis(20)).await;
    }
}
