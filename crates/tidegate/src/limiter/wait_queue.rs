//! FIFO queues of waiting callers, and what they leave to checks that do not wait.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use smallvec::SmallVec;

use super::waiter_filter::WaiterFilter;

/// All queues of a limiter.
pub(super) struct WaitQueues {
    queues: Mutex<QueueTable>,
    lines: WaiterFilter,
    /// Most waiters of one queue.
    max_per_key: AtomicUsize,
    /// Waiters of all queues.
    waiting: AtomicUsize,
    /// Waits refused since the start because the queue was full.
    refused: AtomicU64,
}

#[derive(Default)]
struct QueueTable {
    /// By the fingerprint of rules and keys.
    queues: HashMap<u128, WaitQueue>,
    /// Each queue by what its first waiter waits for: hashes of a limit, and of a limit and a key.
    by_line: BTreeSet<(u64, u128)>,
}

/// While the first waiter is short of permits, waiters get at least half of what is granted, and
/// plain checks the rest: a plain check takes from a credit that grows by what waiters get.
#[derive(Default)]
struct WaitQueue {
    waiting: VecDeque<Waiter>,
    tickets: u64,
    /// What the first waiter waits for, as in [`QueueTable::by_line`].
    waits_for: SmallVec<[u64; 4]>,
    /// Set while the first waiter is short of permits that recover with time: see [`WaiterFilter`].
    line: Option<u64>,
    /// Permits that plain checks may take.
    credit: u64,
    /// Whether there were plain checks since the queue began.
    has_plain_checks: bool,
}

struct Waiter {
    ticket: u64,
    cost: u64,
    waker: Option<Waker>,
    woken: bool,
}

/// A position in a queue. Dropping it leaves the queue and wakes the next waiter.
pub(super) struct QueueTicket<'a> {
    queues: &'a WaitQueues,
    /// Fingerprint of the queue.
    queue: u128,
    ticket: u64,
}

/// Whether a plain check may take permits.
pub(super) enum PlainTurn {
    /// No waiter is short of permits.
    Free,
    /// Its cost was taken from the credit.
    Credit,
    /// It has to wait until so many permits were granted to others.
    Behind(u64),
}

impl WaitQueues {
    /// Default of the most waiters of one queue.
    pub(super) const MAX_PER_KEY: usize = 4_096;

    /// Joins the end of the queue; `None` if it is full.
    pub(super) fn join(&self, fingerprint: u128, cost: u64) -> Option<QueueTicket<'_>> {
        let mut table = self.lock();
        let max = self.max_per_key.load(Ordering::Relaxed);
        if table.queues.get(&fingerprint).map_or(0, |queue| queue.waiting.len()) >= max {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let queue = table.queues.entry(fingerprint).or_default();
        let ticket = queue.tickets;
        queue.tickets += 1;
        queue.waiting.push_back(Waiter { ticket, cost, waker: None, woken: false });
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Some(QueueTicket { queues: self, queue: fingerprint, ticket })
    }

    /// The most permits that are granted before a caller that would join this queue.
    pub(super) fn granted_before_next(&self, fingerprint: u128) -> u64 {
        self.lock().queues.get(&fingerprint).map_or(0, |queue| queue.granted_before(queue.cost()))
    }

    /// Sets the most waiters of one queue.
    pub(super) fn set_max_per_key(&self, max: usize) {
        self.max_per_key.store(max, Ordering::Relaxed);
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Wakes the first waiter of every queue: limits may have changed.
    pub(super) fn wake_all(&self) {
        let mut table = self.lock();
        let wakers: Vec<Waker> =
            table.queues.values_mut().filter_map(WaitQueue::notify_head).collect();
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes the first waiters that wait for these limits, or limits and keys: permits or slots may
    /// have been given back.
    pub(super) fn wake(&self, lines: impl IntoIterator<Item = u64>) {
        // A waiter is counted before its call is decided. So one that is not seen here has not been
        // denied before the permits were given back.
        if self.waiting() == 0 {
            return;
        }
        let mut table = self.lock();
        let QueueTable { queues, by_line } = &mut *table;
        let mut wakers: SmallVec<[Waker; 2]> = SmallVec::new();
        for line in lines {
            for (_, queue) in by_line.range((line, 0)..=(line, u128::MAX)) {
                wakers.extend(queues.get_mut(queue).and_then(WaitQueue::notify_head));
            }
        }
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Whether a waiter of any queue is short of permits.
    #[inline(always)]
    pub(super) fn any_short(&self) -> bool {
        self.lines.has_any()
    }

    /// Whether a waiter of this line may be short of permits.
    pub(super) fn may_be_short(&self, line: u64) -> bool {
        self.lines.may_have(line)
    }

    /// The turn of a plain check of this cost.
    pub(super) fn take_turn(&self, fingerprint: u128, cost: u64) -> PlainTurn {
        let mut table = self.lock();
        let queue = table.queues.get_mut(&fingerprint).filter(|queue| queue.line.is_some());
        let Some(queue) = queue else { return PlainTurn::Free };
        queue.has_plain_checks = true;
        if let Some(left) = queue.credit.checked_sub(cost) {
            queue.credit = left;
            return PlainTurn::Credit;
        }
        let last = queue.waiting.back().map_or(0, |waiter| waiter.cost);
        let before_last = queue.cost().saturating_sub(last);
        PlainTurn::Behind(queue.granted_before(before_last).saturating_add(last))
    }

    /// Adds to the credit of plain checks, up to `capacity`.
    pub(super) fn add_credit(&self, fingerprint: u128, cost: u64, capacity: u64) {
        if let Some(queue) = self.lock().queues.get_mut(&fingerprint) {
            queue.credit = queue.credit.saturating_add(cost).min(capacity);
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueTable> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for WaitQueues {
    fn default() -> Self {
        Self {
            queues: Mutex::default(),
            lines: WaiterFilter::default(),
            max_per_key: AtomicUsize::new(Self::MAX_PER_KEY),
            waiting: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
        }
    }
}

impl WaitQueue {
    /// Notes that the first waiter has a reason to try again. Its waker, if it sleeps.
    fn notify_head(&mut self) -> Option<Waker> {
        let head = self.waiting.front_mut()?;
        head.woken = true;
        head.waker.take()
    }

    /// Position of a waiter: tickets are in order.
    fn position(&self, ticket: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |waiter| waiter.ticket).ok()
    }

    /// The cost of all waiters.
    fn cost(&self) -> u64 {
        self.waiting.iter().fold(0, |sum, waiter| sum.saturating_add(waiter.cost))
    }

    /// The most permits that are granted before a waiter with `ahead` permits before it.
    fn granted_before(&self, ahead: u64) -> u64 {
        match self.has_plain_checks {
            true => ahead.saturating_mul(2).saturating_add(self.credit),
            false => ahead,
        }
    }
}

impl QueueTicket<'_> {
    /// The most permits that are granted before this waiter; `None` at the head of the queue.
    pub(super) fn ahead(&self) -> Option<u64> {
        let table = self.queues.lock();
        let queue = table.queues.get(&self.queue)?;
        let before = queue.waiting.iter().take_while(|w| w.ticket != self.ticket);
        let ahead = before.map(|waiter| waiter.cost).reduce(u64::saturating_add)?;
        Some(queue.granted_before(ahead))
    }

    /// Notes what this waiter, the first of the queue, waits for: hashes of limits, and of limits
    /// and keys. Called before each attempt, so that nothing that is given back after it is missed.
    pub(super) fn set_waits_for(&self, lines: SmallVec<[u64; 4]>) {
        let mut table = self.queues.lock();
        let QueueTable { queues, by_line } = &mut *table;
        let Some(queue) = queues.get_mut(&self.queue) else { return };
        if queue.waits_for != lines {
            for line in &queue.waits_for {
                by_line.remove(&(*line, self.queue));
            }
            by_line.extend(lines.iter().map(|line| (*line, self.queue)));
            queue.waits_for = lines;
        }
    }

    /// Notes whether this waiter, the first of the queue, is short of permits, and in which line.
    pub(super) fn set_short(&self, line: Option<u64>) {
        if let Some(queue) = self.queues.lock().queues.get_mut(&self.queue) {
            self.queues.lines.replace(queue.line, line);
            queue.line = line;
        }
    }

    /// Notes that this waiter got its permits, of a limit of `capacity`.
    pub(super) fn served(&self, cost: u64, capacity: u64) {
        self.queues.add_credit(self.queue, cost, capacity);
    }

    /// Completes at the head of the queue.
    pub(super) async fn at_head(&self) {
        self.until(|position, _| position == 0).await;
    }

    /// Completes when permits or slots may have been given back.
    pub(super) async fn notified(&self) {
        self.until(|_, waiter| std::mem::take(&mut waiter.woken)).await;
    }

    /// Completes when `is_time` returns true for this waiter and its position in the queue.
    async fn until(&self, mut is_time: impl FnMut(usize, &mut Waiter) -> bool) {
        poll_fn(|cx| {
            let mut table = self.queues.lock();
            let queue = table.queues.get_mut(&self.queue);
            let own = queue.and_then(|queue| Some((queue.position(self.ticket)?, queue)));
            let Some((position, queue)) = own else { return Poll::Ready(()) };
            let waiter = &mut queue.waiting[position];
            if is_time(position, waiter) {
                return Poll::Ready(());
            }
            waiter.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        let mut table = self.queues.lock();
        self.queues.waiting.fetch_sub(1, Ordering::Relaxed);
        let QueueTable { queues, by_line } = &mut *table;
        let Some(queue) = queues.get_mut(&self.queue) else { return };
        if let Some(position) = queue.position(self.ticket) {
            queue.waiting.remove(position);
        }
        let next = queue.waiting.front_mut().and_then(|waiter| waiter.waker.take());
        if queue.waiting.is_empty() {
            self.queues.lines.replace(queue.line, None);
            for line in &queue.waits_for {
                by_line.remove(&(*line, self.queue));
            }
            queues.remove(&self.queue);
        }
        drop(table);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
