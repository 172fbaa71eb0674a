//! Numbers of each of the last seconds.

use tidegate::Micros;

const SECOND: u64 = 1_000_000;

/// `W` numbers of each of the last seconds, by the number of the second. Whoever adds says first that time goes on.
#[derive(Clone, Debug)]
pub(super) struct Ring<const W: usize>(Box<[[u32; W]]>);

impl<const W: usize> Ring<W> {
    /// How many seconds it has: those that are over, and the one that is not.
    pub(super) const LEN: usize = super::MAX_SECONDS + 1;

    pub(super) fn new() -> Self {
        Self(vec![[0; W]; Self::LEN].into())
    }

    /// The second `now` begins after `before`: those in between are new.
    pub(super) fn advance(&mut self, before: u64, now: u64) {
        let first = now.saturating_sub(Self::LEN as u64 - 1).max(before + 1);
        for second in first..=now {
            *self.slot(second) = [0; W];
        }
    }

    pub(super) fn add(&mut self, second: u64, more: &[u32; W]) {
        let slot = self.slot(second);
        slot.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
    }

    /// Adds all of another that is as far as this one.
    pub(super) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            mine.iter_mut().zip(theirs).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        }
    }

    /// The last seconds before `end`, oldest first; zeros before time began.
    pub(super) fn last(&self, end: u64, seconds: usize) -> impl Iterator<Item = &[u32; W]> {
        // The slots lie in a circle, so one that is too far back would be another second's.
        let seconds = seconds.min(super::MAX_SECONDS) as u64;
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

/// The share of each second between `from` and `to` of what has come in between, as far as it is remembered. The shares
/// sum up to what there is.
pub(super) fn shares<const W: usize>(
    amounts: &[u64; W],
    from: Micros,
    to: Micros,
) -> impl Iterator<Item = (u64, [u32; W])> {
    let (from, to) = (from.get(), to.get());
    let (first, last) = (from / SECOND, to / SECOND);
    let first_kept = first.max(last.saturating_sub(super::MAX_SECONDS as u64));
    // What had come by an instant, to the nearest call.
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
