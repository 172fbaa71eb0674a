//! Keys, and the order in which they come. All of it is drawn before anything is measured.

use std::fmt;

use tidegate_model::Rng;

/// What kind of key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// 8 bytes.
    Number,
    /// 24 bytes.
    Text,
}

/// How often each key comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spread {
    /// All as often as each other.
    Uniform,
    /// The n-th in 1/n of the cases of the first.
    Zipf,
}

/// Keys one after the other in memory, so that fetching them costs little, as it does where they
/// have just come with a request.
pub(crate) enum Keys {
    Numbers(Vec<u64>),
    Texts(Vec<String>),
}

/// Some of them.
#[derive(Clone, Copy)]
pub(crate) enum Part<'a> {
    Numbers(&'a [u64]),
    Texts(&'a [String]),
}

impl Keys {
    /// The keys of these indices.
    pub(crate) fn new(kind: Kind, indices: impl Iterator<Item = u64>) -> Self {
        // Scattered, so that no hash finds an order in them.
        let numbers = indices.map(|index| Rng::new(index).any());
        match kind {
            Kind::Number => Self::Numbers(numbers.collect()),
            Kind::Text => Self::Texts(numbers.map(|n| format!("user{n:020}")).collect()),
        }
    }

    /// `count` keys drawn from `among` ones.
    pub(crate) fn draw(kind: Kind, spread: Spread, among: u64, count: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
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

    /// The `n`-th part of `count` keys; after the last comes the first.
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

/// Draws by a search in the running totals of 1, 1/2, 1/3 and so on.
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

    fn draw(&self, rng: &mut Rng) -> u64 {
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
