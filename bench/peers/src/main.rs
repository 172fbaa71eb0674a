//! Runs other rate limiters on traffic that reaches their worst case, and Tidegate on the same.
//!
//! `bench/peers/run rust` builds and starts it.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, SystemTime};

use governor::clock::FakeRelativeClock;
use governor::{Quota, RateLimiter};
use limitador::limit::{Context, Limit as LimitadorLimit};
use throttlecrab::AdaptiveStore;
use tidegate::{Limit, Limiter, ManualClock, Memory};

/// Permits of every limit, and the permits a second of the buckets.
const LIMIT: u32 = 100;
const KEYS: usize = 5_000;

fn main() -> Result<(), Box<dyn Error>> {
    println!("| limiter | traffic | admitted | limit |");
    println!("|---|---|---|---|");

    let pause = "a token bucket: one request, a pause, then as many as pass";
    row("Tidegate", pause, worst_after_a_pause(tidegate_bucket)?);
    row("governor", pause, worst_after_a_pause(governor_bucket)?);
    row("throttlecrab", pause, worst_after_a_pause(throttlecrab_bucket)?);

    let race = "8 threads race for one key, the worst of 5,000 keys";
    let limit: Limit = "fixed-window 100/h first-hit".parse()?;
    let limiter = Limiter::new(Memory::default(), limit);
    row("Tidegate", race, worst_of_threads(|key| limiter.allow(key).unwrap()));
    let limiter = limitador::RateLimiter::new(2 * KEYS as u64);
    let variables = vec!["key".try_into()?];
    limiter.add_limit(LimitadorLimit::new("peers", LIMIT.into(), 3600, vec![], variables));
    let admits = |key: &str| {
        let request = Context::from(HashMap::from([("key".to_owned(), key.to_owned())]));
        let check = limiter.check_rate_limited_and_update(&"peers".into(), &request, 1).unwrap();
        !check.limited
    };
    row("limitador", race, worst_of_threads(admits));
    Ok(())
}

fn row(limiter: &str, traffic: &str, admitted: usize) {
    println!("| {limiter} | {traffic} | {admitted} | {LIMIT} |");
}

/// A bucket at a time in nanoseconds since its start: whether one request is admitted.
type Bucket = Box<dyn FnMut(u64) -> bool>;

/// The most requests that a fresh bucket admits at one instant, over pauses of up to 2 s.
fn worst_after_a_pause(
    fresh: impl Fn() -> Result<Bucket, Box<dyn Error>>,
) -> Result<usize, Box<dyn Error>> {
    let mut worst = 0;
    for pause in (0..2000).map(|ms| ms * 1_000_000) {
        let mut admits = fresh()?;
        admits(0);
        worst = worst.max((0..1000).take_while(|_| admits(pause)).count());
    }
    Ok(worst)
}

fn tidegate_bucket() -> Result<Bucket, Box<dyn Error>> {
    let clock = ManualClock::default();
    let engine = Memory::builder().clock(clock.clone()).build();
    let limiter = Limiter::new(engine, Limit::per_second(LIMIT.into()).build()?);
    let mut time = 0;
    Ok(Box::new(move |now| {
        clock.advance(Duration::from_nanos(now - time));
        time = now;
        limiter.allow("key").unwrap()
    }))
}

fn governor_bucket() -> Result<Bucket, Box<dyn Error>> {
    let clock = FakeRelativeClock::default();
    let quota = Quota::per_second(LIMIT.try_into()?);
    let limiter = RateLimiter::direct_with_clock(quota, clock.clone());
    let mut time = 0;
    Ok(Box::new(move |now| {
        clock.advance(Duration::from_nanos(now - time));
        time = now;
        limiter.check().is_ok()
    }))
}

fn throttlecrab_bucket() -> Result<Bucket, Box<dyn Error>> {
    let mut limiter = throttlecrab::RateLimiter::new(AdaptiveStore::new());
    let start = SystemTime::now();
    Ok(Box::new(move |now| {
        let now = start + Duration::from_nanos(now);
        let (burst, per_second) = (LIMIT.into(), LIMIT.into());
        limiter.rate_limit("key", burst, per_second, 1, 1, now).unwrap().0
    }))
}

/// The most requests of one key that are admitted when 8 threads send 50 each.
fn worst_of_threads(admits: impl Fn(&str) -> bool + Sync) -> usize {
    let admitted = |number: usize| -> usize {
        let key = format!("key-{number}");
        let start = Barrier::new(8);
        let send = || {
            start.wait();
            (0..50).filter(|_| admits(&key)).count()
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(send)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        })
    };
    (0..KEYS).map(admitted).max().unwrap_or_default()
}
