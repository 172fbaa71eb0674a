//! The simulated link between a process and a store.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tidegate::{
    Call, Clock, Decision, Engine, EngineError, EngineFuture, Health, Inspection, Key, Micros,
    Refusal, RuleLimit, Sleep,
};

use crate::fault_simulation::time::NodeClock;
use crate::fault_simulation::world::World;

/// How long a process waits for a reply of the store, by its own clock.
pub(crate) const DEADLINE: Micros = Micros::from_millis(25);

/// One incarnation of a process, from its start to its end.
pub(crate) struct Incarnation {
    pub(crate) node: usize,
    pub(crate) number: usize,
    pub(crate) clock: NodeClock,
    dead: AtomicBool,
}

impl Incarnation {
    pub(crate) fn new(node: usize, number: usize, clock: NodeClock) -> Arc<Self> {
        Arc::new(Self { node, number, clock, dead: AtomicBool::new(false) })
    }

    /// From now on the process sends and receives nothing.
    pub(crate) fn mark_dead(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }
}

thread_local! {
    /// The request for which the current code runs.
    static CURRENT_REQUEST: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Polls a future with `CURRENT_REQUEST` set to its request.
pub(crate) struct ForRequest<F> {
    pub(crate) row: usize,
    pub(crate) future: Pin<Box<F>>,
    pub(crate) world: Arc<World>,
}

impl<F: Future> Future for ForRequest<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.world.timeline.note_activity();
        CURRENT_REQUEST.set(Some(self.row));
        let poll = self.future.as_mut().poll(cx);
        CURRENT_REQUEST.set(None);
        poll
    }
}

/// The store, as a process sees it.
pub(crate) struct Wire {
    pub(crate) world: Arc<World>,
    pub(crate) incarnation: Arc<Incarnation>,
}

impl Wire {
    async fn send(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        call.validate()?;
        if self.incarnation.is_dead() {
            // No caller receives this error. It ends the background tasks of the process.
            return Err(Refusal::NotImmediate.into());
        }
        let clock = &self.incarnation.clock;
        let deadline = clock.elapsed().saturating_add(DEADLINE);
        let (sent, trip) = self.world.depart(&self.incarnation, &call, CURRENT_REQUEST.get());
        let reply = match trip {
            SendResult::Refused(after) => {
                let until = clock.elapsed().saturating_add(Micros::new(after)).min(deadline);
                clock.sleep_until(until).await;
                Err(EngineError::unavailable(io::Error::other("not sent")))
            }
            SendResult::Sent(reply_slot) => {
                let waiting = ReplyOrDeadline {
                    reply_slot: &reply_slot,
                    deadline: clock.sleep_until(deadline),
                };
                match waiting.await {
                    Some(reply) => reply,
                    None => {
                        let error = io::Error::other("no reply in time");
                        Err(EngineError::Ambiguous(Arc::new(error)))
                    }
                }
            }
        };
        self.world.returned(sent, &reply);
        reply
    }
}

impl Engine for Wire {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        EngineFuture::Pending(Box::pin(self.send(call)))
    }

    fn inspect<'a>(
        &'a self,
        _limit: &'a Arc<RuleLimit>,
        _key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        EngineFuture::Ready(Err(Refusal::NotImmediate.into()))
    }

    fn health(&self) -> Health {
        let mut health = Health::up(None, 0);
        health.up = self.world.is_connected(&self.incarnation);
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.incarnation.clock.clone())
    }
}

/// What happens to a call when it is sent.
pub(crate) enum SendResult {
    /// Not sent; the process learns it after this many microseconds.
    Refused(u64),
    Sent(Arc<ReplySlot>),
}

/// Receives the reply of the store.
#[derive(Default)]
pub(crate) struct ReplySlot(Mutex<ReplyState>);

#[derive(Default)]
struct ReplyState {
    reply: Option<Result<Decision, EngineError>>,
    waker: Option<Waker>,
}

impl ReplySlot {
    pub(crate) fn set(&self, reply: Result<Decision, EngineError>) {
        let waker = {
            let mut reply_slot = self.0.lock().unwrap();
            reply_slot.reply = Some(reply);
            reply_slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Waits for the reply or the deadline.
struct ReplyOrDeadline<'a> {
    reply_slot: &'a ReplySlot,
    deadline: Sleep,
}

impl Future for ReplyOrDeadline<'_> {
    type Output = Option<Result<Decision, EngineError>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut reply_slot = self.reply_slot.0.lock().unwrap();
        if let Some(reply) = reply_slot.reply.take() {
            return Poll::Ready(Some(reply));
        }
        reply_slot.waker = Some(cx.waker().clone());
        drop(reply_slot);
        self.deadline.as_mut().poll(cx).map(|()| None)
    }
}
