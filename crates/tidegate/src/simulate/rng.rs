//! Random numbers from a seed: splitmix64, the same on every platform.

/// A stream of random numbers, determined by the seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; zero if `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        let product = u128::from(self.any()) * u128::from(end);
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// An exponential variate of mean 1, in units of 2^-64.
    ///
    /// Von Neumann's method, which only compares: numbers are drawn until one is not smaller than
    /// the one before. An odd count accepts the first of them; an even one adds 1 and starts again.
    /// A logarithm would have to be rounded identically on every platform.
    pub(super) fn exponential(&mut self) -> u128 {
        let mut whole = 0_u128;
        loop {
            let first = self.any();
            let (mut last, mut odd) = (first, true);
            loop {
                let next = self.any();
                if next >= last {
                    break;
                }
                (last, odd) = (next, !odd);
            }
            if odd {
                return (whole << 64) | u128::from(first);
            }
            whole += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_variates_have_the_right_mean_variance_and_tail() {
        let mut rng = Rng::new(1);
        let count = 200_000;
        let micro = |variate: u128| (variate * 1_000_000) >> 64;
        let all: Vec<u128> = (0..count).map(|_| micro(rng.exponential())).collect();
        let mean = all.iter().sum::<u128>() / count;
        assert!((990_000..1_010_000).contains(&mean), "{mean}");
        let variance = all.iter().map(|x| x.abs_diff(mean).pow(2)).sum::<u128>() / count;
        assert!((970_000_000_000..1_030_000_000_000).contains(&variance), "{variance}");
        // e^-1 = 36.79 %, e^-3 = 4.98 %.
        for (beyond, share) in [(1_000_000, 36_788), (3_000_000, 4_979)] {
            let found = all.iter().filter(|x| **x > beyond).count() * 100_000 / all.len();
            assert!(found.abs_diff(share) < 500, "{found} of {share}");
        }
    }

    #[test]
    fn below_returns_every_smaller_number_about_equally_often() {
        let mut rng = Rng::new(2);
        let mut seen = [0; 7];
        (0..7_000).for_each(|_| seen[usize::try_from(rng.below(7)).unwrap()] += 1);
        assert!(seen.iter().all(|count| (850..1_150).contains(count)), "{seen:?}");
        assert_eq!((rng.below(0), rng.below(1)), (0, 0));
    }
}
