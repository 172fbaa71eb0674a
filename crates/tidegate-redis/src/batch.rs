//! Checks that come together are sent together.
//!
//! A check that finds nothing on its way is sent at once. Whatever comes while some are on their way
//! waits, and goes out as one script call when an answer has come: there is no timer, and nobody waits
//! for company. Equal checks are sent as one, with the number of times.
//!
//! # Layout
//!
//! - Here is what callers do: they ask, and wait for no longer than their own deadline. `lane` has the
//!   queue and says whose turn it is, and `form` takes a batch from it. `words` puts a batch into the
//!   words of the script, `said` reads what it answers.

mod form;
mod lane;
mod said;
mod words;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::{Call, Clock, Decision, EngineError, Micros, SystemClock};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::classify::Meaning;
use crate::confirm::Unconfirmed;
use crate::engine::Redis;
use crate::link::{Fault, LinkError};
use crate::reply::{Unreadable, unavailable};
use crate::request::{Beside, Part};
use crate::route::Route;
use crate::seen::Seen;
use crate::slot::Slot;
use form::Batch;
use lane::{Arrival, Lanes, Passing};
use said::{Answers, Outcome, Said};
use words::Moment;

/// What goes in batches, and what is on its way.
pub(crate) struct Batcher {
    route: Route,
    seen: Arc<Seen>,
    test_clock: Option<Arc<dyn Clock>>,
    hasher: RandomState,
    lanes: Lanes,
    /// For those who wait.
    places: Arc<Semaphore>,
    together: Together,
}

/// What may come in one command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Together {
    /// One check alone, which never waits.
    Nothing,
    /// Checks of the same keys.
    SameKeys,
    /// Any checks.
    Everything,
}

/// A check: limits that are charged all or none, in one slot.
pub(crate) struct Check {
    parts: Vec<Part>,
    /// The keys of their states.
    states: Vec<String>,
    /// A hash of each of them.
    marks: Vec<u64>,
    beside: Vec<Beside>,
    /// Around when a calendar's windows are needed, where Redis has said so.
    guess: Option<Micros>,
    /// Either it is sent, or its caller has given up: whoever comes first.
    claimed: AtomicBool,
}

/// What one caller is told: the answer to his check, and the how manieth of its equals his was.
type Told = Result<(Arc<Said>, u64), EngineError>;

impl Redis {
    /// Decides a check whose parts lie in one slot and which has no id.
    pub(crate) async fn check(
        &self,
        call: &Call<'_>,
        parts: Vec<Part>,
        places: &[usize],
        until: Instant,
    ) -> Result<Decision, EngineError> {
        // Redis asks back for its calendar, and for keys that were not named: each once, unless
        // somebody changes them meanwhile.
        const ATTEMPTS: usize = 6;
        let states: Vec<String> = parts.iter().map(|part| self.state_key(part)).collect();
        let mut check = Check::new(parts, states, &self.batcher);
        for _ in 0..ATTEMPTS {
            let asked = Arc::new(check);
            let (said, nth) = self.batcher.ask(&asked, until).await?;
            let (mut beside, mut guess) = (asked.beside.clone(), asked.guess);
            match &said.outcome {
                Outcome::Decided(decided) => {
                    return decided.decision(nth, call, &asked.parts, places);
                }
                Outcome::Elsewhen(now) => guess = Some(*now),
                Outcome::Missing(missing) => {
                    for (beside, missing) in beside.iter_mut().zip(missing) {
                        *beside = beside.and(*missing);
                    }
                }
            }
            check = asked.again(beside, guess);
        }
        // Nothing was written by any of them.
        Err(EngineError::unavailable(Unreadable))
    }
}

impl Check {
    fn new(parts: Vec<Part>, states: Vec<String>, batcher: &Batcher) -> Self {
        let marks = states.iter().map(|state| batcher.hasher.hash_one(state)).collect();
        let beside = parts.iter().zip(&states).map(|(part, state)| {
            let holds = if batcher.seen.has(state) { Beside::HOLDS } else { Beside::NOTHING };
            Beside::of(part.limit.limit()).and(holds)
        });
        let beside = beside.collect();
        Self { parts, states, marks, beside, guess: None, claimed: AtomicBool::new(false) }
    }

    /// The same, asked once more.
    fn again(&self, beside: Vec<Beside>, guess: Option<Micros>) -> Self {
        let Self { parts, states, marks, .. } = self;
        let (parts, states, marks) = (parts.clone(), states.clone(), marks.clone());
        Self { parts, states, marks, beside, guess, claimed: AtomicBool::new(false) }
    }

    /// True for one caller alone.
    fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    fn slot(&self) -> Slot {
        Slot::of(self.states.first().map_or("", String::as_str))
    }

    /// Would the script decide the two alike?
    fn equals(&self, other: &Self) -> bool {
        let same = |one: &Part, other: &Part| {
            Arc::ptr_eq(&one.limit, &other.limit) && one.cost == other.cost && one.who == other.who
        };
        self.states == other.states
            && self.beside == other.beside
            && self.guess == other.guess
            && self.parts.iter().zip(&other.parts).all(|(one, other)| same(one, other))
    }

    /// Each in a queue has a turn of its own, and is told when.
    fn is_alone(&self) -> bool {
        self.parts.iter().any(|part| part.limit.limit().is_queue())
    }
}

/// Dropped before it was sent, a check is not sent.
struct Abandon<'a>(&'a Check);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.claim();
    }
}

impl Batcher {
    /// How many checks may wait at a time, in all lanes: a few hundred bytes each. A server that decides
    /// 100,000 a second and a deadline of 25 ms would leave 2,500 of them waiting.
    const MOST_WAITING: usize = 65_536;

    pub(crate) fn new(
        route: Route,
        seen: Arc<Seen>,
        test_clock: Option<Arc<dyn Clock>>,
        together: Together,
    ) -> Arc<Self> {
        let (hasher, lanes) = (RandomState::new(), Lanes::default());
        let places = Semaphore::new(Self::MOST_WAITING).into();
        Arc::new(Self { route, seen, test_clock, hasher, lanes, places, together })
    }

    /// What the script says about a check, before `until`.
    async fn ask(self: &Arc<Self>, check: &Arc<Check>, until: Instant) -> Told {
        // Outside of a runtime there is nothing to wait with, and the route says so.
        if self.together == Together::Nothing || Handle::try_current().is_err() {
            return self.ask_alone(check, until).await;
        }
        let lane = self.lane_of(check);
        let (sender, receiver) = oneshot::channel();
        let waiting = || {
            let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
            Some(Waiting { check: Arc::clone(check), until, answer: sender, _place: place })
        };
        match self.lanes.arrive(lane, until, waiting) {
            Arrival::Now(turn) => {
                // Whoever goes, however he goes, lets the next ones through.
                let _passing = Passing::new(self, turn);
                self.ask_alone(check, until).await
            }
            Arrival::Next(turn) => {
                lane::send(self, turn);
                self.wait(check, until, receiver).await
            }
            Arrival::Later => self.wait(check, until, receiver).await,
            Arrival::Never(turn) => {
                turn.into_iter().for_each(|turn| lane::send(self, turn));
                let fault = Fault("too many calls wait; ask less, or give redis more".into());
                Err(unavailable(LinkError::Down(fault.into()), true))
            }
        }
    }

    async fn ask_alone(&self, check: &Arc<Check>, until: Instant) -> Told {
        let mut batch = Batch::of_one(Arc::clone(check));
        self.evaluate(&mut batch, until).await.told(0, 1)
    }

    async fn wait(&self, check: &Check, until: Instant, answer: oneshot::Receiver<Told>) -> Told {
        let abandon = Abandon(check);
        let told = timeout_at(until, answer).await;
        let never_sent = check.claim();
        drop(abandon);
        match told {
            Ok(Ok(told)) => told,
            // In time for nothing; the route knows what the matter is.
            _ if never_sent => {
                let fault = Fault("it waited behind others for too long; allow more time".into());
                let late = LinkError::Down(fault.into());
                let error = self.route.ready(until, check.slot()).await.err().unwrap_or(late);
                Err(unavailable(error, true))
            }
            Ok(Err(_)) => {
                let fault = Fault("the runtime that had sent it is gone".into());
                Err(unavailable(LinkError::Broken(fault.into()), true))
            }
            Err(_) => Err(match self.route.confirmed_by() {
                0 => unavailable(LinkError::TimedOut, true),
                wanted => Unconfirmed::Unheard { wanted }.into(),
            }),
        }
    }

    /// Checks in one lane may wait for each other. Where all keys lie on one server there is one; in a
    /// Cluster there is one for each set of keys.
    fn lane_of(&self, check: &Check) -> u64 {
        match self.together {
            Together::Everything => 0,
            _ => self.hasher.hash_one(&check.marks),
        }
    }

    /// Asks about all checks of a batch, and says what was answered to each. Those of its callers who
    /// are denied are told before replicas are asked.
    async fn evaluate(&self, batch: &mut Batch, until: Instant) -> Answers {
        let instant = self.test_clock.as_ref().map(|clock| clock.now());
        let moment = Moment { instant, guess: self.clock().now() };
        let (script, slot) = (batch.covers().checks(), batch.slot());
        let evalsha = batch.command("EVALSHA", &script.digest, &moment);
        let answer = match self.route.write_until(until, slot, &evalsha).await {
            // Nothing has run: the server has not seen the script yet.
            Err(LinkError::Reply(error)) if Meaning::of(&error) == Meaning::NoScript => {
                let eval = batch.command("EVAL", &script.text, &moment);
                self.route.write_until(until, slot, &eval).await
            }
            answer => answer,
        };
        let (answer, witness) = match answer {
            Ok((value, witness)) => (Ok(value), witness),
            Err(error) => (Err(error), None),
        };
        let mut answers = Answers::read(answer, &batch.groups);
        for (group, said) in batch.groups.iter().zip(&answers.said) {
            if let Ok(said) = said {
                said.teach(&self.seen, &group.check.states);
            }
        }
        if let Some(witness) = witness.filter(|_| answers.admit()) {
            batch.tell_denied(&answers);
            answers.confirmed = witness.confirm(until, None).await;
        }
        answers
    }

    fn clock(&self) -> &dyn Clock {
        self.test_clock.as_deref().unwrap_or(&SystemClock)
    }
}

/// A check in a queue.
struct Waiting {
    check: Arc<Check>,
    until: Instant,
    answer: oneshot::Sender<Told>,
    _place: OwnedSemaphorePermit,
}

impl Waiting {
    /// Tells a caller that nothing was sent, unless he has gone already.
    fn dismiss(self, why: &LinkError) {
        if self.check.claim() {
            let _ = self.answer.send(Err(unavailable(why.clone(), false)));
        }
    }
}
