//! How much is asked, by how many, and for how long.

use std::ops::RangeInclusive;

use tidegate::Micros;

use super::rate::Rate;

/// How a target is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// When the next question is sent.
    pub load: Load,
    /// How many ask at once.
    pub connections: u32,
    /// How many questions each sends before it reads the answers.
    pub pipeline: u32,
    /// How long what counts lasts.
    pub duration: Micros,
    /// How long it is asked before anything counts.
    pub warmup: Micros,
    /// How long an answer may take.
    pub patience: Micros,
    /// How many keys there are.
    pub keys: u32,
    /// The exponent in thousandths, if the first keys come more often than the last.
    pub zipf: Option<u32>,
    /// What chance begins with.
    pub seed: u64,
}

/// When the next question is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// When the one before is answered.
    Closed,
    /// When it is due, and measured from then, whenever it can be sent.
    Open(Rate),
}

impl Plan {
    /// How many may ask at once.
    pub const CONNECTIONS: RangeInclusive<u32> = 1..=10_000;
    /// How many questions may be sent together.
    pub const PIPELINE: RangeInclusive<u32> = 1..=1_000;
    /// How long it may last.
    pub const DURATION: RangeInclusive<Micros> = Micros::from_millis(1)..=Micros::from_secs(86_400);
    /// How long it may be asked before that.
    pub const WARMUP: RangeInclusive<Micros> = Micros::ZERO..=Micros::from_secs(3_600);
    /// How long an answer may take.
    pub const PATIENCE: RangeInclusive<Micros> = Micros::from_millis(1)..=Micros::from_secs(60);
    /// How many keys there may be.
    pub const KEYS: RangeInclusive<u32> = 1..=10_000_000;
    /// How unlike they may be, in thousandths.
    pub const ZIPF: RangeInclusive<u32> = 1..=10_000;
}
