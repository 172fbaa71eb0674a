//! One attempt to take what lies in several slots, at most once under an id.
//!
//! The id's record lies in the first part's slot, its home, as it does where there is but one slot.
//! What is taken there is taken together with the record, and that is the step that decides: the other
//! slots are held before it and charged after it. What they hold to be charged is named after the id.
//! So of two attempts one finds that the other is there; and what was left behind by one that was never
//! heard of again is charged at its end, and the next attempt finds it charged.

use std::ops::Range;

use tidegate::{Decision, EngineError, Op, Refusal};
use tokio::time::Instant;

use super::verdicts::Verdicts;
use super::{
    Asked, Role, Unit, all_ended, leaving_time_to_drop, not_ended, perhaps, side_by_side, worse,
};
use crate::engine::Redis;
use crate::keys::Secret;
use crate::reply::{Reply, refusal};
use crate::request::{Once, Request};
use crate::unheard::Unheard;

pub(super) struct Attempt<'a> {
    engine: &'a Redis,
    until: Instant,
    /// Until when slots are asked to take anything.
    soon: Instant,
    /// The id, in the slots of `units`.
    ids: Vec<Once>,
    home: Unit,
    holds: bool,
    /// What the other slots are asked.
    units: Vec<Unit>,
    shares: Vec<Share>,
    unheard: Unheard<'a>,
    /// What the limits say; before anything is taken, unless it was decided.
    verdicts: Verdicts<'a>,
}

/// What became of a unit.
enum Share {
    /// It was not taken.
    None,
    /// It is held by this attempt.
    Ours(Option<Reply>),
    /// An earlier attempt has held it, and it was charged, at its end or before.
    Earlier,
}

/// Why an attempt goes no further.
enum Stop {
    Denied,
    /// Another attempt is under way.
    Busy,
    Failed(EngineError),
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        engine: &'a Redis,
        asked: &'a Asked<'a>,
        slots: &[Vec<usize>],
        secret: &Secret,
        once: &Once,
        verdicts: Verdicts<'a>,
    ) -> Result<Self, EngineError> {
        let (home, others) = slots.split_at(1);
        let holds = matches!(asked.call.op, Op::Hold { .. });
        let home = if holds {
            engine.units(asked, home, once.hold_id(secret))?.pop().ok_or(Refusal::EmptyHold)?
        } else {
            Unit::new(asked, home.concat(), Request::new("check"), Role::Look)
        };
        let home = Unit { request: Request { once: Some(once.clone()), ..home.request }, ..home };
        let mut units = engine.units(asked, others, once.hold_id(secret))?;
        // Those have said what they have to say.
        units.retain(|unit| unit.role != Role::Look);
        let ids: Vec<Once> = units.iter().map(|unit| once.at(unit.parts[0].tag, secret)).collect();
        for (unit, id) in units.iter_mut().zip(&ids).filter(|(unit, _)| unit.role == Role::Charge) {
            // One that comes late, when another attempt has charged and nobody waits for it any
            // more, must not be charged at its end.
            unit.request.once = Some(id.clone());
        }
        let unheard = Unheard::new(engine, vec![None; units.len()]);
        let shares = Vec::new();
        let (until, soon) = (asked.until, leaving_time_to_drop(asked.until));
        Ok(Self { engine, until, soon, ids, home, holds, units, shares, unheard, verdicts })
    }

    /// No decision if another attempt is under way.
    pub(super) async fn run(mut self) -> Result<Option<Decision>, EngineError> {
        // Whoever has the first goes on: two that take all side by side could stop each other.
        let first = self.units.len().min(1);
        for range in [0..first, first..self.units.len()] {
            if let Some(stop) = self.hold(range).await? {
                return self.stop(stop).await;
            }
        }
        // From here on it may be decided: what is held stays, and is charged at its end.
        self.unheard.leave();
        let Unit { request, parts, .. } = &self.home;
        match self.engine.ask(request.clone(), parts, self.soon).await {
            Err(error @ EngineError::Ambiguous(_)) => Err(error),
            Err(error) => self.stop(Stop::Failed(error)).await,
            // Somebody else has made it meanwhile.
            Ok(reply) if reply.repeats()? && self.holds => self.stop(Stop::Busy).await,
            Ok(reply) if reply.repeats()? => self.charge().await.map(|()| None),
            Ok(reply) => {
                self.verdicts.say(&self.home, &reply)?;
                if !self.verdicts.allowed() {
                    return self.stop(Stop::Denied).await;
                }
                self.charge().await?;
                let mut decision = self.verdicts.decision();
                let place = self.home.parts[0].tag.0;
                decision.details_mut().hold =
                    reply.id(4).filter(|_| self.holds).map(|id| id.at(place));
                Ok(Some(decision))
            }
        }
    }

    /// Holds some of the units.
    async fn hold(&mut self, range: Range<usize>) -> Result<Option<Stop>, EngineError> {
        let (engine, soon) = (self.engine, self.soon);
        for place in range.clone() {
            self.unheard.set(place, self.units[place].end());
        }
        let asks = self.units[range.clone()].iter();
        let asks = asks.map(|unit| engine.converse(unit.request.clone(), &unit.parts, soon));
        let answers = side_by_side(asks.collect()).await;
        let (mut failed, mut busy, mut denied) = (None, false, false);
        for (place, answer) in range.zip(answers) {
            let unit = &self.units[place];
            let mut share = Share::None;
            match answer {
                Err(error) => {
                    if matches!(error, EngineError::Ambiguous(_)) {
                        share = Share::Ours(None);
                    }
                    failed = worse(failed, error);
                }
                Ok(reply) => match reply.number(0)? {
                    1 if reply.id(4).is_some() => share = Share::Ours(Some(reply)),
                    1 => {
                        self.verdicts.say(unit, &reply)?;
                        denied = true;
                    }
                    5 if unit.role == Role::Charge && reply.number(2)? == 0 => {
                        share = Share::Earlier;
                    }
                    5 if unit.role == Role::Charge => busy = true,
                    6 => share = Share::Earlier,
                    _ => failed = worse(failed, refusal(&reply)),
                },
            }
            if !matches!(share, Share::Ours(_)) {
                self.unheard.set(place, None);
            }
            self.shares.push(share);
        }
        Ok(match failed {
            Some(error) => Some(Stop::Failed(error)),
            None if busy => Some(Stop::Busy),
            None if denied => Some(Stop::Denied),
            None => None,
        })
    }

    /// Drops what this attempt holds, and says what came of it.
    async fn stop(&mut self, stop: Stop) -> Result<Option<Decision>, EngineError> {
        for (place, share) in self.shares.iter().enumerate() {
            if matches!(share, Share::Ours(_)) {
                self.unheard.set(place, self.units[place].end());
            }
        }
        let ended = self.unheard.drop_all(self.until).await;
        match (stop, not_ended(&self.units, &ended)) {
            (Stop::Failed(error), _) if all_ended(&ended) => Err(error),
            (Stop::Failed(error), _) => Err(perhaps(error)),
            (_, Some(error)) => Err(error),
            (Stop::Busy, None) => Ok(None),
            (Stop::Denied, None) => Ok(Some(self.verdicts.decision())),
        }
    }

    /// It is decided: charges what is held to be charged. The caller's own holds stay.
    async fn charge(&mut self) -> Result<(), EngineError> {
        for (place, unit) in self.units.iter().enumerate() {
            if let Share::Ours(Some(reply)) = &self.shares[place] {
                self.verdicts.say(unit, reply)?;
            }
            if unit.role == Role::Charge {
                self.unheard.set(place, unit.charge(Some(self.ids[place].clone())));
            }
        }
        let ended = self.unheard.charge_all(self.until).await;
        self.verdicts.after(&self.units, &ended)?;
        for (place, ended) in ended.iter().enumerate() {
            if let Some(Ok(reply)) = ended
                && reply.repeats()?
            {
                // Charged before: what is held here is one too many.
                self.unheard.set(place, self.units[place].end());
            }
        }
        Ok(())
    }
}
