//! What the scripts answer.

use std::fmt;
use std::sync::Arc;

use redis::Value;
use tidegate::{
    Call, Cost, Decision, EngineError, HoldId, Inspection, Micros, Misfit, Refusal, RuleLimit,
    Source, Standing, Verdict, Wait,
};

use crate::classify::Meaning;
use crate::link::LinkError;
use crate::request::{Beside, Part};

/// What a script returned.
#[derive(Debug)]
pub(crate) struct Reply {
    values: Vec<Value>,
    /// The script may have written.
    writes: bool,
}

impl Reply {
    const HEAD: usize = 5;
    const PER_PART: usize = 7;

    /// The reply of a script that may have written, if it `writes`.
    pub(crate) fn new(answer: Value, writes: bool) -> Result<Self, EngineError> {
        match answer {
            Value::Array(values) => Ok(Self { values, writes }),
            _ => Err(unreadable(writes)),
        }
    }

    pub(crate) fn unreadable(&self) -> EngineError {
        unreadable(self.writes)
    }

    pub(crate) fn number(&self, place: usize) -> Result<i64, EngineError> {
        match self.values.get(place) {
            Some(Value::Int(number)) => Ok(*number),
            _ => Err(self.unreadable()),
        }
    }

    pub(crate) fn natural(&self, place: usize) -> Result<u64, EngineError> {
        u64::try_from(self.number(place)?).map_err(|_| self.unreadable())
    }

    pub(crate) fn id(&self, place: usize) -> Option<HoldId> {
        match self.values.get(place) {
            Some(Value::BulkString(id)) => std::str::from_utf8(id).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// What a part wants to come beside its state, in a reply that says so.
    pub(crate) fn missing(&self, part: usize) -> Result<Beside, EngineError> {
        Beside::from_number(self.number(2 + part)?).ok_or_else(|| self.unreadable())
    }

    /// What is held of a part.
    pub(crate) fn held(&self, part: usize) -> Result<u64, EngineError> {
        self.natural(Self::HEAD + Self::PER_PART * part + 6)
    }

    /// The hold had ended before.
    pub(crate) fn expired(&self) -> bool {
        matches!(self.number(3), Ok(1))
    }

    pub(crate) fn repeats(&self) -> Result<bool, EngineError> {
        Ok(self.number(0)? == 6)
    }

    /// The parts of a reply that tells the capacity of each.
    fn parts_with_capacity(&self) -> usize {
        self.values.len().saturating_sub(Self::HEAD) / (Self::PER_PART + 1)
    }

    /// The capacity of a part, in a reply that tells it.
    pub(crate) fn capacity(&self, part: usize) -> Result<u64, EngineError> {
        self.natural(Self::HEAD + Self::PER_PART * self.parts_with_capacity() + part)
    }

    pub(crate) fn verdict(&self, part: usize, limit: u64) -> Result<Verdict, EngineError> {
        let at = Self::HEAD + Self::PER_PART * part;
        Ok(Verdict {
            allowed: self.number(at)? == 1,
            retry_after: match self.number(at + 1)? {
                -1 => Wait::Never,
                _ => Wait::For(Micros::new(self.natural(at + 1)?)),
            },
            delay: Micros::new(self.natural(at + 2)?),
            limit,
            remaining: self.natural(at + 3)?,
            reset_after: Micros::new(self.natural(at + 4)?),
        })
    }

    /// The decision on a call whose charges lie at these places among the parts.
    pub(crate) fn decision_on(
        &self,
        call: &Call<'_>,
        parts: &[Part],
        places: &[usize],
        made: Option<HoldId>,
    ) -> Result<Decision, EngineError> {
        let mut decision = self.head()?;
        // Under an id it may be an earlier hold that is answered.
        decision.details_mut().hold = made.and_then(|id| Some(self.id(4)?.at(id.place())));
        if decision.repeated() {
            decision.verdicts.extend(self.kept_verdicts(parts, places)?);
            return Ok(decision);
        }
        for (charge, place) in call.charges.iter().zip(places) {
            let verdict = self.verdict(*place, charge.limit.limit().capacity())?;
            decision.push(charge.limit, verdict);
        }
        Ok(decision)
    }

    /// What those said that decided, when they did. Meanwhile the rule may have got other limits.
    fn kept_verdicts(&self, parts: &[Part], places: &[usize]) -> Result<Vec<Verdict>, EngineError> {
        let deciding: Vec<usize> =
            (0..parts.len()).filter(|place| !parts[*place].limit.is_shadow()).collect();
        let kept = self.kept()?;
        if kept.len() != deciding.len() {
            return Ok(kept);
        }
        // One for each charge, though some share a part.
        let of_charges = places.iter().filter_map(|place| deciding.iter().position(|d| d == place));
        Ok(of_charges.map(|place| kept[place]).collect())
    }

    /// What was kept of an answer under an id.
    pub(crate) fn kept(&self) -> Result<Vec<Verdict>, EngineError> {
        let count = self.parts_with_capacity();
        (0..count).map(|place| self.verdict(place, self.capacity(place)?)).collect()
    }

    /// The decision on a hold, by the limits that count now.
    pub(crate) fn decision(&self, parts: &[Part]) -> Result<Decision, EngineError> {
        let mut decision = self.head()?;
        for (place, part) in parts.iter().enumerate() {
            decision.push(&part.limit, self.verdict(place, self.capacity(place)?)?);
        }
        Ok(decision)
    }

    /// The decision without its verdicts.
    pub(crate) fn head(&self) -> Result<Decision, EngineError> {
        let mut decision = Decision::new(Source::Redis, Default::default());
        let details = decision.details_mut();
        details.refunded = Cost::total(self.natural(2)?);
        details.expired = self.number(3)? == 1;
        details.repeated = self.repeats()?;
        Ok(decision)
    }

    pub(crate) fn inspection(&self, limit: &RuleLimit) -> Result<Inspection, EngineError> {
        let at = Self::HEAD;
        let mut entries = Vec::new();
        for pair in self.values.get(at + Self::PER_PART..).unwrap_or_default().chunks(2) {
            let [Value::Int(permits), Value::BulkString(who)] = pair else {
                return Err(self.unreadable());
            };
            let who = String::from_utf8_lossy(who);
            let who = (!who.is_empty()).then(|| who.into());
            entries.push((who, permits.unsigned_abs()));
        }
        Ok(Inspection {
            source: Source::Redis,
            standing: Standing {
                used: self.natural(at + 5)?,
                held: self.natural(at + 6)?,
                remaining: self.natural(at + 3)?,
                reset_after: Micros::new(self.natural(at + 4)?),
            },
            limit: limit.limit().capacity(),
            entries,
            shared: false,
        })
    }
}

/// What a script's reply says by its status, where that is no answer.
pub(crate) fn refusal(reply: &Reply) -> EngineError {
    match reply.number(0) {
        Ok(2) => Refusal::UnknownHold.into(),
        Ok(3 | 5) => Refusal::IdReused.into(),
        Ok(4) => Refusal::AlreadySettled.into(),
        _ => reply.unreadable(),
    }
}

/// A call that was sent and not answered may have run, and so may one that was answered with an error
/// that nobody foresaw; one that only reads has changed nothing.
pub(crate) fn unavailable(error: LinkError, writes: bool) -> EngineError {
    let perhaps = match &error {
        LinkError::Down(_) => false,
        LinkError::TimedOut | LinkError::Broken(_) => true,
        LinkError::Reply(reply) if Meaning::of(reply) == Meaning::Misfit => {
            return EngineError::unavailable(Misfit(Arc::new(error)));
        }
        LinkError::Reply(error) => Meaning::of(error).perhaps_done(),
    };
    let cause = Arc::new(error);
    if perhaps && writes { EngineError::Ambiguous(cause) } else { EngineError::Unavailable(cause) }
}

/// What wrote and cannot be understood has been charged, perhaps.
pub(crate) fn unreadable(writes: bool) -> EngineError {
    let cause = Arc::new(Unreadable);
    if writes { EngineError::Ambiguous(cause) } else { EngineError::Unavailable(cause) }
}

/// A reply that no script of ours gives.
#[derive(Debug)]
pub(crate) struct Unreadable;

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "redis answered what no script of this version answers; is it another version's?",
        )
    }
}

impl std::error::Error for Unreadable {}
