//! Callers go away at every point of a call. Nobody gets an answer that was another's, and nothing stays
//! taken.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tidegate::{Decision, Limiter, Rule};
use tidegate_model::Rng;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Options;
use crate::server::Server;
use crate::stack::{PATIENCE, Setup};
use crate::table::Table;

/// Each has a limit of its own, by which an answer is known.
const SITES: u64 = 32;
const LEAST: u64 = 1_000_000;
const TASKS: u64 = 64;
/// How long a reservation lasts that is to be committed.
const COMMITTED: Duration = Duration::from_secs(1);
/// After so many polls a call is always over, or the caller has no more patience.
const MOST_POLLS: u64 = 8;

pub(super) async fn run(options: &Options) -> Table {
    let count = options.count(2_000, 100_000);
    let server = Server::start();
    let stack = Setup::on(&server.url()).deadline(PATIENCE).build();
    stack.until_up().await;
    let sites: Vec<Site> = (0..SITES)
        .map(|nth| {
            let limit = format!("fixed-window {}/365d first-hit", LEAST + nth);
            let rule = Rule::new(&format!("site-{nth}"), [limit.parse().unwrap()]).unwrap();
            let places = format!("concurrency {} lease 10min", LEAST + nth);
            let places = Rule::new(&format!("places-{nth}"), [places.parse().unwrap()]).unwrap();
            let [limiter, places] = [rule, places].map(|rule| stack.limiter([rule]));
            Site { limiter, places, limit: LEAST + nth }
        })
        .collect();
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (sites, mut rng) = (sites.clone(), Rng::new(options.seed ^ task << 32));
        tasks.spawn(async move {
            let mut tally = vec![Tally::default(); sites.len()];
            // A call that ends before it is dropped does not count.
            while tally.iter().map(|tally| tally.dropped).sum::<u64>() < count.div_ceil(TASKS) {
                let nth = rng.below(SITES) as usize;
                sites[nth].call(&mut rng, &mut tally[nth]).await;
                sites[nth].whole_call(&mut tally[nth]).await;
            }
            tally
        });
    }
    let mut total = vec![Tally::default(); sites.len()];
    for tally in tasks.join_all().await {
        total.iter_mut().zip(tally).for_each(|(total, tally)| total.add(&tally));
    }
    let took = begun.elapsed();

    let sum = |of: fn(&Tally) -> u64| total.iter().map(of).sum::<u64>();
    let mut table = Table::new("callers go away at every point of a call");
    table.at_least("calls that were dropped", sum(|t| t.dropped), count);
    table.tell("calls that were answered", format!("{} in {took:?}", sum(|t| t.answered)));
    table.exactly("answers that were another's", sum(|t| t.crossed), 0);
    table.exactly("errors to callers", sum(|t| t.errors), 0);
    let (mut over, mut under) = (0, 0);
    for (site, tally) in sites.iter().zip(&total) {
        let used = site.limiter.inspect("key").await.unwrap()[0].standing.used;
        over += used.saturating_sub(tally.charged + tally.perhaps);
        under += tally.charged.saturating_sub(used);
    }
    table.exactly("charges beyond those asked for", over, 0);
    table.exactly("charges lost", under, 0);
    let (held, after) = until_free(&sites).await;
    table.tell("all given back", format!("{after:?} after the last call"));
    table.exactly("permits and places still held", held, 0);
    table
}

#[derive(Clone)]
struct Site {
    limiter: Limiter,
    places: Limiter,
    limit: u64,
}

/// What was seen of one site.
#[derive(Clone, Default)]
struct Tally {
    dropped: u64,
    answered: u64,
    crossed: u64,
    errors: u64,
    /// What was said to be charged, and what may have been without anybody hearing of it.
    charged: u64,
    perhaps: u64,
}

impl Site {
    /// Some call, whose caller goes away after some polls.
    async fn call(&self, rng: &mut Rng, tally: &mut Tally) {
        let polls = rng.below(MOST_POLLS);
        match rng.below(5) {
            0 => {
                let heard = polled(polls, async { self.limiter.check("key").await }).await;
                tally.count(heard, self.limit, 1);
            }
            1 => {
                let wait = self.limiter.acquire("key", PATIENCE);
                let heard = polled(polls, async { wait.await.map_err(drop) }).await;
                tally.count(heard, self.limit, 1);
            }
            2 => {
                let reserve = async { self.limiter.reserve("key", 3).await };
                let heard = polled(polls, reserve).await;
                // What was reserved is dropped at once.
                let heard = heard.map(|made| made.map(|made| made.decision().cloned().unwrap()));
                tally.count(heard, self.limit, 0);
            }
            3 => {
                let commit = async {
                    // Whoever is dropped while it commits has done the work: it stays held for as long.
                    let reserve = self.limiter.reserve("key", 3).ttl(COMMITTED);
                    let made = reserve.await.map_err(drop)?;
                    made.commit(2).await.map_err(drop)
                };
                tally.count(polled(polls, commit).await, self.limit, 2);
            }
            _ => {
                let enter = async { self.places.enter("key").await };
                let heard = polled(polls, enter).await;
                let heard = heard.map(|entered| entered.map(|entered| entered.decision));
                tally.count(heard, self.limit, 0);
            }
        }
    }

    /// One that is heard to its end.
    async fn whole_call(&self, tally: &mut Tally) {
        tally.count(Some(self.limiter.check("key").await), self.limit, 1);
    }
}

impl Tally {
    fn count<E>(&mut self, heard: Option<Result<Decision, E>>, limit: u64, cost: u64) {
        match heard {
            None => {
                self.dropped += 1;
                self.perhaps += cost;
            }
            Some(Err(_)) => self.errors += 1,
            Some(Ok(decision)) => {
                self.answered += 1;
                self.charged += cost;
                self.crossed += u64::from(decision.verdict().limit != limit);
            }
        }
    }

    fn add(&mut self, other: &Self) {
        self.dropped += other.dropped;
        self.answered += other.answered;
        self.crossed += other.crossed;
        self.errors += other.errors;
        self.charged += other.charged;
        self.perhaps += other.perhaps;
    }
}

/// What it says within so many polls; then it is dropped where it is.
async fn polled<T>(most: u64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        if polls == most {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(said) => Poll::Ready(Some(said)),
            Poll::Pending if polls == most => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Waits until nothing is held any more. What still is in the end, and when that was.
async fn until_free(sites: &[Site]) -> (u64, Duration) {
    let begun = Instant::now();
    loop {
        let mut held = 0;
        for site in sites {
            for limiter in [&site.limiter, &site.places] {
                held += limiter.inspect("key").await.unwrap()[0].standing.held;
            }
        }
        if held == 0 || begun.elapsed() > 2 * PATIENCE {
            return (held, begun.elapsed());
        }
        sleep(Duration::from_millis(20)).await;
    }
}
