//! Calls, put into the words of the scripts.

use std::fmt;
use std::sync::Arc;

use tidegate::{
    Algorithm, Call, CallId, Charge, Cost, EngineError, Expiry, HoldId, Limit, Micros, Op, Refusal,
    RuleLimit,
};

use crate::engine::Redis;
use crate::keys::{Secret, Tag, subject};

/// One limit on one subject, with all that a call charges to it.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) limit: Arc<RuleLimit>,
    pub(crate) tag: Tag,
    pub(crate) cost: Cost,
    pub(crate) who: String,
}

impl Part {
    pub(crate) fn new(charge: &Charge<'_>, secret: &Secret) -> Self {
        // Only a log keeps who it was.
        let keeps = charge.limit.limit().algorithm() == Algorithm::SlidingLog;
        Self {
            limit: charge.limit.clone(),
            tag: subject(secret, charge.key),
            cost: charge.cost,
            who: charge.who.filter(|_| keeps).unwrap_or_default().into(),
        }
    }

    /// The charges of a call, and the place of each; those to the same limit and key are added up.
    pub(crate) fn all(charges: &[Charge<'_>], secret: &Secret) -> (Vec<Self>, Vec<usize>) {
        let mut parts: Vec<Self> = Vec::with_capacity(charges.len());
        let mut places = Vec::with_capacity(charges.len());
        for charge in charges {
            let part = Self::new(charge, secret);
            let same =
                |other: &Self| other.tag == part.tag && other.limit.state() == part.limit.state();
            let place = parts.iter().position(same).unwrap_or(parts.len());
            match parts.get_mut(place) {
                Some(same) => same.cost = same.cost.saturating_add(part.cost),
                None => parts.push(part),
            }
            places.push(place);
        }
        (parts, places)
    }
}

/// What comes beside a state in a call: its log, its holds, both or neither. While a Cluster moves
/// a slot it answers only for keys that all lie on one side, so none is named in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Beside(u8);

impl Beside {
    pub(crate) const NOTHING: Self = Self(0);
    pub(crate) const LOG: Self = Self(1);
    pub(crate) const HOLDS: Self = Self(2);

    /// What a script asks for by this number.
    pub(crate) fn from_number(number: i64) -> Option<Self> {
        u8::try_from(number).ok().filter(|bits| *bits <= 3).map(Self)
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What comes with every state of this limit.
    pub(crate) fn of(limit: &Limit) -> Self {
        let (algorithm, _) = limit.numbers();
        if algorithm == 4 { Self::LOG } else { Self::NOTHING }
    }

    /// The number by which a script is told.
    pub(crate) fn number(self) -> u8 {
        self.0
    }

    /// How many keys that are, with the state.
    pub(crate) fn keys(self) -> usize {
        1 + self.0.count_ones() as usize
    }
}

/// What a call is about, beside its parts.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) op: &'static str,
    pub(crate) hold: Option<HoldId>,
    pub(crate) ttl: Micros,
    pub(crate) expiry: Expiry,
    pub(crate) settle: Option<Cost>,
    pub(crate) once: Option<Once>,
    /// The hold that was made under this id, once Redis has asked for it.
    pub(crate) earlier: Option<HoldId>,
    pub(crate) record: String,
    /// It counts only when replicas have it, where they are asked.
    pub(crate) confirmed: bool,
}

/// An id under which a call is done once.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    /// The subject it lies with.
    pub(crate) at: Tag,
    pub(crate) name: Tag,
    /// What stands for the content of the call.
    pub(crate) request: Tag,
}

impl Request {
    pub(crate) fn new(op: &'static str) -> Self {
        Self {
            op,
            hold: None,
            ttl: Micros::ZERO,
            expiry: Expiry::Release,
            settle: None,
            once: None,
            earlier: None,
            record: String::new(),
            confirmed: true,
        }
    }

    pub(crate) fn writes(&self) -> bool {
        self.op != "peek" && self.op != "inspect"
    }

    /// What has to come beside the state of `part`, whatever is found there.
    pub(crate) fn needs(&self, part: &Part) -> Beside {
        let limit = part.limit.limit();
        let about_hold = self.hold.is_some() && self.op != "enter";
        let holds = about_hold || limit.lease().is_some();
        Beside::of(limit).and(if holds { Beside::HOLDS } else { Beside::NOTHING })
    }
}

impl Once {
    pub(crate) fn new(call: &Call<'_>, at: Tag, secret: &Secret, id: CallId<'_>) -> Self {
        let rule = call.charges.first().map_or("", |charge| charge.limit.rule());
        let name = secret.tag([rule.as_bytes(), id.as_str().as_bytes()].into_iter());
        let op = match call.op {
            // The id of a hold is drawn anew on every attempt.
            Op::Hold { ttl, expiry: Expiry::Release, .. } => format!("hold {}", ttl.get()),
            Op::Hold { ttl, expiry: Expiry::Charge, .. } => format!("lease {}", ttl.get()),
            // A peek under an id tells what the check under it was answered, or would be.
            Op::Peek => "check".into(),
            op => word(op).unwrap_or_default().into(),
        };
        // What was asked, not what it was charged to: a rule may have got another limit meanwhile.
        let asked = call.charges.iter().filter(|charge| charge.limit.is_first());
        let asked =
            asked.map(|c| format!("{} {} {}", subject(secret, c.key), c.limit.rule(), c.cost));
        let words: Vec<String> = [op].into_iter().chain(asked).collect();
        Self { at, name, request: secret.tag(words.iter().map(String::as_bytes)) }
    }

    /// The same id with another subject: what is known there is that slot's share of it.
    pub(crate) fn at(&self, at: Tag, secret: &Secret) -> Self {
        if at == self.at {
            return self.clone();
        }
        let words = [self.name.to_string(), self.at.to_string()];
        Self { at, name: secret.tag(words.iter().map(String::as_bytes)), request: self.request }
    }

    /// The name of what is held under it.
    pub(crate) fn hold_id(&self, secret: &Secret) -> HoldId {
        let words =
            ["hold".into(), self.at.to_string(), self.name.to_string(), self.request.to_string()];
        secret.tag(words.iter().map(String::as_bytes)).0.into()
    }
}

impl Redis {
    /// The keys and arguments of the script.
    pub(crate) fn words(
        &self,
        request: &Request,
        parts: &[Part],
        beside: &[Beside],
        guess: Micros,
    ) -> (Vec<String>, Vec<Vec<u8>>) {
        let mut keys = Vec::with_capacity(3 * parts.len() + 2);
        for (part, beside) in parts.iter().zip(beside) {
            let state = self.state_key(part);
            let log = beside.has(Beside::LOG).then(|| format!("{state}:log"));
            let holds = beside.has(Beside::HOLDS).then(|| format!("{state}:holds"));
            keys.push(state);
            keys.extend(log.into_iter().chain(holds));
        }
        keys.extend(request.hold.map(|id| self.names.hold(id)));
        keys.extend(request.once.as_ref().map(|once| self.names.once(once.at, once.name)));
        keys.extend(request.earlier.map(|id| self.names.hold(id)));

        let mut args: Vec<Vec<u8>> = Vec::with_capacity(10 + 12 * parts.len());
        let mut push = |word: String| args.push(word.into_bytes());
        push("1".into());
        push(request.op.into());
        let instant = self.test_clock.as_ref().map(|clock| clock.now().get().to_string());
        push(instant.unwrap_or_default());
        push(request.hold.map_or_else(String::new, |id| format!("{:032x}", id.get())));
        push(request.ttl.get().to_string());
        push(u8::from(request.expiry == Expiry::Charge).to_string());
        push(request.settle.map_or_else(String::new, |cost| cost.to_string()));
        push(request.once.as_ref().map_or_else(String::new, |once| once.request.to_string()));
        push(request.record.clone());
        push(parts.len().to_string());
        for (part, beside) in parts.iter().zip(beside) {
            push(beside.number().to_string());
            let (algorithm, numbers) = part.limit.limit().numbers();
            push(algorithm.to_string());
            numbers.into_iter().for_each(|number| push(number.to_string()));
            let boundaries = part.limit.boundaries(guess);
            push(boundaries.len().to_string());
            boundaries.into_iter().for_each(|bound| push(bound.get().to_string()));
            push(part.cost.to_string());
            push(part.who.clone());
            push(if part.limit.is_shadow() { "shadow" } else { "" }.into());
        }
        (keys, args)
    }

    pub(crate) fn state_key(&self, part: &Part) -> String {
        self.names.state(part.tag, part.limit.state())
    }
}

/// The word for an operation.
pub(crate) fn word(op: Op) -> Result<&'static str, EngineError> {
    Ok(match op {
        Op::Check => "check",
        Op::Peek => "peek",
        Op::Record => "record",
        Op::Refund => "refund",
        Op::Reset => "reset",
        Op::Hold { .. } => "hold",
        Op::Enter { .. } => "enter",
        // They differ in what happens at their end.
        Op::Visit { .. } | Op::Lend { .. } => "visit",
        Op::Settle { .. } => "settle",
        Op::Renew { .. } => "renew",
        _ => return Err(EngineError::unavailable(UnknownOperation)),
    })
}

/// A holder may stay for a whole lease, however long that is.
pub(crate) fn check_ttl<'a>(
    ttl: Micros,
    parts: impl Iterator<Item = &'a Part>,
) -> Result<(), EngineError> {
    let lease = parts.filter_map(|part| part.limit.limit().lease()).max();
    if ttl == Micros::ZERO || ttl > HoldId::MAX_TTL.max(lease.unwrap_or_default()) {
        return Err(Refusal::HoldLength.into());
    }
    Ok(())
}

/// An operation that came after this engine.
#[derive(Debug)]
struct UnknownOperation;

impl fmt::Display for UnknownOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the engine for redis does not know this operation; use a newer one")
    }
}

impl std::error::Error for UnknownOperation {}
