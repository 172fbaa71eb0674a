//! Load plan: connections, duration, open or closed loop, and the bounds of each option.

use std::ops::RangeInclusive;

use tidegate::Micros;

use super::rate::RequestRate;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LoadPlan {
    pub(crate) load: LoadModel,
    pub(crate) connections: u32,
    /// Requests that a connection sends before it reads the responses.
    pub(crate) pipeline: u32,
    /// Measured time, after the warm-up.
    pub(crate) duration: Micros,
    /// Time before the measurement; requests due in it are sent and not measured.
    pub(crate) warmup: Micros,
    pub(crate) timeout: Micros,
    /// Number of distinct keys.
    pub(crate) keys: u32,
    /// Zipf exponent of the key distribution, in thousandths; `None` is uniform.
    pub(crate) zipf: Option<u32>,
    pub(crate) seed: u64,
}

/// When the next request is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LoadModel {
    /// After the response to the one before.
    Closed,
    /// On schedule. Latency is measured from the time a request is due, even if it is sent late.
    Open(RequestRate),
}

impl LoadPlan {
    pub(crate) const CONNECTIONS: RangeInclusive<u32> = 1..=10_000;
    pub(crate) const PIPELINE: RangeInclusive<u32> = 1..=1_000;
    pub(crate) const DURATION: RangeInclusive<Micros> =
        Micros::from_millis(1)..=Micros::from_secs(86_400);
    pub(crate) const WARMUP: RangeInclusive<Micros> = Micros::ZERO..=Micros::from_secs(3_600);
    pub(crate) const TIMEOUT_RANGE: RangeInclusive<Micros> =
        Micros::from_millis(1)..=Micros::from_secs(60);
    pub(crate) const KEYS: RangeInclusive<u32> = 1..=10_000_000;
    /// In thousandths.
    pub(crate) const ZIPF: RangeInclusive<u32> = 1..=10_000;
}
