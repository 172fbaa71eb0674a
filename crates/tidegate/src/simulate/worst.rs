//! The worst window of what was let pass. It sees instants and keys, and not who decided, nor how.

use tidegate_core::Micros;

use super::axis::Axis;
use super::report::Worst;

/// Something that passed: its key, and when. In one number, so that a key's are together when they are sorted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Pass(u64);

impl Pass {
    const AT_BITS: u32 = 44;

    /// `None` if it comes so late, half a year after the longest traffic, that nobody looks.
    pub(super) fn new(key: u32, at: Micros) -> Option<Self> {
        let at = Some(at.get()).filter(|at| at >> Self::AT_BITS == 0)?;
        Some(Self(u64::from(key) << Self::AT_BITS | at))
    }

    fn key(self) -> u32 {
        u32::try_from(self.0 >> Self::AT_BITS).unwrap_or(u32::MAX)
    }

    fn at(self) -> u64 {
        self.0 & ((1 << Self::AT_BITS) - 1)
    }
}

/// The most that passed of one key in any window, the window half-open; the first of them. `passes` are sorted.
pub(super) fn worst_window(passes: &[Pass], window: Micros) -> Worst {
    let mut worst = Worst::default();
    let mut oldest = 0;
    for (newest, pass) in passes.iter().enumerate() {
        while passes[oldest].key() != pass.key() || pass.at() - passes[oldest].at() >= window.get()
        {
            oldest += 1;
        }
        let admitted = (newest - oldest + 1) as u64;
        if admitted > worst.admitted {
            let begins = Micros::new(passes[oldest].at());
            worst = Worst { admitted, begins, key: pass.key() };
        }
    }
    worst
}

/// The most in the window that ends at any instant of each step, for one key.
pub(super) fn window_series(passes: &[Pass], key: u32, window: Micros, axis: &Axis) -> Vec<u64> {
    let start = passes.partition_point(|pass| pass.key() < key);
    let end = passes.partition_point(|pass| pass.key() <= key);
    let passes = &passes[start..end];
    let mut series = axis.zeros();
    let (mut oldest, mut newest) = (0, 0);
    for (step, most) in series.iter_mut().enumerate() {
        let (begins, ends) = (axis.begins(step).get(), axis.begins(step + 1).get());
        let mut count_at = |newest: usize, now: u64| {
            while oldest < newest && now - passes[oldest].at() >= window.get() {
                oldest += 1;
            }
            (newest - oldest) as u64
        };
        // What is left of the steps before, and then everybody who passes.
        *most = count_at(newest, begins);
        while let Some(pass) = passes.get(newest).filter(|pass| pass.at() < ends) {
            newest += 1;
            *most = (*most).max(count_at(newest, pass.at()));
        }
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(all: &[(u32, u64)]) -> Vec<Pass> {
        all.iter().map(|&(key, at)| Pass::new(key, Micros::new(at)).unwrap()).collect()
    }

    #[test]
    fn a_window_is_half_open_and_of_one_key() {
        let all = passes(&[(0, 0), (0, 10), (0, 19), (0, 20), (1, 20), (1, 21), (1, 22), (1, 23)]);
        let worst = |window| worst_window(&all, Micros::new(window));
        assert_eq!(worst(1), Worst { admitted: 1, begins: Micros::ZERO, key: 0 });
        assert_eq!(worst(3), Worst { admitted: 3, begins: Micros::new(20), key: 1 });
        assert_eq!(worst(4), Worst { admitted: 4, begins: Micros::new(20), key: 1 });
        assert_eq!(worst(20), Worst { admitted: 4, begins: Micros::new(20), key: 1 });
        assert_eq!(worst(21), Worst { admitted: 4, begins: Micros::ZERO, key: 0 });
        assert_eq!(worst_window(&[], Micros::new(1)), Worst::default());
    }

    #[test]
    fn a_series_shows_the_window_until_it_is_over() {
        let all = passes(&[(0, 5), (3, 0), (3, 1), (3, 12)]);
        let axis = Axis { span: Micros::new(40), step: Micros::new(10), steps: 4 };
        assert_eq!(window_series(&all, 3, Micros::new(12), &axis), [2, 2, 1, 0]);
        assert_eq!(window_series(&all, 3, Micros::new(100), &axis), [2, 3, 3, 3]);
        assert_eq!(window_series(&all, 2, Micros::new(100), &axis), [0; 4]);
    }
}
