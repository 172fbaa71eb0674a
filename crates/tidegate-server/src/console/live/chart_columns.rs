//! Groups per-second counts into the columns of a chart.

use crate::observe::traffic::TrafficSnapshot;

/// Length of a column and end of the series, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChartColumns {
    pub(super) each: usize,
    /// The first second after the series, on any clock that counts seconds.
    pub(super) end: u64,
}

impl ChartColumns {
    /// Columns of `each` seconds that end with the snapshot.
    pub(super) fn at(snapshot: &TrafficSnapshot, each: usize) -> Self {
        Self { each, end: snapshot.at_ms / 1_000 }
    }

    /// Calls per second, rounded up so that few calls are visible. A column starts at a multiple of
    /// its length, so that the chart moves without changing its shape. An empty series is all
    /// zeros.
    pub(super) fn of(self, series: &[u32], seconds: usize) -> Vec<u64> {
        let count = seconds / self.each;
        if series.is_empty() {
            return vec![0; count];
        }
        // The last column is incomplete.
        let in_last = match (self.end % self.each as u64) as usize {
            0 => self.each,
            some => some,
        };
        let (before, last) = series.split_at(series.len().saturating_sub(in_last));
        let mut columns: Vec<u64> = before.rchunks(self.each).map(average).collect();
        columns.reverse();
        columns.push(average(last));
        let extra = columns.len().saturating_sub(count);
        columns.drain(..extra);
        columns
    }
}

fn average(seconds: &[u32]) -> u64 {
    let sum: u64 = seconds.iter().map(|count| u64::from(*count)).sum();
    sum.div_ceil((seconds.len() as u64).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_keep_their_shape_while_time_advances() {
        let calls: Vec<u32> =
            (0..40).map(|second| if (12..15).contains(&second) { 9 } else { 0 }).collect();
        let at =
            |end: usize| ChartColumns { each: 3, end: end as u64 }.of(&calls[end - 12..end], 12);
        assert_eq!(at(15), [0, 0, 0, 9]);
        assert_eq!(at(16), [0, 0, 9, 0]);
        assert_eq!(at(17), [0, 0, 9, 0]);
        assert_eq!(at(18), [0, 0, 9, 0]);
        assert_eq!(at(19), [0, 9, 0, 0]);
        assert_eq!(ChartColumns { each: 3, end: 1 }.of(&[], 12), [0; 4]);
        assert_eq!(
            ChartColumns { each: 2, end: 4 }.of(&[0, 1, 0, 0], 4),
            [1, 0],
            "few calls are visible"
        );
    }
}
