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
        queue.waiting.push_back(Waiter { ticket, cost, waker: None });
        Ticket { lines: self, line, ticket }
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
        poll_fn(|cx| {
            let mut lines = self.lines.lock();
            let waiting = lines.get_mut(&self.line).map(|line| &mut line.waiting);
            let mut waiters = waiting.into_iter().flatten();
            match waiters.by_ref().position(|waiter| waiter.ticket == self.ticket) {
                None | Some(0) => Poll::Ready(()),
                Some(place) => {
                    let line = lines.get_mut(&self.line);
                    if let Some(waiter) = line.and_then(|line| line.waiting.get_mut(place)) {
                        waiter.waker = Some(cx.waker().clone());
                    }
                    Poll::Pending
                }
            }
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
