//! FIFO queues of callers that wait for permits of the same limiter.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tidegate::Micros;
use tokio::sync::{Mutex as FairMutex, Notify, Semaphore};

use crate::compat::wait_ticket::WaitTicket;
use crate::connection::timing::random_below;

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
    /// The same callers, in the same order.
    tickets: Mutex<VecDeque<Arc<WaitTicket>>>,
    /// Permits were released in this process.
    pub(crate) released: Notify,
    /// Until when the limiter counts as shared with Java, in us.
    shared_until: AtomicU64,
    /// When to check next whether it is, in us.
    next_probe: AtomicU64,
    /// The rate and the interval in ms of the latest reply, to detect that Java has lowered it.
    known_rate: Mutex<Option<(u64, u64)>>,
}

impl LimiterQueue {
    /// Redisson's timers are up to 100 ms late, and then take all that has been freed. A queue that
    /// is late by up to this should take about as many permits as one Java process.
    const MAX_JITTER: Micros = Micros::from_millis(80);
    /// How often a caller is late while no entry of Java is seen. A denied Java client writes
    /// nothing, so it would not be seen if every permit were taken the instant it is freed.
    const PROBE_INTERVAL: Micros = Micros::from_millis(2_000);
    /// Intervals after an entry of Java was seen. With a low rate, not every interval has one.
    const SHARED_INTERVALS: u64 = 8;

    /// The most callers whose permits are requested at once. Bounds the time of a script.
    const MAX_REQUESTED: usize = 64;

    /// Adds a caller. `join` polls the lock of `head` for the first time: both have one order.
    pub(crate) fn join<T>(&self, permits: u32, join: impl FnOnce() -> T) -> (Arc<WaitTicket>, T) {
        let ticket = Arc::new(WaitTicket::new(permits));
        let mut tickets = self.tickets();
        tickets.push_back(Arc::clone(&ticket));
        let joined = join();
        drop(tickets);
        (ticket, joined)
    }

    /// The ticket of the caller at the head, and those behind it, for one request.
    pub(crate) fn request(&self, head: &Arc<WaitTicket>) -> Vec<Arc<WaitTicket>> {
        let tickets = self.tickets();
        let others = tickets.iter().filter(|ticket| !Arc::ptr_eq(ticket, head));
        let all = std::iter::once(head).chain(others);
        all.filter(|ticket| ticket.request()).take(Self::MAX_REQUESTED).cloned().collect()
    }

    /// Removes a caller.
    pub(crate) fn remove(&self, ticket: &Arc<WaitTicket>) {
        let mut tickets = self.tickets();
        if let Some(place) = tickets.iter().position(|other| Arc::ptr_eq(other, ticket)) {
            tickets.remove(place);
        }
    }

    fn tickets(&self) -> MutexGuard<'_, VecDeque<Arc<WaitTicket>>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reply has shown an entry of Java.
    pub(crate) fn set_shared(&self, now: Micros) {
        let span = self.interval().get().saturating_mul(Self::SHARED_INTERVALS);
        self.shared_until.fetch_max(now.get().saturating_add(span), Relaxed);
    }

    /// How much later than possible a denied caller retries, so that Java gets permits too.
    pub(crate) fn jitter(&self, now: Micros) -> Micros {
        if now.get() >= self.shared_until.load(Relaxed) {
            if now.get() < self.next_probe.load(Relaxed) {
                return Micros::ZERO;
            }
            self.next_probe.store(now.saturating_add(Self::PROBE_INTERVAL).get(), Relaxed);
        }
        random_below(Duration::from(self.interval().min(Self::MAX_JITTER))).into()
    }

    /// The longest that a caller for `permits` waits if no other caller takes them; None if it is
    /// not known, or the permits are above the rate.
    pub(crate) fn longest_wait(&self, permits: u32) -> Option<Micros> {
        let (rate, _) = self.known_rate()?;
        // Times of entries are rounded up to the next millisecond.
        let wait = self.interval().saturating_add(Micros::from_millis(1));
        (u64::from(permits) <= rate).then_some(wait)
    }

    fn interval(&self) -> Micros {
        Micros::from_millis(self.known_rate().map_or(0, |(_, interval)| interval))
    }

    pub(crate) fn known_rate(&self) -> Option<(u64, u64)> {
        *self.known_rate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_known_rate(&self, rate_and_interval: (u64, u64)) {
        *self.known_rate.lock().unwrap_or_else(PoisonError::into_inner) = Some(rate_and_interval);
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
            tickets: Mutex::default(),
            released: Notify::new(),
            shared_until: AtomicU64::new(0),
            next_probe: AtomicU64::new(0),
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
    fn a_caller_is_late_every_two_seconds_or_while_java_takes_permits() {
        let queue = LimiterQueues::default().queue("jitter");
        queue.set_known_rate((50, 1_000));
        let late = |from: u64| -> Vec<Micros> {
            let jitter = |ms| queue.jitter(Micros::from_millis(ms));
            (from..from + 4_000).map(jitter).filter(|jitter| *jitter > Micros::ZERO).collect()
        };
        let alone = late(0);
        assert_eq!(alone.len(), 2);
        queue.set_shared(Micros::from_millis(4_000));
        let shared = [late(4_000), late(8_000)].concat();
        assert!(shared.len() > 7_900, "{}", shared.len());
        let longest = *shared.iter().max().unwrap();
        assert!((Micros::from_millis(60)..LimiterQueue::MAX_JITTER).contains(&longest));
        assert_eq!(late(12_000).len(), 2);
        // Not longer than the interval.
        queue.set_known_rate((50, 10));
        queue.set_shared(Micros::from_millis(20_000));
        assert!(queue.jitter(Micros::from_millis(20_000)) < Micros::from_millis(10));
    }

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
