//! Checks a log of decisions against the bound of its limit. Imports: nothing.

pub mod families;

use std::collections::HashMap;

/// One decision as its caller saw it.
#[derive(Clone, Copy, Debug)]
pub struct LoggedDecision {
    pub key: u64,
    pub cost: u64,
    pub allowed: bool,
    /// Clock readings before and after the call; the decision was made in between.
    pub before: u64,
    pub after: u64,
}

/// The guaranteed bound of a limit.
#[derive(Clone, Copy, Debug)]
pub enum IntervalBound {
    /// At most `burst + count * t / period` in every interval of length `t`, ends included.
    Bucket { burst: u64, count: u64, period: u64 },
    /// At most `limit` in every half-open interval of length `window`.
    Window { limit: u64, window: u64 },
}

/// Result of checking a log.
#[derive(Clone, Copy, Default, Debug)]
pub struct BoundCheck {
    pub decisions: usize,
    pub admitted: u64,
    /// Permits beyond the bound, in the worst interval of every key, all keys together.
    pub over: u64,
}

impl IntervalBound {
    /// Checks every interval of every key.
    ///
    /// An interval counts only decisions that certainly fell inside it: both clock readings of the
    /// caller do. So every reported excess is real, and with one thread, or a clock that stands
    /// still, none is missed.
    pub fn check(&self, log: &[LoggedDecision]) -> BoundCheck {
        let mut by_key: HashMap<u64, Vec<LoggedDecision>> = HashMap::new();
        for entry in log.iter().filter(|entry| entry.allowed) {
            by_key.entry(entry.key).or_default().push(*entry);
        }
        let mut check = BoundCheck { decisions: log.len(), ..BoundCheck::default() };
        for admitted in by_key.values_mut() {
            admitted.sort_unstable_by_key(|entry| entry.after);
            check.admitted += admitted.iter().map(|entry| entry.cost).sum::<u64>();
            check.over += self.worst_excess(admitted);
        }
        check
    }

    /// Excess of the worst interval over the bound; `admitted` is sorted by `after`.
    fn worst_excess(&self, admitted: &[LoggedDecision]) -> u64 {
        let mut starts: Vec<u64> = admitted.iter().map(|entry| entry.before).collect();
        starts.sort_unstable();
        starts.dedup();
        let mut worst = 0;
        for start in starts {
            let mut sum = 0;
            // A decision that ended before the start also began before it.
            let first = admitted.partition_point(|entry| entry.after < start);
            for entry in admitted[first..].iter().filter(|entry| entry.before >= start) {
                sum += entry.cost;
                let allowed = match *self {
                    Self::Bucket { burst, count, period } => {
                        burst + (entry.after - start) * count / period
                    }
                    Self::Window { window, .. } if entry.after - start >= window => break,
                    Self::Window { limit, .. } => limit,
                };
                worst = worst.max(sum.saturating_sub(allowed));
            }
        }
        worst
    }
}
