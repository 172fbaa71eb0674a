//! The report of a simulation.

use tidegate_core::{Limit, Micros, Wait};

#[cfg(feature = "serde")]
use super::json::{
    LongestWait, busiest, from_one, longest_wait, micros, millionths, millis, optional_text, text,
};
use super::{CallProfile, Candidate, Guarantee, MethodReport, TimeAxis, Traffic};

/// The results of all candidates on the same traffic.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Report {
    /// The traffic.
    #[cfg_attr(feature = "serde", serde(serialize_with = "text"))]
    #[cfg_attr(feature = "serde", schemars(with = "String"))]
    pub traffic: Traffic,
    /// Random seed.
    pub seed: u64,
    /// Requests offered.
    pub offered: u64,
    /// Distinct keys.
    pub keys: u64,
    /// The key with the most requests, and their number.
    #[cfg_attr(feature = "serde", serde(rename = "busiest_key", serialize_with = "busiest"))]
    #[cfg_attr(
        feature = "serde",
        schemars(with = "u32", description = "Number of the busiest key, from 1.")
    )]
    pub busiest: (u32, u64),
    /// The time steps of every series.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub axis: TimeAxis,
    /// Requests offered in each step.
    pub offered_series: Vec<u64>,
    /// What the requests reserve and cost, if they are calls.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    #[cfg_attr(feature = "serde", serde(serialize_with = "optional_text"))]
    #[cfg_attr(feature = "serde", schemars(with = "Option<String>"))]
    pub calls: Option<CallProfile>,
    /// The candidates in order.
    #[cfg_attr(feature = "serde", serde(rename = "limits"))]
    pub runs: Vec<CandidateReport>,
}

/// The result of one candidate.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct CandidateReport {
    /// The candidate.
    #[cfg_attr(feature = "serde", serde(rename = "limit", serialize_with = "text"))]
    #[cfg_attr(feature = "serde", schemars(with = "String"))]
    pub candidate: Candidate,
    /// Requests admitted.
    pub admitted: u64,
    /// Requests denied.
    pub denied: u64,
    /// Longest `retry_after`, if any request was denied.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "longest_wait"))]
    #[cfg_attr(feature = "serde", schemars(with = "LongestWait"))]
    pub longest_wait: Option<Wait>,
    /// Longest queue delay of an admitted request; only a queue delays.
    #[cfg_attr(feature = "serde", serde(rename = "longest_delay_ms", serialize_with = "millis"))]
    #[cfg_attr(feature = "serde", schemars(with = "u64"))]
    pub longest_delay: Micros,
    /// How evenly keys were served, if there are several.
    pub fairness: Option<Fairness>,
    /// Admissions in each step, at their turn if a queue delayed them.
    pub passed_series: Vec<u64>,
    /// Admissions whose turn is after the end.
    pub passed_later: u64,
    /// Denials in each step.
    pub denied_series: Vec<u64>,
    /// The result of each limit.
    #[cfg_attr(feature = "serde", serde(rename = "parts"))]
    pub limits: Vec<LimitReport>,
    /// If the requests are calls: their results by each method.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Option::is_none"))]
    pub calls: Option<Vec<MethodReport>>,
}

/// The result of one limit of a candidate.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct LimitReport {
    /// The limit.
    #[cfg_attr(feature = "serde", serde(serialize_with = "text"))]
    #[cfg_attr(feature = "serde", schemars(with = "String"))]
    pub limit: Limit,
    /// Requests that this limit denied.
    pub denied: u64,
    /// The guaranteed bound.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub promise: Guarantee,
    /// The window with the most admissions.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub worst: WorstWindow,
    /// The busiest key: most admissions in the guarantee's window, at any instant of each step.
    pub window_series: Vec<u64>,
    /// The busiest key: most permits used, or held, at any instant of each step.
    pub used_series: Vec<u64>,
}

impl LimitReport {
    /// Whether the worst window is within the guarantee. `false` is a bug in the algorithm.
    pub fn within_guarantee(&self) -> bool {
        self.worst.admitted <= self.promise.at_most
    }
}

/// The most admissions of one key in a window.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct WorstWindow {
    /// Number of admissions.
    #[cfg_attr(feature = "serde", serde(rename = "worst"))]
    pub admitted: u64,
    /// Time of the first of them, since the start.
    #[cfg_attr(feature = "serde", serde(rename = "worst_begins_us", serialize_with = "micros"))]
    #[cfg_attr(feature = "serde", schemars(with = "u64"))]
    pub begins: Micros,
    /// The number of the key, from 0.
    #[cfg_attr(feature = "serde", serde(rename = "worst_key", serialize_with = "from_one"))]
    #[cfg_attr(feature = "serde", schemars(description = "The number of the key, from 1."))]
    pub key: u32,
}

/// How evenly keys were served, by the share of admitted requests of each key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, schemars::JsonSchema))]
pub struct Fairness {
    /// Jain's index of the shares, in millionths: 1,000,000 if every key has the same share, one
    /// n-th of that if one of n has everything.
    #[cfg_attr(feature = "serde", serde(serialize_with = "millionths"))]
    #[cfg_attr(
        feature = "serde",
        schemars(with = "f64", description = "Jain's index of the shares: 1 if all are equal.")
    )]
    pub index: u64,
    /// Smallest share of a key, in millionths.
    #[cfg_attr(feature = "serde", serde(serialize_with = "millionths"))]
    #[cfg_attr(
        feature = "serde",
        schemars(with = "f64", description = "Smallest share of a key.")
    )]
    pub least: u64,
    /// Largest share of a key, in millionths.
    #[cfg_attr(feature = "serde", serde(serialize_with = "millionths"))]
    #[cfg_attr(feature = "serde", schemars(with = "f64", description = "Largest share of a key."))]
    pub most: u64,
}

impl Fairness {
    /// From the offered and admitted requests of each key; `None` unless several keys had requests.
    pub(super) fn of(offered: &[u64], admitted: &[u64]) -> Option<Self> {
        let active = offered.iter().zip(admitted).filter(|(offered, _)| **offered > 0);
        let (mut count, mut sum, mut squares) = (0_u128, 0_u128, 0_u128);
        let (mut least, mut most) = (u64::MAX, 0);
        for (offered, admitted) in active {
            let share = admitted * 1_000_000 / offered;
            (least, most) = (least.min(share), most.max(share));
            count += 1;
            sum += u128::from(share);
            squares += u128::from(share).pow(2);
        }
        if count < 2 {
            return None;
        }
        // If no key was served, all were served equally.
        let index = (sum.pow(2) * 1_000_000).checked_div(count * squares).unwrap_or(1_000_000);
        Some(Self { index: u64::try_from(index).unwrap_or(1_000_000), least, most })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_1_if_all_keys_are_served_equally_and_1_nth_if_one_has_all() {
        let of = |offered: &[u64], admitted: &[u64]| {
            Fairness::of(offered, admitted).map(|fair| (fair.index, fair.least, fair.most))
        };
        assert_eq!(of(&[10, 20, 0], &[5, 10, 0]), Some((1_000_000, 500_000, 500_000)));
        assert_eq!(of(&[10, 10, 10, 10], &[10, 0, 0, 0]), Some((250_000, 0, 1_000_000)));
        assert_eq!(of(&[10, 10], &[0, 0]), Some((1_000_000, 0, 0)));
        assert_eq!(of(&[10, 0], &[5, 0]), None);
    }
}
