//! Random numbers from one seed: splitmix64.

/// A stream of random numbers. The same seed gives the same stream.
#[derive(Clone, Debug)]
pub struct TraceRng(u64);

impl TraceRng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `end`, exclusive. Zero if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.any() % end.max(1)
    }

    /// An index into a slice of this length. Zero if it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number from `first` to `last`, inclusive.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below((last - first).saturating_add(1))
    }

    /// True in one of `cases` cases.
    pub fn one_in(&mut self, cases: u64) -> bool {
        self.below(cases) == 0
    }

    /// One of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    /// A number from 1 to `last` whose number of bits is evenly distributed.
    pub fn magnitude(&mut self, last: u64) -> u64 {
        let bits = self.between(1, u64::from(u64::BITS - last.max(1).leading_zeros()));
        let number = self.any() >> (64 - bits);
        number.clamp(1, last.max(1))
    }

    /// `number`, or one of its two neighbours.
    pub fn around(&mut self, number: u64) -> u64 {
        match self.below(3) {
            0 => number.saturating_sub(1),
            1 => number,
            _ => number.saturating_add(1),
        }
    }
}
