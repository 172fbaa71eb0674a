//! Calls whose subjects lie in several slots of a Cluster, where no script can see all of them.
//!
//! What would be charged is held in every slot first, for a short time and so that it is charged at
//! its end. If all slots allow it, the holds are charged; if one does not, they are dropped. A hold
//! that nobody ends is charged, so whatever is lost on the way, never does more pass than allowed.
//!
//! # Layout
//!
//! - `Unit` is what one slot is asked in one step. Here are the calls that take something; `held` has
//!   those about a hold, `once` those under an id and those that need not be all or none, and
//!   `attempt` what is taken under an id. `verdicts` puts together what the slots say.

mod attempt;
mod held;
mod once;
mod verdicts;

use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tidegate::{Call, Decision, EngineError, Expiry, HoldId, Micros, Op};
use tokio::time::Instant;

use crate::engine::{Redis, record_of};
use crate::keys::Secret;
use crate::request::{Once, Part, Request, check_ttl};
use crate::slot::Slot;
use crate::unheard::{End, Ended, Unheard};
use verdicts::Verdicts;

/// How much longer than the call a hold lasts that is to be charged: it should not have ended when the
/// call comes to charge it, however slowly that comes.
const BEYOND: Duration = Duration::from_secs(1);

/// A call, its parts, and the place of each charge among them.
pub(crate) struct Asked<'a> {
    pub(crate) call: Call<'a>,
    pub(crate) parts: Vec<Part>,
    pub(crate) places: Vec<usize>,
    pub(crate) until: Instant,
}

/// What one slot is asked in one step.
struct Unit {
    /// Which parts of the call.
    places: Vec<usize>,
    parts: Vec<Part>,
    request: Request,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Nothing is taken.
    Look,
    /// What is held here is charged when all slots have allowed it.
    Charge,
    /// What is held here is the caller's own hold.
    Hold,
}

impl Redis {
    /// The places of these parts, slot by slot. There is but one where one command may have keys of
    /// all of them.
    pub(crate) fn by_slot(&self, parts: &[Part]) -> Vec<Vec<usize>> {
        if self.route.spans_slots() && !self.slots_apart {
            return vec![(0..parts.len()).collect()];
        }
        let mut slots: Vec<(Slot, Vec<usize>)> = Vec::new();
        for (place, part) in parts.iter().enumerate() {
            let slot = Slot::of(&self.state_key(part));
            match slots.iter_mut().find(|(other, _)| *other == slot) {
                Some((_, places)) => places.push(place),
                None => slots.push((slot, vec![place])),
            }
        }
        slots.into_iter().map(|(_, places)| places).collect()
    }

    /// Decides a call over several slots.
    pub(crate) async fn across(
        &self,
        asked: Asked<'_>,
        slots: &[Vec<usize>],
        secret: &Secret,
    ) -> Result<Decision, EngineError> {
        let nothing = asked.parts.iter().all(|part| part.cost.is_zero());
        match (asked.call.op, asked.call.once) {
            (Op::Check | Op::Enter { .. }, _) if nothing => {
                self.each(&asked, slots, "peek", secret).await
            }
            (Op::Peek, _) => self.each(&asked, slots, "peek", secret).await,
            (Op::Record, _) => self.each(&asked, slots, "record", secret).await,
            (Op::Refund, _) => self.each(&asked, slots, "refund", secret).await,
            (Op::Reset, _) => self.each(&asked, slots, "reset", secret).await,
            (_, Some(id)) => self.take_once(&asked, slots, secret, id).await,
            (_, None) => self.take(&asked, slots).await,
        }
    }

    /// Holds in every slot, then charges or drops. The caller's own holds stay.
    async fn take(&self, asked: &Asked<'_>, slots: &[Vec<usize>]) -> Result<Decision, EngineError> {
        let until = asked.until;
        let units = self.units(asked, slots, HoldId::random()?)?;
        let mut unheard = Unheard::new(self, units.iter().map(Unit::end).collect());
        let soon = leaving_time_to_drop(until);
        let asks = units.iter().map(|unit| self.ask(unit.request.clone(), &unit.parts, soon));
        let answers = side_by_side(asks.collect()).await;
        let mut verdicts = Verdicts::new(asked);
        let mut failed = None;
        for (place, (unit, answer)) in units.iter().zip(answers).enumerate() {
            let made = match answer {
                Ok(reply) => {
                    verdicts.say(unit, &reply)?;
                    reply.id(4).is_some()
                }
                Err(error) => {
                    let made = matches!(error, EngineError::Ambiguous(_));
                    failed = worse(failed, error);
                    made
                }
            };
            if !made {
                unheard.set(place, None);
            }
        }
        if let Some(error) = failed {
            let ended = unheard.drop_all(until).await;
            return Err(if all_ended(&ended) { error } else { perhaps(error) });
        }
        if !verdicts.allowed() {
            let ended = unheard.drop_all(until).await;
            verdicts.without(&units, &ended)?;
            // The caller may ask again under this name, so it must not be dropped behind his back.
            return not_ended(&units, &ended).map_or_else(|| Ok(verdicts.decision()), Err);
        }
        for (place, unit) in units.iter().enumerate().filter(|(_, unit)| unit.role == Role::Charge)
        {
            unheard.set(place, unit.charge(None));
        }
        let ended = unheard.charge_all(until).await;
        verdicts.after(&units, &ended)?;
        let mut decision = verdicts.decision();
        decision.details_mut().hold = own_hold(&units);
        if matches!(asked.call.op, Op::Enter { .. }) && !verdicts.holds(&units) {
            // What only looks on has no place to give: there is nothing to leave.
            decision.details_mut().hold = None;
            unheard.drop_all(until).await;
        }
        unheard.keep_the_rest();
        Ok(decision)
    }

    /// What each slot is asked. What is to be charged is held under `id`.
    fn units(
        &self,
        asked: &Asked<'_>,
        slots: &[Vec<usize>],
        id: HoldId,
    ) -> Result<Vec<Unit>, EngineError> {
        let Asked { call, parts, .. } = asked;
        let of_request = matches!(call.op, Op::Enter { .. } | Op::Visit { .. } | Op::Lend { .. });
        let is_held = |place: &usize| call.op.sets_aside(parts[*place].limit.limit());
        let all_held: Vec<usize> = (0..parts.len()).filter(is_held).collect();
        let left = asked.until.saturating_duration_since(Instant::now());
        let short = Micros::from(left.saturating_add(BEYOND)).min(HoldId::MAX_TTL);
        let mut units = Vec::new();
        for slot in slots {
            let (held, rest): (Vec<usize>, Vec<usize>) = slot.iter().partition(|p| is_held(p));
            let (looks, charged): (Vec<usize>, Vec<usize>) =
                rest.into_iter().partition(|place| parts[*place].cost.is_zero());
            if !looks.is_empty() {
                units.push(Unit::new(asked, looks, Request::new("peek"), Role::Look));
            }
            if let Some(first) = charged.first() {
                let hold = Some(id.at(parts[*first].tag.0));
                // Nobody finds it but this call, which must not drop what another one holds.
                let record = HoldId::random()?.to_string();
                let head = Request::new("visit");
                let request = Request { hold, ttl: short, expiry: Expiry::Charge, record, ..head };
                units.push(Unit::new(asked, charged, request, Role::Charge));
            }
            if let (Some((id, ttl, expiry)), Some(first)) = (call.op.hold(), held.first()) {
                check_ttl(ttl, all_held.iter().map(|place| &parts[*place]))?;
                let hold = Some(id.at(parts[*first].tag.0));
                // Every slot can be settled by its own record; the first names all of them.
                let named = if all_held.first() == Some(first) { &all_held } else { &held };
                let record = record_of(named.iter().map(|place| &parts[*place]));
                let head = Request::new(if of_request { "visit" } else { "hold" });
                let request = Request { hold, ttl, expiry, record, ..head };
                units.push(Unit::new(asked, held, request, Role::Hold));
            }
        }
        Ok(units)
    }
}

impl Unit {
    fn new(asked: &Asked<'_>, places: Vec<usize>, request: Request, role: Role) -> Self {
        let parts = places.iter().map(|place| asked.parts[*place].clone()).collect();
        Self { places, parts, request, role }
    }

    /// What drops its hold.
    fn end(&self) -> Option<End> {
        Some(End::drop(self.request.hold?, self.request.record.clone(), self.parts.clone()))
    }

    /// What charges its hold.
    fn charge(&self, once: Option<Once>) -> Option<End> {
        Some(End::charge(self.request.hold?, once, self.parts.clone()))
    }
}

/// Until when slots are asked to hold. If one of them does not answer by then, a fifth of the time is left
/// to drop what the others hold, and to tell the caller that nothing was charged.
fn leaving_time_to_drop(until: Instant) -> Instant {
    until - until.saturating_duration_since(Instant::now()) / 5
}

/// The caller's own hold: its record lies with the first part that is held.
fn own_hold(units: &[Unit]) -> Option<HoldId> {
    let own = units.iter().filter(|unit| unit.role == Role::Hold);
    own.min_by_key(|unit| unit.places.first().copied())?.request.hold
}

/// What all of them come to, when the last has.
pub(crate) async fn side_by_side<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut under_way: Vec<_> =
        futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|cx| {
        for (future, done) in under_way.iter_mut().filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                *done = Some(output);
            }
        }
        if under_way.iter().all(|(_, done)| done.is_some()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    under_way.into_iter().filter_map(|(_, done)| done).collect()
}

/// Of two errors that which says more was done: perhaps something, then nothing, then a refusal.
fn worse(one: Option<EngineError>, other: EngineError) -> Option<EngineError> {
    let rank = |error: &EngineError| match error {
        EngineError::Ambiguous(_) => 2,
        EngineError::Unavailable(_) => 1,
        _ => 0,
    };
    Some(one.filter(|one| rank(one) >= rank(&other)).unwrap_or(other))
}

/// The same error of a call of which something may have been done.
fn perhaps(error: EngineError) -> EngineError {
    match error {
        EngineError::Unavailable(cause) => EngineError::Ambiguous(Arc::new(Partly(cause))),
        error => error,
    }
}

/// What happened in one slot says nothing about the others.
#[derive(Debug)]
struct Partly(Arc<dyn Error + Send + Sync>);

impl fmt::Display for Partly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one of several subjects has no answer, others may have been charged: {}", self.0)
    }
}

impl Error for Partly {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

fn all_ended(ended: &[Ended]) -> bool {
    ended.iter().all(|ended| no_answer(ended).is_none())
}

/// Why it is not known that all holds of the caller's own have ended; none if they have.
fn not_ended(units: &[Unit], ended: &[Ended]) -> Option<EngineError> {
    let own = units.iter().zip(ended).filter(|(unit, _)| unit.role == Role::Hold);
    own.filter_map(|(_, ended)| no_answer(ended)).next()
}

/// Why it is not known that a hold has ended; none if it has.
fn no_answer(ended: &Ended) -> Option<EngineError> {
    match ended {
        Some(Err(error)) if error.refusal().is_none() => Some(error.clone()),
        _ => None,
    }
}
