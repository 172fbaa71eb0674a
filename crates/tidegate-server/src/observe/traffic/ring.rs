//! A ring buffer of seconds.

use tidegate::Micros;

use super::seconds::MAX_SECONDS;

const SECOND: u64 = 1_000_000;

/// `W` numbers for each of the last seconds, indexed by the second. [`Ring::advance`] has to be
/// called before numbers are added to a later second.
#[derive(Clone, Debug)]
pub(crate) struct Ring<const W: usize>(Box<[[u32; W]]>);

impl<const W: usize> Ring<W> {
    /// The number of slots: the full seconds and the current one.
    pub(crate) const LEN: usize = MAX_SECONDS + 1;

    pub(crate) fn new() -> Self {
        Self(vec![[0; W]; Self::LEN].into())
    }

    /// Clears the seconds after `before` up to `now`.
    pub(crate) fn advance(&mut self, before: u64, now: u64) {
        let first = now.saturating_sub(Self::LEN as u64 - 1).max(before + 1);
        for second in first..=now {
            *self.slot(second) = [0; W];
        }
    }

    pub(crate) fn add(&mut self, second: u64, more: &[u32; W]) {
        let slot = self.slot(second);
        slot.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
    }

    /// Adds another ring that has been advanced to the same second.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (slot, other) in self.0.iter_mut().zip(&other.0) {
            slot.iter_mut().zip(other).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        }
    }

    /// The last `seconds` before `end`, oldest first; zeros before the first sample.
    pub(crate) fn last(&self, end: u64, seconds: usize) -> impl Iterator<Item = &[u32; W]> {
        // The slots are reused, so one that is too far back belongs to a later second.
        let seconds = seconds.min(MAX_SECONDS) as u64;
        let at = move |back: u64| {
            let second = (end + Self::LEN as u64 - back) % Self::LEN as u64;
            &self.0[second as usize]
        };
        (1..=seconds).rev().map(at)
    }

    fn slot(&mut self, second: u64) -> &mut [u32; W] {
        &mut self.0[(second % Self::LEN as u64) as usize]
    }
}

/// Distributes `amounts` evenly over the seconds between `from` and `to`, as far as the ring
/// reaches. The shares add up to the amounts.
pub(crate) fn shares<const W: usize>(
    amounts: &[u64; W],
    from: Micros,
    to: Micros,
) -> impl Iterator<Item = (u64, [u32; W])> {
    let (from, to) = (from.get(), to.get());
    let (first, last) = (from / SECOND, to / SECOND);
    let first_kept = first.max(last.saturating_sub(MAX_SECONDS as u64));
    // The amount up to an instant, rounded to the nearest call.
    let by = move |at: u64, amount: u64| match to - from {
        0 => amount,
        span => {
            let part = u128::from(amount) * u128::from(at.clamp(from, to) - from);
            ((part + u128::from(span / 2)) / u128::from(span)) as u64
        }
    };
    let amounts = *amounts;
    (first_kept..=last).map(move |second| {
        let (begin, end) = (second * SECOND, (second + 1) * SECOND);
        let share = |amount: u64| {
            let before = if second == first { 0 } else { by(begin, amount) };
            u32::try_from(by(end, amount) - before).unwrap_or(u32::MAX)
        };
        (second, amounts.map(share))
    })
}
