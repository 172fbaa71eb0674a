//! The replies of `decide.lua`, `checks.lua`, `lean.lua` and `lean_log.lua`.

use std::sync::Arc;

use redis::Value;
use tidegate::{
    Call, Cost, Decision, EngineError, ForeignState, HoldId, Inspection, Micros, RecoveryPoint,
    Refusal, RuleLimit, SettledCost, Source, Standing, Verdict, Wait,
};

use crate::connection::error::{CallError, StaticError};
use crate::connection::server_error::ErrorClass;
use crate::protocol::request::{CheckScript, ExtraKeys, LimitCharge, ScriptOp, ScriptRequest};

/// The reply to one call or check. Scripts send the status as a number.
#[derive(Debug)]
pub(crate) enum Status<D = ScriptDecision> {
    /// 0: no calendar window that was sent contains the time of Redis, which is this.
    OutsideCalendar(Micros),
    /// 1: decided now; 6: decided before with the same id.
    Decided(D),
    /// 2
    UnknownHold,
    /// 3: the id was used for another request.
    IdReused,
    /// 4: the hold was settled in another way.
    AlreadySettled,
    /// 5: there is a hold of this id. It is active if any enforced part of it is.
    HoldExists { is_active: bool },
    /// 7: the record of this hold, which was made with the same id, must be named.
    EarlierHold(HoldId),
    /// 9: the hold has expired, and cannot be extended.
    HoldExpired,
    /// 8: the extra keys of each part that must be named.
    MissingKeys(Vec<ExtraKeys>),
    /// A lean script leaves it to `checks.lua`, which needs these keys of each part.
    NotPlain(ExtraKeys),
}

/// What a script has decided.
#[derive(Debug, Default)]
pub(crate) struct ScriptDecision {
    /// The verdict of each part. Of a repeated decision those of the parts that were enforced then,
    /// with their capacities.
    pub(crate) parts: Vec<PartReply>,
    /// The maximum over the parts.
    pub(crate) refunded: Cost,
    /// The hold had ended before it was settled or renewed.
    pub(crate) expired: bool,
    /// It was decided before, with the same id.
    pub(crate) repeated: bool,
    /// The hold that was made, without its location.
    pub(crate) hold: Option<HoldId>,
    /// What it was granted of its quantity.
    pub(crate) granted: Option<Cost>,
    /// Only of `inspect`.
    pub(crate) inspected: InspectedState,
}

/// What `inspect` returns in addition to a verdict.
#[derive(Debug, Default)]
pub(crate) struct InspectedState {
    /// The permits in use.
    used: u64,
    recovery: Vec<RecoveryPoint>,
    /// The entries of a log, oldest first.
    entries: Vec<InspectedEntry>,
}

/// Caller and permits.
pub(crate) type InspectedEntry = (Option<Box<str>>, u64);

#[derive(Clone, Copy, Debug)]
pub(crate) struct PartReply {
    pub(crate) verdict: Verdict,
    /// The permits in holds.
    pub(crate) held: u64,
    /// Only of `settle`; of `extend` what is reserved.
    pub(crate) settled: SettledCost,
}

impl PartReply {
    fn new(verdict: Verdict, held: u64) -> Self {
        Self { verdict, held, settled: SettledCost::default() }
    }
}

/// What `checks.lua` has decided about a group of equal checks.
#[derive(Debug)]
pub(crate) struct GroupDecision {
    /// How many were allowed: the first ones.
    pub(crate) allowed: u64,
    /// How many of these each part was charged for, fewer than all for a shadow limit, and its
    /// verdict on the last of them; empty if none was allowed.
    charged: Vec<(u64, PartReply)>,
    /// The reply of each part to the checks it was not charged for; empty if there are none.
    others: Vec<PartReply>,
}

impl<D> Status<D> {
    /// None if the reply is malformed.
    fn read(
        value: Value,
        parts: &[LimitCharge],
        decided: impl FnOnce(&mut ReplyReader, bool) -> Option<D>,
    ) -> Option<Self> {
        let Value::Array(values) = value else { return None };
        let reader = &mut ReplyReader(values.into_iter());
        let (status, now) = (reader.i64()?, reader.micros()?);
        Some(match status {
            0 => Self::OutsideCalendar(now),
            1 | 6 => Self::Decided(decided(reader, status == 6)?),
            2 => Self::UnknownHold,
            3 => Self::IdReused,
            4 => Self::AlreadySettled,
            5 => Self::HoldExists { is_active: reader.i64()? == 1 },
            7 => Self::EarlierHold(reader.id()?),
            9 => Self::HoldExpired,
            8 => {
                let missing = parts.iter().map(|_| ExtraKeys::from_bits(reader.i64()?));
                Self::MissingKeys(missing.collect::<Option<_>>()?)
            }
            _ => return None,
        })
    }

    fn map<E>(&self, decided: impl FnOnce(&D) -> E) -> Status<E> {
        match self {
            Self::Decided(decision) => Status::Decided(decided(decision)),
            Self::OutsideCalendar(now) => Status::OutsideCalendar(*now),
            Self::UnknownHold => Status::UnknownHold,
            Self::IdReused => Status::IdReused,
            Self::AlreadySettled => Status::AlreadySettled,
            Self::HoldExpired => Status::HoldExpired,
            Self::HoldExists { is_active } => Status::HoldExists { is_active: *is_active },
            Self::EarlierHold(id) => Status::EarlierHold(*id),
            Self::MissingKeys(missing) => Status::MissingKeys(missing.clone()),
            Self::NotPlain(extra) => Status::NotPlain(*extra),
        }
    }
}

impl Status {
    /// The reply of `decide.lua`.
    pub(crate) fn of_call(value: Value, request: &ScriptRequest) -> Result<Self, EngineError> {
        let decided = |reader: &mut ReplyReader, repeated| reader.decision(request, repeated);
        let status = Self::read(value, &request.parts, decided);
        status.ok_or_else(|| malformed_reply(request.may_write()))
    }

    /// The decision. Any other status is an error.
    pub(crate) fn decided(self) -> Result<ScriptDecision, EngineError> {
        Err(match self {
            Self::Decided(decision) => return Ok(decision),
            Self::UnknownHold => Refusal::UnknownHold.into(),
            Self::IdReused | Self::HoldExists { .. } => Refusal::IdReused.into(),
            Self::AlreadySettled => Refusal::AlreadySettled.into(),
            Self::HoldExpired => Refusal::HoldExpired.into(),
            // The executor retries these, and none has written.
            Self::OutsideCalendar(_)
            | Self::EarlierHold(_)
            | Self::MissingKeys(_)
            | Self::NotPlain(_) => malformed_reply(false),
        })
    }
}

/// The reply to a group of equal checks.
pub(crate) type GroupReply = Result<Arc<Status<GroupDecision>>, EngineError>;

impl Status<GroupDecision> {
    /// The replies of `checks.lua` to groups, each a number of equal checks.
    pub(crate) fn of_groups<'a>(
        reply: Result<Value, CallError>,
        groups: impl ExactSizeIterator<Item = (u64, &'a ScriptRequest)>,
    ) -> Vec<GroupReply> {
        let error = match reply {
            Ok(Value::Array(values)) if values.len() == groups.len() => {
                let read = |(value, (times, request)): (Value, (u64, &ScriptRequest))| {
                    if let Value::ServerError(error) = value {
                        let error = CallError::ServerError(Arc::new(error.into()));
                        return Err(engine_error(error, true));
                    }
                    let parts = &request.parts;
                    let decided = |reader: &mut ReplyReader, _| reader.group_decision(times, parts);
                    let status = Self::read(value, parts, decided);
                    status.map(Arc::new).ok_or_else(|| malformed_reply(true))
                };
                return values.into_iter().zip(groups).map(read).collect();
            }
            Ok(_) => malformed_reply(true),
            Err(error) => engine_error(error, true),
        };
        groups.map(|_| Err(error.clone())).collect()
    }

    /// The replies of a lean script to groups.
    pub(crate) fn of_lean_groups<'a>(
        reply: Result<Value, CallError>,
        groups: impl ExactSizeIterator<Item = (u64, &'a ScriptRequest)> + Clone,
    ) -> Vec<GroupReply> {
        let error = match reply {
            Ok(Value::BulkString(bytes)) => match Self::read_lean(&bytes, groups.clone()) {
                Some(replies) => return replies,
                None => malformed_reply(true),
            },
            Ok(_) => malformed_reply(true),
            Err(error) => engine_error(error, true),
        };
        groups.map(|_| Err(error.clone())).collect()
    }

    fn read_lean<'a>(
        bytes: &[u8],
        groups: impl ExactSizeIterator<Item = (u64, &'a ScriptRequest)>,
    ) -> Option<Vec<GroupReply>> {
        let mut reader = LeanReader(bytes);
        let now = Micros::new(reader.number()?);
        let mut replies = Vec::with_capacity(groups.len());
        for (times, request) in groups {
            let status = match reader.times()? {
                ASK_GENERAL => Self::NotPlain(ExtraKeys::NONE),
                ASK_GENERAL_WITH_HOLDS => Self::NotPlain(ExtraKeys::HOLDS),
                allowed => {
                    let allowed = Some(u64::from(allowed)).filter(|allowed| *allowed <= times)?;
                    Self::Decided(match request.script {
                        CheckScript::LeanLog => reader.log_group(allowed, times, request)?,
                        _ => reader.group(allowed, times, now, request)?,
                    })
                }
            };
            replies.push(Ok(Arc::new(status)));
        }
        reader.0.is_empty().then_some(replies)
    }

    /// How many checks are admitted: the first ones.
    pub(crate) fn admitted(&self) -> u64 {
        if let Self::Decided(group) = self { group.allowed } else { 0 }
    }

    /// The reply to the `nth` check of the group, from 1.
    pub(crate) fn nth(&self, nth: u64, request: &ScriptRequest) -> Status {
        self.map(|group| {
            let parts = request.parts.iter().enumerate();
            let parts = parts.filter_map(|(index, part)| group.part(nth, index, part));
            ScriptDecision { parts: parts.collect(), ..ScriptDecision::default() }
        })
    }
}

impl GroupDecision {
    fn part(&self, nth: u64, index: usize, part: &LimitCharge) -> Option<PartReply> {
        match self.charged.get(index) {
            Some((times, last)) if nth <= *times => {
                let mut reply = *last;
                // The charges of later checks are included in that of the last one.
                let later = (times - nth).saturating_mul(part.cost.get());
                reply.verdict.remaining = reply.verdict.remaining.saturating_add(later);
                Some(reply)
            }
            _ => self.others.get(index).copied(),
        }
    }
}

impl ScriptDecision {
    /// Whether the script has written this decision on `request`, if it is not a repetition.
    pub(crate) fn has_written(&self, request: &ScriptRequest) -> bool {
        match request.op {
            ScriptOp::Check | ScriptOp::Hold | ScriptOp::Visit | ScriptOp::Extend => {
                let mut parts = request.parts.iter().zip(&self.parts);
                request.parts.iter().any(|part| !part.cost.is_zero())
                    && parts.all(|(part, reply)| reply.verdict.allowed || part.limit.is_shadow())
            }
            _ => request.may_write(),
        }
    }

    /// The decision on a call whose charges have these indexes among the parts, and whose hold was
    /// sent as `sent`.
    pub(crate) fn on_call(
        &self,
        call: &Call<'_>,
        parts: &[LimitCharge],
        indexes: &[usize],
        sent: Option<HoldId>,
    ) -> Decision {
        let mut decision = self.without_verdicts();
        // With an idempotency key, the reply may name the hold of an earlier attempt.
        if let (Some(sent), Some(id)) = (sent, self.hold) {
            decision.details_mut().hold = Some(id.with_location(sent.location()));
        }
        if self.granted.is_some() {
            decision.details_mut().granted = self.granted;
        }
        if self.repeated {
            decision.verdicts.extend(self.stored_verdicts_of(parts, indexes));
            return decision;
        }
        for (charge, index) in call.charges.iter().zip(indexes) {
            decision.push(charge.limit, self.parts[*index].verdict);
        }
        decision
    }

    /// The stored verdicts, one for each charge of an enforced limit. All of them if the rule has
    /// got other limits meanwhile.
    fn stored_verdicts_of(&self, parts: &[LimitCharge], indexes: &[usize]) -> Vec<Verdict> {
        let enforced: Vec<usize> =
            (0..parts.len()).filter(|index| !parts[*index].limit.is_shadow()).collect();
        let stored = self.verdicts();
        if stored.len() != enforced.len() {
            return stored;
        }
        // Several charges may share a part.
        let of_charges =
            indexes.iter().filter_map(|index| enforced.iter().position(|other| other == index));
        of_charges.map(|index| stored[index]).collect()
    }

    pub(crate) fn verdicts(&self) -> Vec<Verdict> {
        self.parts.iter().map(|part| part.verdict).collect()
    }

    /// The decision on a hold over these parts.
    pub(crate) fn on_hold(&self, parts: &[LimitCharge], op: ScriptOp) -> Decision {
        let mut decision = self.without_verdicts();
        let details = decision.details_mut();
        for (part, reply) in parts.iter().zip(&self.parts).filter(|(p, _)| !p.limit.is_shadow()) {
            details.held.push(Arc::clone(&part.limit));
            let at_start = SettledCost { reserved: part.cost, charged: part.cost, ..reply.settled };
            let settled = if part.is_held() { reply.settled } else { at_start };
            details.settled.extend((op == ScriptOp::Settle).then_some(settled));
            details.reserved.extend(op.extends().then_some(settled.reserved));
        }
        for (part, reply) in parts.iter().zip(&self.parts) {
            decision.push(&part.limit, reply.verdict);
        }
        decision
    }

    pub(crate) fn without_verdicts(&self) -> Decision {
        let mut decision = Decision::new(Source::Redis, Default::default());
        let Self { refunded, expired, repeated, .. } = *self;
        // Most decisions have no details, and allocate none.
        if refunded > Cost::ZERO || expired || repeated {
            let details = decision.details_mut();
            (details.refunded, details.expired, details.repeated) = (refunded, expired, repeated);
        }
        decision
    }

    /// The reply to `inspect`.
    pub(crate) fn inspection(self, limit: &RuleLimit) -> Option<Inspection> {
        let PartReply { verdict, held, .. } = *self.parts.first()?;
        let InspectedState { used, recovery, entries } = self.inspected;
        let Verdict { remaining, reset_after, .. } = verdict;
        Some(Inspection {
            source: Source::Redis,
            standing: Standing { used, held, remaining, reset_after },
            limit: limit.limit().capacity(),
            recovery,
            entries,
            shared: false,
        })
    }
}

/// Reads the values of a reply, one after the other.
struct ReplyReader(std::vec::IntoIter<Value>);

impl ReplyReader {
    fn i64(&mut self) -> Option<i64> {
        match self.0.next() {
            Some(Value::Int(number)) => Some(number),
            _ => None,
        }
    }

    fn u64(&mut self) -> Option<u64> {
        u64::try_from(self.i64()?).ok()
    }

    fn micros(&mut self) -> Option<Micros> {
        self.u64().map(Micros::new)
    }

    /// A span; -1 is never.
    fn wait(&mut self) -> Option<Wait> {
        Some(match self.i64()? {
            -1 => Wait::Never,
            span => Wait::For(Micros::new(u64::try_from(span).ok()?)),
        })
    }

    fn text(&mut self) -> Option<String> {
        match self.0.next() {
            Some(Value::BulkString(text)) => Some(String::from_utf8_lossy(&text).into()),
            _ => None,
        }
    }

    fn id(&mut self) -> Option<HoldId> {
        self.text()?.parse().ok()
    }

    /// The end of a verdict: delay, remaining, `reset_after`.
    fn verdict_end(&mut self, allowed: bool, retry_after: Wait, limit: u64) -> Option<Verdict> {
        let (delay, remaining, reset_after) = (self.micros()?, self.u64()?, self.micros()?);
        Some(Verdict { allowed, retry_after, delay, limit, remaining, reset_after })
    }

    fn verdict(&mut self, limit: u64) -> Option<Verdict> {
        let allowed = self.i64()? == 1;
        let retry_after = self.wait()?;
        self.verdict_end(allowed, retry_after, limit)
    }

    /// The reply of `decide.lua` from its third place on.
    fn decision(&mut self, request: &ScriptRequest, repeated: bool) -> Option<ScriptDecision> {
        let (refunded, expired) = (Cost::total(self.u64()?), self.i64()? == 1);
        let hold = self.id();
        // Those of the first call, each with its capacity.
        let stored = self.0.len() / 8;
        let count = if repeated { stored } else { request.parts.len() };
        let mut parts = Vec::with_capacity(count);
        let mut inspected = InspectedState::default();
        for index in 0..count {
            let limit = request.parts.get(index).map_or(0, LimitCharge::capacity);
            let verdict = self.verdict(limit)?;
            inspected.used = self.u64()?;
            parts.push(PartReply::new(verdict, self.u64()?));
        }
        if repeated || request.op.returns_capacities() {
            for part in &mut parts {
                part.verdict.limit = self.u64()?;
            }
        }
        if request.op == ScriptOp::Settle && !repeated {
            for part in &mut parts {
                let mut cost = || self.u64().map(Cost::total);
                let (reserved, charged, uncharged) = (cost()?, cost()?, cost()?);
                part.settled = SettledCost { reserved, charged, uncharged };
            }
        }
        if request.op.extends() {
            for part in &mut parts {
                part.settled.reserved = Cost::total(self.u64()?);
            }
        }
        if request.op == ScriptOp::Inspect {
            for _ in 0..self.u64()?.min(RecoveryPoint::MAX as u64) {
                inspected.recovery.push(RecoveryPoint { after: self.wait()?, fits: self.u64()? });
            }
            while self.0.len() > 0 {
                let (permits, caller) = (self.u64()?, self.text()?);
                inspected.entries.push(((!caller.is_empty()).then(|| caller.into()), permits));
            }
        }
        // That of the first call, too, if it is repeated.
        let has_quantity = if repeated { self.0.len() == 1 } else { request.quantity.is_some() };
        let granted = if has_quantity { Some(Cost::total(self.u64()?)) } else { None };
        let granted = granted.filter(|granted| !granted.is_zero());
        Some(ScriptDecision { parts, refunded, expired, repeated, hold, granted, inspected })
    }

    /// The reply of `checks.lua` to one group, from its third place on.
    fn group_decision(&mut self, times: u64, parts: &[LimitCharge]) -> Option<GroupDecision> {
        let allowed = self.u64().filter(|allowed| *allowed <= times)?;
        let (mut charged, mut others) = (Vec::new(), Vec::new());
        for part in parts.iter().filter(|_| allowed > 0) {
            let times = self.u64()?;
            let verdict = self.verdict_end(true, Wait::NONE, part.capacity())?;
            charged.push((times, PartReply::new(verdict, self.u64()?)));
        }
        if allowed < times || charged.iter().any(|(times, _)| *times < allowed) {
            for part in parts {
                let verdict = self.verdict(part.capacity())?;
                others.push(PartReply::new(verdict, self.u64()?));
            }
        }
        // Surplus numbers are malformed, too.
        (self.0.len() == 0).then_some(GroupDecision { allowed, charged, others })
    }
}

/// Instead of a number of checks in the reply of a lean script.
const ASK_GENERAL: u16 = 65_535;
const ASK_GENERAL_WITH_HOLDS: u16 = 65_534;

/// Reads the reply of a lean script.
struct LeanReader<'a>(&'a [u8]);

impl LeanReader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn times(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    /// A whole number, stored as a double.
    #[expect(clippy::cast_possible_truncation, reason = "a whole number in the range")]
    fn number(&mut self) -> Option<u64> {
        let number = f64::from_le_bytes(self.bytes()?);
        let is_whole = (0.0..=Micros::MAX.get() as f64).contains(&number) && number.fract() == 0.0;
        is_whole.then_some(number as u64)
    }

    /// The decision of `lean.lua` on a group of equal checks: computed from the state of each part,
    /// as `checks.lua` would.
    fn group(
        &mut self,
        allowed: u64,
        times: u64,
        now: Micros,
        request: &ScriptRequest,
    ) -> Option<GroupDecision> {
        let mut decision = GroupDecision { allowed, charged: Vec::new(), others: Vec::new() };
        for LimitCharge { limit, cost, .. } in request.parts.iter() {
            let (limit, at) = (limit.limit(), limit.moment(now));
            let mut numbers = [0; 3];
            let numbers = numbers.get_mut(..limit.stored_len()?)?;
            for number in &mut *numbers {
                *number = self.number()?;
            }
            if allowed > 0 {
                let verdict = match limit.is_queue() {
                    true => limit.charge_stored(numbers, &at, *cost),
                    false => limit.look_at_stored(numbers, &at, Cost::ZERO),
                };
                let verdict = Verdict { allowed: true, retry_after: Wait::NONE, ..verdict };
                decision.charged.push((allowed, PartReply::new(verdict, 0)));
            }
            if allowed < times {
                let verdict = limit.look_at_stored(numbers, &at, *cost);
                decision.others.push(PartReply::new(verdict, 0));
            }
        }
        Some(decision)
    }

    /// The decision of `lean_log.lua` on a group of equal checks of one log.
    fn log_group(
        &mut self,
        allowed: u64,
        times: u64,
        request: &ScriptRequest,
    ) -> Option<GroupDecision> {
        let limit = request.parts.first()?.capacity();
        let (used, reset_after) = (self.number()?, Micros::new(self.number()?));
        let retry_after = match self.0.split_at_checked(8)? {
            (never, rest) if never == (-1_f64).to_le_bytes() => {
                self.0 = rest;
                Wait::Never
            }
            _ => Wait::For(Micros::new(self.number()?)),
        };
        let remaining = limit.saturating_sub(used);
        let reply = |allowed, retry_after| {
            let delay = Micros::ZERO;
            let verdict = Verdict { allowed, retry_after, delay, limit, remaining, reset_after };
            PartReply::new(verdict, 0)
        };
        let charged = (allowed > 0).then(|| (allowed, reply(true, Wait::NONE)));
        let is_peek = request.parts.iter().all(|part| part.cost.is_zero());
        let other = (allowed < times).then(|| reply(is_peek && used <= limit, retry_after));
        let (charged, others) = (charged.into_iter().collect(), other.into_iter().collect());
        Some(GroupDecision { allowed, charged, others })
    }
}

/// A call without a reply may have executed, and so may one with an unknown error; one that only
/// reads has changed nothing.
pub(crate) fn engine_error(error: CallError, writes: bool) -> EngineError {
    let maybe_executed = match &error {
        CallError::NotSent(_) => false,
        CallError::TimedOut | CallError::ConnectionLost(_) => true,
        CallError::ServerError(reply) if ErrorClass::of(reply) == ErrorClass::ForeignState => {
            return EngineError::unavailable(ForeignState(Arc::new(error)));
        }
        CallError::ServerError(error) => ErrorClass::of(error).maybe_executed(),
    };
    let cause = Arc::new(error);
    match maybe_executed && writes {
        true => EngineError::Ambiguous(cause),
        false => EngineError::Unavailable(cause),
    }
}

/// No script of this version sends such a reply. One that writes may have charged before.
pub(crate) fn malformed_reply(writes: bool) -> EngineError {
    let text = "unexpected script reply; are different versions of Tidegate in use?";
    let cause = Arc::new(StaticError(text));
    if writes { EngineError::Ambiguous(cause) } else { EngineError::Unavailable(cause) }
}
