//! What came of it, in numbers.

use tidegate_core::{Limit, Micros, Wait};

use super::{Axis, Candidate, Promise, Traffic};

/// What became of the same traffic under every candidate.
#[derive(Clone, Debug)]
pub struct Report {
    /// The traffic.
    pub traffic: Traffic,
    /// What chance began with.
    pub seed: u64,
    /// How many requests came.
    pub offered: u64,
    /// How many keys they had.
    pub keys: u64,
    /// The key that asked most often, and how often.
    pub busiest: (u32, u64),
    /// The steps of every series.
    pub axis: Axis,
    /// How many came in each step.
    pub offered_series: Vec<u64>,
    /// The candidates in order.
    pub runs: Vec<Run>,
}

/// What became of the traffic under one candidate.
#[derive(Clone, Debug)]
pub struct Run {
    /// The candidate.
    pub candidate: Candidate,
    /// How many were let pass.
    pub admitted: u64,
    /// How many were not.
    pub denied: u64,
    /// The longest that somebody was told to come back after, if anybody was denied.
    pub longest_wait: Option<Wait>,
    /// The longest that somebody who was let pass had to wait for the turn; only a queue gives turns.
    pub longest_delay: Micros,
    /// How evenly keys were served, if there are several.
    pub fairness: Option<Fairness>,
    /// How many passed in each step: at their turn, where a queue gave them one.
    pub passed_series: Vec<u64>,
    /// How many were let pass, and have their turn after the end.
    pub passed_later: u64,
    /// How many were denied in each step.
    pub denied_series: Vec<u64>,
    /// Each of its limits.
    pub limits: Vec<LimitRun>,
}

/// What one limit of a candidate did.
#[derive(Clone, Debug)]
pub struct LimitRun {
    /// The limit.
    pub limit: Limit,
    /// How many requests it said no to.
    pub denied: u64,
    /// What it promises.
    pub promise: Promise,
    /// The worst window there was.
    pub worst: Worst,
    /// The busiest key: the most in the promise's window, at any instant of each step.
    pub window_series: Vec<u64>,
    /// The busiest key: the most that was used, or held, at any instant of each step.
    pub used_series: Vec<u64>,
}

impl LimitRun {
    /// Was it kept? Anything else is a mistake of ours.
    pub fn keeps_promise(&self) -> bool {
        self.worst.admitted <= self.promise.at_most
    }
}

/// The most that one key was let pass in a window.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Worst {
    /// How many.
    pub admitted: u64,
    /// When the first of them passed, since the beginning.
    pub begins: Micros,
    /// The number of the key, from 0.
    pub key: u32,
}

/// How evenly keys were served: of each, the share of its requests that was let pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fairness {
    /// Jain's index of the shares in millionths: all of them if every key has the same, one n-th if one of
    /// n has everything.
    pub index: u64,
    /// The share of the key that was served worst, in millionths.
    pub least: u64,
    /// The share of the key that was served best, in millionths.
    pub most: u64,
}

impl Fairness {
    /// Of what each key asked for and got; `None` unless several asked.
    pub(super) fn of(offered: &[u64], admitted: &[u64]) -> Option<Self> {
        let asked = offered.iter().zip(admitted).filter(|(offered, _)| **offered > 0);
        let (mut count, mut sum, mut squares) = (0_u128, 0_u128, 0_u128);
        let (mut least, mut most) = (u64::MAX, 0);
        for (offered, admitted) in asked {
            let share = admitted * 1_000_000 / offered;
            (least, most) = (least.min(share), most.max(share));
            count += 1;
            sum += u128::from(share);
            squares += u128::from(share).pow(2);
        }
        if count < 2 {
            return None;
        }
        // Where nobody got anything, nobody got more than another.
        let index = (sum.pow(2) * 1_000_000).checked_div(count * squares).unwrap_or(1_000_000);
        Some(Self { index: u64::try_from(index).unwrap_or(1_000_000), least, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_whole_where_all_are_served_alike_and_one_nth_where_one_has_all() {
        let of = |offered: &[u64], admitted: &[u64]| {
            Fairness::of(offered, admitted).map(|fair| (fair.index, fair.least, fair.most))
        };
        assert_eq!(of(&[10, 20, 0], &[5, 10, 0]), Some((1_000_000, 500_000, 500_000)));
        assert_eq!(of(&[10, 10, 10, 10], &[10, 0, 0, 0]), Some((250_000, 0, 1_000_000)));
        assert_eq!(of(&[10, 10], &[0, 0]), Some((1_000_000, 0, 0)));
        assert_eq!(of(&[10, 0], &[5, 0]), None);
    }
}
