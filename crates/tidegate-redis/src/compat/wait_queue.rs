//! FIFO queues of callers that wait for permits of the same limiter.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tidegate::Micros;
use tokio::sync::{Mutex as FairMutex, Notify, Semaphore};

/// The queues of a client, by the name of the limiter.
pub(crate) struct LimiterQueues {
    by_name: Mutex<HashMap<Box<str>, Weak<LimiterQueue>>>,
    /// Limits the tasks that take back permits whose reply was lost.
    pub(crate) undo_permits: Arc<Semaphore>,
}

/// The callers that wait for permits of one limiter, in order of arrival.
pub(crate) struct LimiterQueue {
    /// Held by the caller that requests permits. Tokio's mutex is fair: callers lock it in order of
    /// arrival.
    pub(crate) head: FairMutex<()>,
    /// Permits were released in this process.
    pub(crate) released: Notify,
    pace: Mutex<QueuePace>,
    /// The rate and the interval in ms of the latest reply, to detect that Java has lowered it.
    known_rate: Mutex<Option<(u64, u64)>>,
}

/// The interval between callers that have waited.
#[derive(Default)]
struct QueuePace {
    gap: Micros,
    next: Micros,
}

impl LimiterQueue {
    /// A queue requests permits the instant they are available, and Redisson's timers are up to
    /// 100 ms late. Without a gap between queued callers, Java would never get permits.
    const MAX_GAP: Micros = Micros::from_millis(5);

    /// The limiter denied a request; a permit takes `span` on average. A longer gap than that would
    /// waste permits.
    pub(crate) fn denied(&self, span: Micros) {
        self.pace().gap = span.min(Self::MAX_GAP);
    }

    /// A caller that had waited got permits.
    pub(crate) fn served(&self, now: Micros) {
        let mut pace = self.pace();
        pace.next = now.saturating_add(pace.gap);
    }

    /// When a caller that arrives `now` may send its request; later if another one got permits just
    /// before.
    pub(crate) fn next(&self, now: Micros) -> Micros {
        self.pace().next.max(now)
    }

    pub(crate) fn known_rate(&self) -> Option<(u64, u64)> {
        *self.known_rate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_known_rate(&self, rate_and_interval: (u64, u64)) {
        *self.known_rate.lock().unwrap_or_else(PoisonError::into_inner) = Some(rate_and_interval);
    }

    fn pace(&self) -> MutexGuard<'_, QueuePace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for LimiterQueues {
    fn default() -> Self {
        Self {
            by_name: Mutex::default(),
            undo_permits: Semaphore::new(Self::MAX_UNDO_TASKS).into(),
        }
    }
}

impl LimiterQueues {
    /// The most concurrent undo tasks. Beyond that, permits return after their interval.
    const MAX_UNDO_TASKS: usize = 1_024;
    /// With fewer entries, unused queues are not removed.
    const MIN_PRUNED: usize = 64;

    /// The queue of all limiters of that name.
    pub(crate) fn queue(&self, name: &str) -> Arc<LimiterQueue> {
        let mut queues = self.by_name.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(name).and_then(Weak::upgrade) {
            return queue;
        }
        // Only when the map would grow anyway, so that the cost is amortised.
        if queues.len() >= Self::MIN_PRUNED && queues.len() == queues.capacity() {
            queues.retain(|_, queue| queue.strong_count() > 0);
        }
        let queue = Arc::new(LimiterQueue {
            head: FairMutex::new(()),
            released: Notify::new(),
            pace: Mutex::default(),
            known_rate: Mutex::default(),
        });
        queues.insert(name.into(), Arc::downgrade(&queue));
        queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limiters_of_one_name_share_a_queue_and_unused_queues_are_removed() {
        let queues = LimiterQueues::default();
        let kept = queues.queue("kept");
        assert!(Arc::ptr_eq(&kept, &queues.queue("kept")));
        for nth in 0..100_000 {
            queues.queue(&nth.to_string());
        }
        assert!(queues.by_name.lock().unwrap().len() < 1_000);
        assert!(Arc::ptr_eq(&kept, &queues.queue("kept")));
    }
}
