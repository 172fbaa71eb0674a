//! Queues of callers who wait for the same thing.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// All the queues of a limiter, by what is waited for.
#[derive(Default)]
pub(super) struct Lines(Mutex<HashMap<u128, Line>>);

#[derive(Default)]
struct Line {
    waiting: VecDeque<Waiter>,
    tickets: u64,
}

struct Waiter {
    ticket: u64,
    cost: u64,
    waker: Option<Waker>,
    nudged: bool,
}

/// A place in a queue. Dropped, the place is free and the next is called.
pub(super) struct Ticket<'a> {
    lines: &'a Lines,
    line: u128,
    ticket: u64,
}

impl Lines {
    /// Goes to the end of the queue.
    pub(super) fn join(&self, line: u128, cost: u64) -> Ticket<'_> {
        let mut lines = self.lock();
        let queue = lines.entry(line).or_default();
        let ticket = queue.tickets;
        queue.tickets += 1;
        queue.waiting.push_back(Waiter { ticket, cost, waker: None, nudged: false });
        Ticket { lines: self, line, ticket }
    }

    /// Tells whoever is at the head of a queue that something may have been given back.
    pub(super) fn nudge_heads(&self) {
        let mut wakers = Vec::new();
        for line in self.lock().values_mut() {
            if let Some(head) = line.waiting.front_mut() {
                head.nudged = true;
                wakers.extend(head.waker.take());
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u128, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ticket<'_> {
    /// What those before this one want, all together; `None` at the head of the queue.
    pub(super) fn ahead(&self) -> Option<u64> {
        let lines = self.lines.lock();
        let before = lines.get(&self.line)?.waiting.iter().take_while(|w| w.ticket != self.ticket);
        before.map(|waiter| waiter.cost).reduce(u64::saturating_add)
    }

    /// Completes at the head of the queue.
    pub(super) async fn turn(&self) {
        self.until(|place, _| place == 0).await;
    }

    /// Completes when something may have been given back.
    pub(super) async fn nudge(&self) {
        self.until(|_, waiter| std::mem::take(&mut waiter.nudged)).await;
    }

    /// Completes when `is_time` says so of this waiter and its place in the queue.
    async fn until(&self, mut is_time: impl FnMut(usize, &mut Waiter) -> bool) {
        poll_fn(|cx| {
            let mut lines = self.lines.lock();
            let waiting = lines.get_mut(&self.line).into_iter().flat_map(|line| &mut line.waiting);
            let ours = waiting.enumerate().find(|(_, waiter)| waiter.ticket == self.ticket);
            let Some((place, waiter)) = ours else { return Poll::Ready(()) };
            if is_time(place, waiter) {
                return Poll::Ready(());
            }
            waiter.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        let Some(line) = lines.get_mut(&self.line) else { return };
        line.waiting.retain(|waiter| waiter.ticket != self.ticket);
        let next = line.waiting.front_mut().and_then(|waiter| waiter.waker.take());
        if line.waiting.is_empty() {
            lines.remove(&self.line);
        }
        drop(lines);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
