//! The window with the most admissions. Knows only times and keys, not how they were decided.

use tidegate_core::Micros;

use super::report::WorstWindow;
use super::time_axis::TimeAxis;

/// An admission: its key and time. Packed into one number, so that sorting groups them by key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct AdmittedAt(u64);

impl AdmittedAt {
    const AT_BITS: u32 = 44;

    /// `None` if it is later than half a year after the longest traffic.
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

/// The most admissions of one key in any half-open window; the first such window. `passes` are
/// sorted.
pub(super) fn worst_window(passes: &[AdmittedAt], window: Micros) -> WorstWindow {
    let mut worst = WorstWindow::default();
    let mut oldest = 0;
    for (newest, pass) in passes.iter().enumerate() {
        while passes[oldest].key() != pass.key() || pass.at() - passes[oldest].at() >= window.get()
        {
            oldest += 1;
        }
        let admitted = (newest - oldest + 1) as u64;
        if admitted > worst.admitted {
            let begins = Micros::new(passes[oldest].at());
            worst = WorstWindow { admitted, begins, key: pass.key() };
        }
    }
    worst
}

/// The largest sum of one key in any half-open window. `consumed` is sorted.
pub(super) fn most_consumed(consumed: &[(AdmittedAt, u64)], window: Micros) -> u64 {
    let (mut oldest, mut sum, mut most) = (0, 0, 0);
    for (end, cost) in consumed {
        sum += cost;
        while consumed[oldest].0.key() != end.key()
            || end.at() - consumed[oldest].0.at() >= window.get()
        {
            sum -= consumed[oldest].1;
            oldest += 1;
        }
        most = most.max(sum);
    }
    most
}

/// The most admissions of one key in the window that ends at any instant of each step.
pub(super) fn window_series(
    passes: &[AdmittedAt],
    key: u32,
    window: Micros,
    axis: &TimeAxis,
) -> Vec<u64> {
    let start = passes.partition_point(|pass| pass.key() < key);
    let end = passes.partition_point(|pass| pass.key() <= key);
    let passes = &passes[start..end];
    let mut series = axis.zeros();
    let (mut oldest, mut newest) = (0, 0);
    for (step, max) in series.iter_mut().enumerate() {
        let (start, end) = (axis.begins(step).get(), axis.begins(step + 1).get());
        let mut count_at = |newest: usize, now: u64| {
            while oldest < newest && now - passes[oldest].at() >= window.get() {
                oldest += 1;
            }
            (newest - oldest) as u64
        };
        // Admissions left from earlier steps, then each new one.
        *max = count_at(newest, start);
        while let Some(pass) = passes.get(newest).filter(|pass| pass.at() < end) {
            newest += 1;
            *max = (*max).max(count_at(newest, pass.at()));
        }
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(all: &[(u32, u64)]) -> Vec<AdmittedAt> {
        all.iter().map(|&(key, at)| AdmittedAt::new(key, Micros::new(at)).unwrap()).collect()
    }

    #[test]
    fn a_window_is_half_open_and_of_one_key() {
        let all = passes(&[(0, 0), (0, 10), (0, 19), (0, 20), (1, 20), (1, 21), (1, 22), (1, 23)]);
        let worst = |window| worst_window(&all, Micros::new(window));
        assert_eq!(worst(1), WorstWindow { admitted: 1, begins: Micros::ZERO, key: 0 });
        assert_eq!(worst(3), WorstWindow { admitted: 3, begins: Micros::new(20), key: 1 });
        assert_eq!(worst(4), WorstWindow { admitted: 4, begins: Micros::new(20), key: 1 });
        assert_eq!(worst(20), WorstWindow { admitted: 4, begins: Micros::new(20), key: 1 });
        assert_eq!(worst(21), WorstWindow { admitted: 4, begins: Micros::ZERO, key: 0 });
        assert_eq!(worst_window(&[], Micros::new(1)), WorstWindow::default());
    }

    #[test]
    fn consumption_is_summed_within_a_window_of_one_key() {
        let at = |key, at| AdmittedAt::new(key, Micros::new(at)).unwrap();
        let all = [(at(0, 0), 5), (at(0, 10), 7), (at(0, 19), 9), (at(1, 20), 20), (at(1, 40), 1)];
        for (window, most) in [(1, 20), (10, 20), (11, 20), (20, 21), (21, 21)] {
            assert_eq!(most_consumed(&all, Micros::new(window)), most, "{window}");
        }
        assert_eq!(most_consumed(&[], Micros::new(9)), 0);
    }

    #[test]
    fn a_series_shows_the_window_until_it_is_over() {
        let all = passes(&[(0, 5), (3, 0), (3, 1), (3, 12)]);
        let axis = TimeAxis { span: Micros::new(40), step: Micros::new(10), steps: 4 };
        assert_eq!(window_series(&all, 3, Micros::new(12), &axis), [2, 2, 1, 0]);
        assert_eq!(window_series(&all, 3, Micros::new(100), &axis), [2, 3, 3, 3]);
        assert_eq!(window_series(&all, 2, Micros::new(100), &axis), [0; 4]);
    }
}
