//! Queues, and whose turn it is.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::form::Batch;
use super::{Batcher, Together, Waiting};
use crate::link::LinkError;
use crate::slot::Slot;

/// One call is on its way while another is made ready or read, and of two callers at a time neither has
/// to wait. With one alone, batches are larger, which a single hot key likes better; with four, smaller.
const IN_FLIGHT: usize = 2;

/// All lanes that have something in them.
#[derive(Default)]
pub(super) struct Lanes {
    lanes: Mutex<HashMap<u64, Lane>>,
    turns: AtomicU64,
}

#[derive(Default)]
struct Lane {
    queue: VecDeque<Waiting>,
    turns: Vec<Turn>,
}

/// The right to send. It ends with the deadline of what was sent: a future that nobody polls any more,
/// or whose runtime stands still, must not keep the others waiting.
struct Turn {
    id: u64,
    until: Instant,
}

/// What a caller does who has just come.
pub(super) enum Arrival {
    /// He asks for himself, and says when he has.
    Now(TurnId),
    /// He waits, and has a task send all that do: those before him have lost theirs.
    Next(TurnId),
    /// He waits.
    Later,
    /// He is sent home: there are too many. Somebody is to send those who wait, if there is a turn.
    Never(Option<TurnId>),
}

/// Names a turn.
#[derive(Clone, Copy)]
pub(super) struct TurnId {
    lane: u64,
    id: u64,
}

impl Lanes {
    pub(super) fn arrive(
        &self,
        lane: u64,
        until: Instant,
        waiting: impl FnOnce() -> Option<Waiting>,
    ) -> Arrival {
        let mut lanes = self.lock();
        let found = lanes.entry(lane).or_default();
        if found.turns.len() >= IN_FLIGHT {
            let now = Instant::now();
            found.turns.retain(|turn| now < turn.until);
        }
        if found.turns.len() >= IN_FLIGHT {
            let Some(waiting) = waiting() else { return Arrival::Never(None) };
            found.queue.push_back(waiting);
            return Arrival::Later;
        }
        let turn = TurnId { lane, id: self.turns.fetch_add(1, Ordering::Relaxed) };
        found.turns.push(Turn { id: turn.id, until });
        if found.queue.is_empty() {
            return Arrival::Now(turn);
        }
        let Some(waiting) = waiting() else { return Arrival::Never(Some(turn)) };
        found.queue.push_back(waiting);
        Arrival::Next(turn)
    }

    /// The slot that those who wait ask about, or one of theirs, and how long the last of them waits.
    fn waiting(&self, turn: TurnId) -> Option<(Slot, Instant)> {
        let mut lanes = self.lock();
        let lane = lanes.get_mut(&turn.lane)?;
        let last = lane.queue.back()?;
        let (slot, until) = (last.check.slot(), last.until);
        lane.extend(turn.id, until);
        Some((slot, until))
    }

    /// Another batch, for somebody who has a turn; an empty one if nobody waits.
    fn next(&self, turn: TurnId, together: Together) -> Batch {
        let mut lanes = self.lock();
        let Some(lane) = lanes.get_mut(&turn.lane) else { return Batch::default() };
        let batch = Batch::take(&mut lane.queue, together);
        if let Some(until) = batch.until() {
            lane.extend(turn.id, until);
        }
        batch
    }

    /// Sends those home whose time is up.
    fn dismiss(&self, turn: TurnId, why: &LinkError) {
        let now = Instant::now();
        let mut lanes = self.lock();
        let Some(found) = lanes.get_mut(&turn.lane) else { return };
        let (late, rest) = found.queue.drain(..).partition(|waiting| waiting.until <= now);
        found.queue = rest;
        drop(lanes);
        VecDeque::into_iter(late).for_each(|waiting| waiting.dismiss(why));
    }

    /// Ends a turn, unless somebody waits.
    fn end_or_go_on(&self, turn: TurnId) -> bool {
        let mut lanes = self.lock();
        let goes_on = lanes.get(&turn.lane).is_some_and(|lane| !lane.queue.is_empty());
        if !goes_on {
            end(&mut lanes, turn);
        }
        goes_on
    }

    fn end(&self, turn: TurnId) {
        end(&mut self.lock(), turn);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(lanes: &mut HashMap<u64, Lane>, turn: TurnId) {
    let Some(lane) = lanes.get_mut(&turn.lane) else { return };
    lane.turns.retain(|other| other.id != turn.id);
    if lane.turns.is_empty() && lane.queue.is_empty() {
        lanes.remove(&turn.lane);
    }
}

impl Lane {
    /// Lets a turn last until then, be it one that was taken for lost.
    fn extend(&mut self, id: u64, until: Instant) {
        match self.turns.iter_mut().find(|turn| turn.id == id) {
            Some(turn) => turn.until = until,
            None => self.turns.push(Turn { id, until }),
        }
    }
}

/// The turn of a caller who asks for himself. When he has, or is dropped on the way, it goes to those
/// who wait.
pub(super) struct Passing<'a> {
    batcher: &'a Arc<Batcher>,
    turn: TurnId,
}

impl<'a> Passing<'a> {
    pub(super) fn new(batcher: &'a Arc<Batcher>, turn: TurnId) -> Self {
        Self { batcher, turn }
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        if self.batcher.lanes.end_or_go_on(self.turn) {
            send(self.batcher, self.turn);
        }
    }
}

/// The turn of a task. A task may be dropped with its runtime, and another one would be, too: so the
/// turn just ends, and the next to come sends those who wait.
struct Sending {
    batcher: Arc<Batcher>,
    turn: TurnId,
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.batcher.lanes.end(self.turn);
    }
}

/// Uses a turn to send all that wait, batch by batch, from a task of its own.
pub(super) fn send(batcher: &Arc<Batcher>, turn: TurnId) {
    let sending = Sending { batcher: Arc::clone(batcher), turn };
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(sending.run());
    }
}

impl Sending {
    async fn run(self) {
        loop {
            self.send_next().await;
            if !self.batcher.lanes.end_or_go_on(self.turn) {
                return;
            }
        }
    }

    async fn send_next(&self) {
        let batcher = &*self.batcher;
        // No check counts as sent before there is somebody to send it to.
        let Some((slot, until)) = batcher.lanes.waiting(self.turn) else { return };
        if let Err(why) = batcher.route.ready(until, slot).await {
            return batcher.lanes.dismiss(self.turn, &why);
        }
        let mut batch = batcher.lanes.next(self.turn, batcher.together);
        if let Some(until) = batch.until() {
            let answers = batcher.evaluate(&mut batch, until).await;
            batch.tell(&answers);
        }
    }
}
