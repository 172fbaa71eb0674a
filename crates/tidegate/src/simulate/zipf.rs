//! Random choice of keys: uniform, or the k-th `1/k^S` as often as the first.

use super::rng::Rng;

/// A random distribution over keys.
#[derive(Debug)]
pub struct KeyDistribution(Choice);

#[derive(Debug)]
enum Choice {
    /// Uniform over this many keys.
    Even(u64),
    /// Cumulative weights.
    Zipf(Vec<u64>),
}

impl KeyDistribution {
    /// `count` keys; `exponent` in thousandths for a Zipf distribution.
    pub fn new(count: u32, exponent: Option<u32>) -> Self {
        let Some(exponent) = exponent else { return Self(Choice::Even(u64::from(count))) };
        let roots = roots();
        let mut sum = 0;
        let sums = (1..=u64::from(count)).map(|rank| {
            sum += weight(rank, exponent, &roots);
            sum
        });
        Self(Choice::Zipf(sums.collect()))
    }

    /// A key number, from 0.
    pub fn draw(&self, rng: &mut Rng) -> u32 {
        let place = match &self.0 {
            // A single key draws no random number, so that a part without keys has the same
            // arrivals as one with.
            Choice::Even(0 | 1) => 0,
            Choice::Even(count) => rng.below(*count),
            Choice::Zipf(sums) => {
                let drawn = rng.below(sums.last().copied().unwrap_or(0));
                sums.partition_point(|sum| *sum <= drawn) as u64
            }
        };
        u32::try_from(place).unwrap_or(0)
    }
}

/// Bits of the weight of the first key. Ten million such weights stay below 2^64, and the rarest of
/// 100,000 keys is still drawn at the right rate with exponents up to 2.
const FIRST_BITS: u32 = 40;

/// `2^FIRST_BITS / rank^(exponent/1000)`, rounded down, in integer arithmetic.
fn weight(rank: u64, exponent: u32, roots: &[u64; 32]) -> u64 {
    let bits = log2(rank) * u64::from(exponent) / 1_000;
    let (whole, fraction) = (bits >> 32, bits & 0xffff_ffff);
    // 2^-fraction in units of 2^-63: the product of a root of one half for every bit that is set.
    let mut power = 1_u64 << 63;
    for (place, root) in roots.iter().enumerate() {
        if fraction >> (31 - place) & 1 == 1 {
            power = times(power, *root);
        }
    }
    power.checked_shr(63 - FIRST_BITS + u32::try_from(whole).unwrap_or(u32::MAX)).unwrap_or(0)
}

/// `2^-(1/2)`, `2^-(1/4)`, .. in units of 2^-63.
fn roots() -> [u64; 32] {
    let mut last = 1_u64 << 62;
    std::array::from_fn(|_| {
        last = u64::try_from((u128::from(last) << 63).isqrt()).unwrap_or(u64::MAX);
        last
    })
}

/// The binary logarithm in units of 2^-32, rounded down, by repeated squaring.
fn log2(number: u64) -> u64 {
    let whole = number.max(1).ilog2();
    let mut mantissa = number.max(1) << (63 - whole);
    let mut fraction = 0;
    for _ in 0..32 {
        let square = u128::from(mantissa) * u128::from(mantissa);
        // In units of 2^-126: 2^127 is 2.
        let passes = square >> 127 == 1;
        fraction = fraction << 1 | u64::from(passes);
        mantissa = u64::try_from(square >> (63 + u32::from(passes))).unwrap_or(u64::MAX);
    }
    u64::from(whole) << 32 | fraction
}

/// A product in units of 2^-63.
fn times(a: u64, b: u64) -> u64 {
    u64::try_from((u128::from(a) * u128::from(b)) >> 63).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_and_weights_are_accurate() {
        assert_eq!([log2(1), log2(2), log2(1 << 20)], [0, 1 << 32, 20 << 32]);
        // 1.584962500721156 * 2^32
        assert!(log2(3).abs_diff(6_807_362_105) <= 1, "{}", log2(3));
        let roots = roots();
        for (rank, exponent, divisor) in
            [(1, 700, 1), (2, 1_000, 2), (10, 1_000, 10), (10, 2_000, 100), (100, 500, 10)]
        {
            let expected = (1_u64 << FIRST_BITS) / divisor;
            let found = weight(rank, exponent, &roots);
            assert!(
                found.abs_diff(expected) <= expected >> 24,
                "{rank}^{exponent}: {found} for {expected}"
            );
        }
        assert_eq!(weight(100_000, 10_000, &roots), 0);
    }

    #[test]
    fn keys_are_drawn_as_often_as_their_rank_implies() {
        let (keys, mut rng) = (KeyDistribution::new(100, Some(1_000)), Rng::new(3));
        let mut seen = [0_u64; 100];
        (0..100_000).for_each(|_| seen[keys.draw(&mut rng) as usize] += 1);
        // The 100th harmonic number is 5.187.
        for (rank, expected) in [(1, 19_278), (2, 9_639), (10, 1_928)] {
            assert!(seen[rank - 1].abs_diff(expected) < 400, "{rank}: {}", seen[rank - 1]);
        }
        assert_eq!(KeyDistribution::new(1, None).draw(&mut rng), 0);
    }
}
