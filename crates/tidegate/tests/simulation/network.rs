//! The way from a process to a store and back.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tidegate::{
    Answer, Call, Clock, Decision, Engine, EngineError, Health, Inspection, Key, Micros, Refusal,
    RuleLimit, Sleep,
};

use crate::time::NodeClock;
use crate::world::World;

/// How long a process waits for an answer of the store, by its own clock.
pub(crate) const DEADLINE: Micros = Micros::from_millis(25);

/// A process, from its start to its end.
pub(crate) struct Life {
    pub(crate) node: usize,
    pub(crate) number: usize,
    pub(crate) clock: NodeClock,
    dead: AtomicBool,
}

impl Life {
    pub(crate) fn new(node: usize, number: usize, clock: NodeClock) -> Arc<Self> {
        Arc::new(Self { node, number, clock, dead: AtomicBool::new(false) })
    }

    /// From now on it sends nothing and hears nothing.
    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }
}

thread_local! {
    /// The request on whose behalf something is done.
    static PRESENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Whatever this future does is done on behalf of a request.
pub(crate) struct OnBehalf<F> {
    pub(crate) row: usize,
    pub(crate) future: Pin<Box<F>>,
    pub(crate) world: Arc<World>,
}

impl<F: Future> Future for OnBehalf<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.world.timeline.act();
        PRESENT.set(Some(self.row));
        let poll = self.future.as_mut().poll(cx);
        PRESENT.set(None);
        poll
    }
}

/// The store, as a process sees it.
pub(crate) struct Wire {
    pub(crate) world: Arc<World>,
    pub(crate) life: Arc<Life>,
}

impl Wire {
    async fn ask(&self, call: Call<'_>) -> Result<Decision, EngineError> {
        call.validate()?;
        if self.life.is_dead() {
            // Nobody hears this any more; it ends whatever goes on in the background.
            return Err(Refusal::NotImmediate.into());
        }
        let clock = &self.life.clock;
        let deadline = clock.elapsed().saturating_add(DEADLINE);
        let (sent, trip) = self.world.depart(&self.life, &call, PRESENT.get());
        let answer = match trip {
            Trip::Refused(after) => {
                let until = clock.elapsed().saturating_add(Micros::new(after)).min(deadline);
                clock.sleep_until(until).await;
                Err(EngineError::unavailable(io::Error::other("not sent")))
            }
            Trip::Sent(letter) => {
                let waiting = Waiting { letter: &letter, deadline: clock.sleep_until(deadline) };
                match waiting.await {
                    Some(answer) => answer,
                    None => {
                        let error = io::Error::other("no answer in time");
                        Err(EngineError::Ambiguous(Arc::new(error)))
                    }
                }
            }
        };
        self.world.returned(sent, &answer);
        answer
    }
}

impl Engine for Wire {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        Answer::Later(Box::pin(self.ask(call)))
    }

    fn inspect<'a>(&'a self, _limit: &'a Arc<RuleLimit>, _key: Key<'a>) -> Answer<'a, Inspection> {
        Answer::Ready(Err(Refusal::NotImmediate.into()))
    }

    fn health(&self) -> Health {
        let mut health = Health::up(None, 0);
        health.up = self.world.is_connected(&self.life);
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.life.clock.clone())
    }
}

/// What becomes of a call when it is sent.
pub(crate) enum Trip {
    /// Not at all: that is known after so long.
    Refused(u64),
    Sent(Arc<Letter>),
}

/// Where the answer will lie.
#[derive(Default)]
pub(crate) struct Letter(Mutex<Inside>);

#[derive(Default)]
struct Inside {
    answer: Option<Result<Decision, EngineError>>,
    /// Whoever waits for it.
    waker: Option<Waker>,
}

impl Letter {
    pub(crate) fn answer(&self, answer: Result<Decision, EngineError>) {
        let waker = {
            let mut letter = self.0.lock().unwrap();
            letter.answer = Some(answer);
            letter.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Waits for the answer or the deadline.
struct Waiting<'a> {
    letter: &'a Letter,
    deadline: Sleep,
}

impl Future for Waiting<'_> {
    type Output = Option<Result<Decision, EngineError>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut letter = self.letter.0.lock().unwrap();
        if let Some(answer) = letter.answer.take() {
            return Poll::Ready(Some(answer));
        }
        letter.waker = Some(cx.waker().clone());
        drop(letter);
        self.deadline.as_mut().poll(cx).map(|()| None)
    }
}
