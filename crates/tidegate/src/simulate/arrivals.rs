//! Generates the requests of a traffic.

use tidegate_core::Micros;

use super::rng::Rng;
use super::traffic::{ArrivalPattern, ArrivalRate, Traffic, TrafficPart};
use super::zipf::KeyDistribution;

/// A request: its time since the start, and its key.
///
/// Packed into one number, so that ten million of them need 80 MB and sort as numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Arrival(u64);

impl Arrival {
    const KEY_BITS: u32 = 20;

    fn new(at: u64, key: u32) -> Self {
        Self(at << Self::KEY_BITS | u64::from(key))
    }

    /// Time since the start.
    pub fn at(self) -> Micros {
        Micros::new(self.0 >> Self::KEY_BITS)
    }

    /// The number of the key, from 0.
    pub fn key(self) -> u32 {
        u32::try_from(self.0 & ((1 << Self::KEY_BITS) - 1)).unwrap_or(0)
    }
}

impl Traffic {
    /// The requests in order. Requests of the same instant and key are equal, so the order of the
    /// parts does not matter.
    pub fn arrivals(&self, seed: u64) -> Vec<Arrival> {
        let expected = usize::try_from(self.requests()).unwrap_or(0);
        let (mut all, mut seeds) = (Vec::with_capacity(expected + expected / 64), Rng::new(seed));
        for part in self.parts() {
            part.add_to(&mut all, Rng::new(seeds.any()));
        }
        all.sort_unstable();
        all
    }
}

impl TrafficPart {
    fn add_to(&self, all: &mut Vec<Arrival>, mut rng: Rng) {
        let keys = KeyDistribution::new(self.keys, self.zipf);
        let (after, lasts) = (self.after.get(), self.lasts.get());
        let mut add = |at: u64, rng: &mut Rng| all.push(Arrival::new(after + at, keys.draw(rng)));
        match self.pattern {
            ArrivalPattern::Steady(rate) => {
                for nth in 0..rate.over(self.lasts) {
                    add(rate.instant(nth), &mut rng);
                }
            }
            ArrivalPattern::Poisson(rate) => poisson(rate, lasts, &mut rng, add),
            // No requests, however often.
            ArrivalPattern::Burst { count: 0, .. } => {}
            ArrivalPattern::Burst { count, every } => {
                for start in (0..lasts).step_by(usize::try_from(every.get()).unwrap_or(usize::MAX))
                {
                    (0..count).for_each(|_| add(start, &mut rng));
                }
            }
            ArrivalPattern::Ramp { from, to } => {
                let ramp = Ramp::new(from, to, self.lasts);
                for nth in 0..ramp.total() {
                    add(ramp.instant(nth).min(lasts.saturating_sub(1)), &mut rng);
                }
            }
        }
    }
}

/// Independent arrivals: exponential gaps.
fn poisson(rate: ArrivalRate, lasts: u64, rng: &mut Rng, mut add: impl FnMut(u64, &mut Rng)) {
    if rate.count == 0 {
        return;
    }
    // In units of 2^-32 us, so that rounding errors do not accumulate.
    let mut at = 0_u128;
    loop {
        let gap = rng.exponential() * u128::from(rate.per.get()) / u128::from(rate.count);
        at += gap >> 32;
        match u64::try_from(at >> 32) {
            Ok(instant) if instant < lasts => add(instant, rng),
            _ => return,
        }
    }
}

impl ArrivalRate {
    /// Time of the n-th request, from 0, at a steady rate.
    fn instant(self, nth: u64) -> u64 {
        let product = u128::from(nth) * u128::from(self.per.get());
        u64::try_from(product / u128::from(self.count.max(1))).unwrap_or(u64::MAX)
    }
}

/// A rate that changes linearly.
///
/// The square of such a rate is linear in the number of requests so far, so the n-th request is at
/// `2n / (rate at the start + rate then)`.
struct Ramp {
    /// Requests over the whole span at the first rate, and at the last, in units of 2^-24.
    from: u128,
    to: u128,
    lasts: u128,
}

impl Ramp {
    const BITS: u32 = 24;

    fn new(from: ArrivalRate, to: ArrivalRate, lasts: Micros) -> Self {
        let lasts = u128::from(lasts.get());
        let all = |rate: ArrivalRate| {
            ((u128::from(rate.count) * lasts) << Self::BITS) / u128::from(rate.per.get())
        };
        Self { from: all(from), to: all(to), lasts }
    }

    fn total(&self) -> u64 {
        let total = (self.from + self.to).div_ceil(2 << Self::BITS);
        u64::try_from(total).unwrap_or(u64::MAX)
    }

    fn instant(&self, nth: u64) -> u64 {
        let twice = u128::from(nth) << (Self::BITS + 1);
        // The bounds of traffic keep it below 2^100.
        let moved = self.from.abs_diff(self.to) * twice;
        let square = match self.to >= self.from {
            true => self.from.pow(2) + moved,
            false => self.from.pow(2).saturating_sub(moved),
        };
        let sum = self.from + square.isqrt();
        let instant = (self.lasts * twice).checked_div(sum).unwrap_or(0);
        u64::try_from(instant).unwrap_or(u64::MAX)
    }
}
