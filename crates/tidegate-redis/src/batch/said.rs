//! What the script answers to checks.

use std::sync::Arc;

use redis::Value;
use tidegate::{Call, Decision, EngineError, Micros, Source, Verdict, Wait};

use super::Told;
use super::form::Group;
use crate::link::LinkError;
use crate::reply::{Unreadable, unavailable, unreadable};
use crate::request::{Beside, Part};
use crate::seen::Seen;

/// What was answered to the groups of a batch.
pub(super) struct Answers {
    pub(super) said: Vec<Result<Arc<Said>, EngineError>>,
    /// Replicas have what was charged, or are not asked.
    pub(super) confirmed: Result<(), EngineError>,
}

impl Answers {
    pub(super) fn read(answer: Result<Value, LinkError>, groups: &[Group]) -> Self {
        Self { said: Said::all(answer, groups), confirmed: Ok(()) }
    }

    /// Is anybody admitted?
    pub(super) fn admit(&self) -> bool {
        (0..self.said.len()).any(|place| self.admitted(place) > 0)
    }

    /// How many of a group are admitted: the first ones.
    pub(super) fn admitted(&self, place: usize) -> usize {
        match self.said.get(place) {
            Some(Ok(said)) => usize::try_from(said.allowed()).unwrap_or(usize::MAX),
            _ => 0,
        }
    }

    /// What the `nth` of a group is told, who passes only if that is confirmed.
    pub(super) fn told(&self, place: usize, nth: u64) -> Told {
        let said = self.said.get(place).cloned();
        let said = said.unwrap_or_else(|| Err(EngineError::unavailable(Unreadable)))?;
        if nth <= said.allowed() {
            self.confirmed.clone()?;
        }
        Ok((said, nth))
    }
}

/// The answer to a group of equal checks.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
pub(super) enum Outcome {
    Decided(Decided),
    /// No calendar window that was sent holds Redis's now, which is this.
    Elsewhen(Micros),
    /// What each part needs beside its state, and did not get.
    Missing(Vec<Beside>),
}

#[derive(Debug)]
pub(super) struct Decided {
    /// How many were allowed: the first ones.
    allowed: u64,
    /// How each part stands after the last of these; none if there is none.
    charged: Vec<Charged>,
    /// What each part says to those that it was not charged for; none if there is none of them.
    others: Vec<(Verdict, u64)>,
}

#[derive(Debug)]
struct Charged {
    /// For how many: all that were allowed, or fewer if it only looks on.
    times: u64,
    delay: Micros,
    remaining: u64,
    reset_after: Micros,
    held: u64,
}

impl Said {
    /// What was said about each of these groups.
    pub(super) fn all(
        answer: Result<Value, LinkError>,
        groups: &[Group],
    ) -> Vec<Result<Arc<Self>, EngineError>> {
        let same = |error: &EngineError| groups.iter().map(|_| Err(error.clone())).collect();
        match answer {
            Ok(Value::Array(values)) if values.len() == groups.len() => values
                .into_iter()
                .zip(groups)
                .map(|(value, group)| Self::one(value, group))
                .collect(),
            Ok(_) => same(&unreadable(true)),
            Err(error) => same(&unavailable(error, true)),
        }
    }

    fn one(value: Value, group: &Group) -> Result<Arc<Self>, EngineError> {
        match value {
            Value::ServerError(error) => {
                Err(unavailable(LinkError::Reply(Arc::new(error.into())), true))
            }
            Value::Array(values) => {
                let mut numbers = Numbers(values.into_iter());
                let outcome = Outcome::read(&mut numbers, group.times(), &group.check.parts);
                // A number too many is as strange as one too few.
                let outcome = outcome.filter(|_| numbers.next().is_none());
                outcome.map(|outcome| Arc::new(Self { outcome })).ok_or_else(|| unreadable(true))
            }
            _ => Err(unreadable(true)),
        }
    }

    fn allowed(&self) -> u64 {
        match &self.outcome {
            Outcome::Decided(decided) => decided.allowed,
            Outcome::Elsewhen(_) | Outcome::Missing(_) => 0,
        }
    }

    /// Remembers which states have holds. Holds that have ended stay until somebody writes.
    pub(super) fn teach(&self, seen: &Seen, states: &[String]) {
        let Outcome::Decided(decided) = &self.outcome else { return };
        for (place, state) in states.iter().enumerate() {
            if decided.held(place) > 0 {
                seen.remember(state);
            } else if decided.allowed > 0 {
                seen.forget(state);
            }
        }
    }
}

impl Outcome {
    fn read(numbers: &mut Numbers, times: u64, parts: &[Part]) -> Option<Self> {
        let (status, now) = (numbers.next()?, numbers.natural()?);
        match status {
            0 => Some(Self::Elsewhen(Micros::new(now))),
            1 => Decided::read(numbers, times, parts).map(Self::Decided),
            8 => {
                let missing = parts.iter().map(|_| Beside::from_number(numbers.next()?));
                missing.collect::<Option<_>>().map(Self::Missing)
            }
            _ => None,
        }
    }
}

impl Decided {
    fn read(numbers: &mut Numbers, times: u64, parts: &[Part]) -> Option<Self> {
        let allowed = numbers.natural().filter(|allowed| *allowed <= times)?;
        let mut charged = Vec::new();
        if allowed > 0 {
            charged = parts.iter().map(|_| Charged::read(numbers)).collect::<Option<_>>()?;
        }
        let mut others = Vec::new();
        if allowed < times || charged.iter().any(|part| part.times < allowed) {
            others = parts.iter().map(|part| numbers.verdict(part)).collect::<Option<_>>()?;
        }
        Some(Self { allowed, charged, others })
    }

    fn held(&self, place: usize) -> u64 {
        let after = self.charged.get(place).map(|part| part.held);
        after.or_else(|| self.others.get(place).map(|(_, held)| *held)).unwrap_or(0)
    }

    /// The decision on the `nth` of the checks, a call whose charges lie at these places among the
    /// parts.
    pub(super) fn decision(
        &self,
        nth: u64,
        call: &Call<'_>,
        parts: &[Part],
        places: &[usize],
    ) -> Result<Decision, EngineError> {
        let mut decision = Decision::new(Source::Redis, Default::default());
        for (charge, place) in call.charges.iter().zip(places) {
            let verdict = parts.get(*place).and_then(|part| self.verdict(nth, *place, part));
            decision.push(charge.limit, verdict.ok_or_else(|| unreadable(true))?);
        }
        Ok(decision)
    }

    fn verdict(&self, nth: u64, place: usize, part: &Part) -> Option<Verdict> {
        match self.charged.get(place) {
            Some(charged) if nth <= charged.times => Some(Verdict {
                allowed: true,
                retry_after: Wait::NONE,
                delay: charged.delay,
                limit: part.limit.limit().capacity(),
                // Those behind him have taken theirs as well.
                remaining: (charged.times - nth)
                    .saturating_mul(part.cost.get())
                    .saturating_add(charged.remaining),
                reset_after: charged.reset_after,
            }),
            _ => self.others.get(place).map(|(verdict, _)| *verdict),
        }
    }
}

impl Charged {
    fn read(numbers: &mut Numbers) -> Option<Self> {
        Some(Self {
            times: numbers.natural()?,
            delay: Micros::new(numbers.natural()?),
            remaining: numbers.natural()?,
            reset_after: Micros::new(numbers.natural()?),
            held: numbers.natural()?,
        })
    }
}

/// The numbers of a reply, one after the other.
struct Numbers(std::vec::IntoIter<Value>);

impl Numbers {
    fn next(&mut self) -> Option<i64> {
        match self.0.next() {
            Some(Value::Int(number)) => Some(number),
            _ => None,
        }
    }

    fn natural(&mut self) -> Option<u64> {
        u64::try_from(self.next()?).ok()
    }

    /// A verdict, and what is held.
    fn verdict(&mut self, part: &Part) -> Option<(Verdict, u64)> {
        let allowed = self.next()? == 1;
        let retry_after = match self.next()? {
            -1 => Wait::Never,
            span => Wait::For(Micros::new(u64::try_from(span).ok()?)),
        };
        let verdict = Verdict {
            allowed,
            retry_after,
            delay: Micros::new(self.natural()?),
            limit: part.limit.limit().capacity(),
            remaining: self.natural()?,
            reset_after: Micros::new(self.natural()?),
        };
        Some((verdict, self.natural()?))
    }
}
