//! Random histories against a model that keeps a list of what was taken.

use std::collections::VecDeque;

use tidegate::Outcome;

use crate::lab::{Lab, NAME, overall};
use crate::theirs::Theirs;

/// What a limiter of so many per second must answer: a list, and nothing clever.
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

    fn give_back(&mut self, ms: u64, mut permits: u64) -> u64 {
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

    /// What is above the new rate counts on, until its time has come.
    fn set(&mut self, ms: u64, rate: u64) {
        self.left(ms);
        self.rate = rate;
    }
}

/// Numbers that look random, the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[tokio::test]
async fn on_random_histories_ours_answers_as_the_model_does() {
    const STEPS: u64 = 3_000;
    let lab = Lab::with_rate(10).await;
    let mut model = Model { rate: 10, taken: VecDeque::new() };
    let (mut dice, mut ms) = (Dice(1), 10_000);
    for step in 0..STEPS {
        ms += dice.below(150);
        lab.at_ms(ms);
        match dice.below(10) {
            0 => {
                let permits = dice.below(4);
                let given = lab.limiter.release(u32::try_from(permits).unwrap()).await.unwrap();
                assert_eq!(given, model.give_back(ms, permits), "step {step}");
            }
            1 if step % 7 == 0 => {
                let rate = 5 + dice.below(10);
                assert!(lab.limiter.update_rate(overall(rate)).await.unwrap());
                model.set(ms, rate);
            }
            2 => assert_eq!(lab.left().await, model.left(ms), "step {step}"),
            _ => {
                let permits = 1 + dice.below(5);
                let taken = lab.limiter.try_acquire(u32::try_from(permits).unwrap()).await.unwrap();
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

/// Java takes and looks, ours takes, looks and gives back: at every step the two agree on what is left, and what is
/// left and what was taken is the rate.
#[tokio::test]
async fn on_random_histories_of_both_each_reads_what_the_other_wrote() {
    const STEPS: u64 = 1_500;
    let lab = Lab::with_rate(10).await;
    for mut theirs in Theirs::all(&lab.server) {
        theirs.begin(10);
        let mut model = Model { rate: 10, taken: VecDeque::new() };
        let (mut dice, mut ms) = (Dice(7), 10_000);
        for step in 0..STEPS {
            ms += dice.below(120);
            lab.at_ms(ms);
            let permits = 1 + dice.below(4);
            let few = u32::try_from(permits).unwrap();
            match dice.below(8) {
                0 => {
                    let given = lab.limiter.release(few).await.unwrap();
                    assert_eq!(given, model.give_back(ms, permits), "step {step}");
                }
                1 => assert_eq!(lab.left().await, model.left(ms), "step {step}"),
                2 => {
                    let left = i64::try_from(model.left(ms)).unwrap();
                    assert_eq!(theirs.available_at(ms), left, "step {step}");
                }
                3..=5 => {
                    let taken = theirs.take_at(ms, few).unwrap().is_none();
                    assert_eq!(taken, model.take(ms, permits).is_ok(), "step {step}");
                }
                _ => {
                    let taken = lab.limiter.try_acquire(few).await.unwrap().allowed();
                    assert_eq!(taken, model.take(ms, permits).is_ok(), "step {step}");
                }
            }
        }
        let all = "local sum = tonumber(redis.call('GET', '{orders}:value')) \
                   for _, m in ipairs(redis.call('ZRANGE', '{orders}:permits', 0, -1)) do \
                   local _, n = struct.unpack('Bc0I', m) sum = sum + n end return sum";
        assert_eq!(lab.server.cli(&["EVAL", all, "0"]), "10", "{}", theirs.version);
        assert_eq!(lab.server.cli(&["HGET", NAME, "rate"]), "10");
    }
}
