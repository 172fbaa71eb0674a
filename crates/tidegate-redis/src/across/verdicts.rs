//! What the slots of a call say, put together as one server would say it.

use tidegate::{Decision, EngineError, Source, Verdict, Wait};

use super::{Asked, Role, Unit};
use crate::reply::Reply;
use crate::unheard::Ended;

/// What each part says.
pub(super) struct Verdicts<'a> {
    asked: &'a Asked<'a>,
    said: Vec<Option<Verdict>>,
}

impl<'a> Verdicts<'a> {
    pub(super) fn new(asked: &'a Asked<'a>) -> Self {
        Self { asked, said: vec![None; asked.parts.len()] }
    }

    pub(super) fn say(&mut self, unit: &Unit, reply: &Reply) -> Result<(), EngineError> {
        for (index, place) in unit.places.iter().enumerate() {
            let capacity = self.asked.parts[*place].limit.limit().capacity();
            self.said[*place] = Some(reply.verdict(index, capacity)?);
        }
        Ok(())
    }

    /// All limits that decide allow it.
    pub(super) fn allowed(&self) -> bool {
        let deciding =
            self.said.iter().zip(&self.asked.parts).filter(|(_, p)| !p.limit.is_shadow());
        deciding.filter_map(|(said, _)| said.as_ref()).all(|verdict| verdict.allowed)
    }

    /// Is anything held of the caller's own holds?
    pub(super) fn holds(&self, units: &[Unit]) -> bool {
        let own = units.iter().filter(|unit| unit.role == Role::Hold);
        let mut places = own.flat_map(|unit| &unit.places);
        places.any(|place| self.said[*place].is_some_and(|verdict| verdict.allowed))
    }

    /// Denied: what was held is no more.
    pub(super) fn without(&mut self, units: &[Unit], ended: &[Ended]) -> Result<(), EngineError> {
        for (unit, ended) in units.iter().zip(ended) {
            let reply = ended.as_ref().and_then(|answer| answer.as_ref().ok());
            for (index, place) in unit.places.iter().enumerate() {
                let cost = self.asked.parts[*place].cost.get();
                let Some(verdict) = self.said[*place].as_mut() else { continue };
                match reply {
                    Some(reply) => {
                        let now = reply.verdict(index, verdict.limit)?;
                        (verdict.remaining, verdict.reset_after) = (now.remaining, now.reset_after);
                    }
                    // It will be dropped yet.
                    None if ended.is_some() && verdict.allowed => verdict.remaining += cost,
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Allowed: what was held is charged.
    pub(super) fn after(&mut self, units: &[Unit], ended: &[Ended]) -> Result<(), EngineError> {
        for (unit, ended) in units.iter().zip(ended) {
            let Some(answer) = ended else { continue };
            for (index, place) in unit.places.iter().enumerate() {
                let Some(verdict) = self.said[*place].as_mut().filter(|v| v.allowed) else {
                    continue;
                };
                let mut turn = None;
                if let Ok(reply) = answer {
                    let now = reply.verdict(index, verdict.limit)?;
                    (verdict.remaining, verdict.reset_after) = (now.remaining, now.reset_after);
                    turn = Some(now.delay).filter(|_| !reply.expired());
                }
                // Charged at its end, it has the turn behind all that is known now.
                let is_queue = self.asked.parts[*place].limit.limit().is_queue();
                verdict.delay = match turn {
                    Some(turn) => turn,
                    None if is_queue => verdict.reset_after,
                    None => verdict.delay,
                };
            }
        }
        Ok(())
    }

    /// What those said that decide, when they did. False if they were others.
    pub(super) fn keep(&mut self, unit: &Unit, kept: &[Verdict]) -> bool {
        let deciding = |place: &&usize| !self.asked.parts[**place].limit.is_shadow();
        let places: Vec<usize> = unit.places.iter().filter(deciding).copied().collect();
        if places.len() != kept.len() {
            return false;
        }
        for (place, verdict) in places.into_iter().zip(kept) {
            self.said[place] = Some(*verdict);
        }
        true
    }

    /// What those of a unit say that decide.
    pub(super) fn deciding(&self, unit: &Unit) -> Vec<Verdict> {
        let deciding = |place: &&usize| !self.asked.parts[**place].limit.is_shadow();
        unit.places.iter().filter(deciding).filter_map(|place| self.said[*place]).collect()
    }

    pub(super) fn allow_all(&mut self) {
        self.said.iter_mut().flatten().for_each(allow);
    }

    pub(super) fn decision(&self) -> Decision {
        let mut decision = Decision::new(Source::Redis, Default::default());
        for (charge, place) in self.asked.call.charges.iter().zip(&self.asked.places) {
            if let Some(verdict) = self.said[*place] {
                decision.push(charge.limit, verdict);
            }
        }
        decision
    }
}

/// What was charged was allowed, whatever would be now.
pub(super) fn allow(verdict: &mut Verdict) {
    (verdict.allowed, verdict.retry_after) = (true, Wait::NONE);
}
