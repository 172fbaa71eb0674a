//! Judges what was admitted, from the raw log alone.

use std::collections::HashMap;

/// One decision as its caller saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) cost: u64,
    pub(crate) allowed: bool,
    /// The clock before the call and after it; the decision fell in between.
    pub(crate) before: u64,
    pub(crate) after: u64,
}

/// The bound that a limit promises.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// At most `burst + count * t / period` in every interval of length `t`, ends included.
    Bucket { burst: u64, count: u64, period: u64 },
    /// At most `limit` in every half-open interval of length `window`.
    Window { limit: u64, window: u64 },
}

/// What was found about a log.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Findings {
    pub(crate) decisions: usize,
    pub(crate) admitted: u64,
    /// Permits beyond the bound, in the worst interval of every key, all keys together.
    pub(crate) over: u64,
}

impl Bound {
    /// Holds every interval of every key against the bound.
    ///
    /// An interval is charged only with decisions that fell inside it for certain: its caller read
    /// the clock before and after, and both instants lie inside. So whatever is found is an excess,
    /// and with a clock that stands still or one thread nothing is missed.
    pub(crate) fn check(&self, log: &[Entry]) -> Findings {
        let mut by_key: HashMap<u64, Vec<Entry>> = HashMap::new();
        for entry in log.iter().filter(|entry| entry.allowed) {
            by_key.entry(entry.key).or_default().push(*entry);
        }
        let mut findings = Findings { decisions: log.len(), ..Findings::default() };
        for admitted in by_key.values_mut() {
            admitted.sort_unstable_by_key(|entry| entry.after);
            findings.admitted += admitted.iter().map(|entry| entry.cost).sum::<u64>();
            findings.over += self.worst_excess(admitted);
        }
        findings
    }

    /// By how much the worst interval exceeds the bound; `admitted` is in the order of `after`.
    fn worst_excess(&self, admitted: &[Entry]) -> u64 {
        let mut starts: Vec<u64> = admitted.iter().map(|entry| entry.before).collect();
        starts.sort_unstable();
        starts.dedup();
        let mut worst = 0;
        for start in starts {
            let mut sum = 0;
            // Whatever ended before the start began before it too.
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
