//! Holds of which nobody will hear: made perhaps, and nobody but this engine knows to end them.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{EngineError, HoldId};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::across::side_by_side;
use crate::engine::Redis;
use crate::reply::Reply;
use crate::request::{Once, Part, Request};

/// How holds are to end that a call has made or is about to make. Whatever is left when this is
/// dropped, because the call was dropped or had no answer, is done from a task of its own. Without a
/// runtime, or if Redis does not answer that either, their deadline ends them. What an entry has
/// charged beside its places stays charged.
pub(crate) struct Unheard<'a> {
    engine: &'a Redis,
    /// One for each of the call's holds; `None` once there is nothing to do about it.
    ends: Vec<Option<End>>,
}

/// What ends one hold.
#[derive(Clone)]
pub(crate) struct End {
    request: Request,
    parts: Vec<Part>,
}

impl End {
    /// Charges nothing, and forgets that there was a hold, if it is that of this record.
    pub(crate) fn drop(id: HoldId, record: String, parts: Vec<Part>) -> Self {
        Self { request: Request { record, ..Self::request("drop", id) }, parts }
    }

    /// Charges what was held; under an id, not twice.
    pub(crate) fn charge(id: HoldId, once: Option<Once>, parts: Vec<Part>) -> Self {
        Self { request: Request { once, ..Self::request("settle", id) }, parts }
    }

    /// Replicas need not have it: a hold that they still have is charged at its end, or released.
    fn request(op: &'static str, id: HoldId) -> Request {
        Request { hold: Some(id), confirmed: false, ..Request::new(op) }
    }

    fn charges(&self) -> bool {
        self.request.op == "settle"
    }
}

/// The answer to what was done about a hold; none if there was nothing to do.
pub(crate) type Ended = Option<Result<Reply, EngineError>>;

impl<'a> Unheard<'a> {
    /// How many tasks of an engine end holds at a time. Beyond that, deadlines end them.
    pub(crate) const MOST_AT_ONCE: usize = 1_024;
    /// The pauses before each attempt. One more makes no sense to whoever is waiting for the
    /// permits: most holds have ended by then.
    const PAUSES: [Duration; 4] = [
        Duration::ZERO,
        Duration::from_millis(100),
        Duration::from_secs(1),
        Duration::from_secs(10),
    ];

    pub(crate) fn new(engine: &'a Redis, ends: Vec<Option<End>>) -> Self {
        Self { engine, ends }
    }

    /// From now on, this is what is to be done about the hold at `place`.
    pub(crate) fn set(&mut self, place: usize, end: Option<End>) {
        self.ends[place] = end;
    }

    /// Somebody else takes care of all that would only be dropped.
    pub(crate) fn keep_the_rest(&mut self) {
        for end in &mut self.ends {
            end.take_if(|end| !end.charges());
        }
    }

    /// Nothing is to be done: what is held is charged or released at its deadline.
    pub(crate) fn leave(&mut self) {
        self.ends.fill(None);
    }

    /// Drops all holds, side by side.
    pub(crate) async fn drop_all(&mut self, until: Instant) -> Vec<Ended> {
        self.end(until, |_| true).await
    }

    /// Charges those that are to be charged, side by side.
    pub(crate) async fn charge_all(&mut self, until: Instant) -> Vec<Ended> {
        self.end(until, End::charges).await
    }

    async fn end(&mut self, until: Instant, which: impl Fn(&End) -> bool) -> Vec<Ended> {
        let engine = self.engine;
        let due = self.ends.iter().map(|end| {
            let end = end.clone().filter(|end| which(end));
            async move {
                let End { request, parts } = end?;
                Some(engine.ask(request, &parts, until).await)
            }
        });
        let ended = side_by_side(due.collect()).await;
        // On one connection, what was sent before has been done before. A hold that is to be confirmed has
        // gone by another, and may come yet.
        let in_order = engine.route.confirmed_by() == 0;
        for (end, answer) in self.ends.iter_mut().zip(&ended) {
            let is_over = match answer {
                Some(Ok(_)) => true,
                Some(Err(error)) => in_order && error.refusal().is_some(),
                None => false,
            };
            if is_over {
                *end = None;
            }
        }
        ended
    }
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        let ends = std::mem::take(&mut self.ends);
        let Ok(runtime) = Handle::try_current() else { return };
        if ends.iter().all(Option::is_none) {
            return;
        }
        // Under a server that answers nobody in time there could be one for every call.
        let Ok(permit) = Arc::clone(&self.engine.enders).try_acquire_owned() else { return };
        let engine = self.engine.twin();
        runtime.spawn(async move {
            let _permit = permit;
            let mut unheard = Unheard::new(&engine, ends);
            for pause in Self::PAUSES {
                sleep(pause).await;
                unheard.end(engine.route.deadline(), |_| true).await;
                if unheard.ends.iter().all(Option::is_none) {
                    return;
                }
            }
            unheard.leave();
        });
    }
}
