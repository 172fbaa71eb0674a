//! Keys and their order. All are generated before anything is measured.

use std::fmt;

use tidegate_model::TraceRng;

/// Type of the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// 8 bytes.
    Number,
    /// 24 bytes.
    Text,
}

/// How often each key is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spread {
    /// All equally often.
    Uniform,
    /// The n-th key 1/n as often as the first.
    Zipf,
}

/// Keys in consecutive memory, so that fetching them is cheap, as for keys that have just been
/// received with a request.
pub(crate) enum Keys {
    Numbers(Vec<u64>),
    Texts(Vec<String>),
}

/// A slice of the keys.
#[derive(Clone, Copy)]
pub(crate) enum Part<'a> {
    Numbers(&'a [u64]),
    Texts(&'a [String]),
}

impl Keys {
    /// The keys of these indices.
    pub(crate) fn new(kind: Kind, indices: impl Iterator<Item = u64>) -> Self {
        // Scattered, so that no hash benefits from their order.
        let numbers = indices.map(|index| TraceRng::new(index).any());
        match kind {
            Kind::Number => Self::Numbers(numbers.collect()),
            Kind::Text => Self::Texts(numbers.map(|n| format!("user{n:020}")).collect()),
        }
    }

    /// `count` keys drawn from `among` different ones.
    pub(crate) fn draw(kind: Kind, spread: Spread, among: u64, count: usize, seed: u64) -> Self {
        let mut rng = TraceRng::new(seed);
        match spread {
            Spread::Uniform => Self::new(kind, (0..count).map(|_| rng.below(among))),
            Spread::Zipf => {
                let zipf = Zipf::new(among);
                Self::new(kind, (0..count).map(|_| zipf.draw(&mut rng)))
            }
        }
    }

    pub(crate) fn all(&self) -> Part<'_> {
        match self {
            Self::Numbers(numbers) => Part::Numbers(numbers),
            Self::Texts(texts) => Part::Texts(texts),
        }
    }

    /// The `n`-th part of `count` keys, cyclically.
    pub(crate) fn part(&self, n: usize, count: usize) -> Part<'_> {
        let part = |len: usize| {
            let start = n % (len / count) * count;
            start..start + count
        };
        match self {
            Self::Numbers(numbers) => Part::Numbers(&numbers[part(numbers.len())]),
            Self::Texts(texts) => Part::Texts(&texts[part(texts.len())]),
        }
    }
}

/// Draws by a binary search in the cumulative sums of 1, 1/2, 1/3 and so on.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(among: u64) -> Self {
        let mut total = 0.0;
        let totals = (1..=among).map(|rank| {
            total += 1.0 / rank as f64;
            total
        });
        Self(totals.collect())
    }

    fn draw(&self, rng: &mut TraceRng) -> u64 {
        let last = self.0.len() - 1;
        let drawn = rng.below(1 << 53) as f64 / (1_u64 << 53) as f64 * self.0[last];
        self.0.partition_point(|total| *total <= drawn).min(last) as u64
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Number { "u64" } else { "string" })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Self::Uniform { "uniform" } else { "zipf" })
    }
}
