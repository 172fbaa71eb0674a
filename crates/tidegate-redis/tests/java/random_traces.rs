//! Random histories against a model that keeps a list of the taken permits.

use std::collections::VecDeque;

use tidegate::Outcome;

use crate::fixture::{Fixture, NAME, overall};
use crate::redisson_scripts::RedissonScripts;

/// Expected results of a limiter of `rate` permits per second: a list of instants and permits.
struct Model {
    rate: u64,
    taken: VecDeque<(u64, u64)>,
}

impl Model {
    fn left(&mut self, ms: u64) -> u64 {
        self.taken.retain(|(at, _)| at + 1_000 > ms);
        let used: u64 = self.taken.iter().map(|(_, permits)| permits).sum();
        self.rate.saturating_sub(used)
    }

    fn take(&mut self, ms: u64, permits: u64) -> Result<(), u64> {
        if self.left(ms) >= permits {
            self.taken.push_back((ms, permits));
            return Ok(());
        }
        let mut later = Self { rate: self.rate, taken: self.taken.clone() };
        Err((1..).find(|wait| later.left(ms + wait) >= permits).unwrap())
    }

    fn release(&mut self, ms: u64, mut permits: u64) -> u64 {
        self.left(ms);
        let before = permits;
        while let (Some(oldest), true) = (self.taken.front_mut(), permits > 0) {
            let part = permits.min(oldest.1);
            (oldest.1, permits) = (oldest.1 - part, permits - part);
            if oldest.1 == 0 {
                self.taken.pop_front();
            }
        }
        before - permits
    }

    /// Permits above the new rate count until they expire.
    fn set(&mut self, ms: u64, rate: u64) {
        self.left(ms);
        self.rate = rate;
    }
}

/// Pseudo-random numbers from a fixed seed.
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[tokio::test]
async fn on_random_histories_every_result_is_that_of_the_model() {
    const STEPS: u64 = 3_000;
    let fixture = Fixture::with_rate(10).await;
    let mut model = Model { rate: 10, taken: VecDeque::new() };
    let (mut rng, mut ms) = (Lcg(1), 10_000);
    for step in 0..STEPS {
        ms += rng.below(150);
        fixture.at_ms(ms);
        match rng.below(10) {
            0 => {
                let permits = rng.below(4);
                let released =
                    fixture.limiter.release(u32::try_from(permits).unwrap()).await.unwrap();
                assert_eq!(released, model.release(ms, permits), "step {step}");
            }
            1 if step % 7 == 0 => {
                let rate = 5 + rng.below(10);
                assert!(fixture.limiter.update_rate(overall(rate)).await.unwrap());
                model.set(ms, rate);
            }
            2 => assert_eq!(fixture.left().await, model.left(ms), "step {step}"),
            _ => {
                let permits = 1 + rng.below(5);
                let taken =
                    fixture.limiter.try_acquire(u32::try_from(permits).unwrap()).await.unwrap();
                let expected = match model.take(ms, permits) {
                    Ok(()) => Outcome::Allow,
                    Err(wait) => Outcome::RetryAfter(tidegate::Micros::from_millis(wait)),
                };
                assert_eq!(taken.outcome(), expected, "step {step}: {permits}");
                assert_eq!(taken.remaining(), model.left(ms), "step {step}: {permits}");
            }
        }
    }
}

/// Java takes and reads; Tidegate takes, reads and releases. At every step both agree on the
/// permits left, and in the end those left and those taken add up to the rate.
#[tokio::test]
async fn on_random_histories_of_both_each_reads_what_the_other_wrote() {
    const STEPS: u64 = 1_500;
    let fixture = Fixture::with_rate(10).await;
    for mut redisson in RedissonScripts::all(&fixture.server) {
        redisson.begin(10);
        let mut model = Model { rate: 10, taken: VecDeque::new() };
        let (mut rng, mut ms) = (Lcg(7), 10_000);
        for step in 0..STEPS {
            ms += rng.below(120);
            fixture.at_ms(ms);
            let permits = 1 + rng.below(4);
            let few = u32::try_from(permits).unwrap();
            match rng.below(8) {
                0 => {
                    let released = fixture.limiter.release(few).await.unwrap();
                    assert_eq!(released, model.release(ms, permits), "step {step}");
                }
                1 => assert_eq!(fixture.left().await, model.left(ms), "step {step}"),
                2 => {
                    let left = i64::try_from(model.left(ms)).unwrap();
                    assert_eq!(redisson.available_at(ms), left, "step {step}");
                }
                3..=5 => {
                    let taken = redisson.take_at(ms, few).unwrap().is_none();
                    assert_eq!(taken, model.take(ms, permits).is_ok(), "step {step}");
                }
                _ => {
                    let taken = fixture.limiter.try_acquire(few).await.unwrap().allowed();
                    assert_eq!(taken, model.take(ms, permits).is_ok(), "step {step}");
                }
            }
        }
        let all = "local sum = tonumber(redis.call('GET', '{orders}:value')) \
                   for _, m in ipairs(redis.call('ZRANGE', '{orders}:permits', 0, -1)) do \
                   local _, n = struct.unpack('Bc0I', m) sum = sum + n end return sum";
        assert_eq!(fixture.server.cli(&["EVAL", all, "0"]), "10", "{}", redisson.version);
        assert_eq!(fixture.server.cli(&["HGET", NAME, "rate"]), "10");
    }
}
