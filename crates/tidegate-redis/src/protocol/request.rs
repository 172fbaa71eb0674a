//! A script request: its operation, its parts and its idempotency record.

use std::sync::Arc;

use tidegate::{
    Algorithm, Call, Charge, Cost, EngineError, Expiry, HoldId, HoldKind, IdempotencyKey, Limit,
    Micros, Op, Refusal, RuleLimit, UnitCost,
};

use crate::connection::error::StaticError;
use crate::protocol::keys::{HashSecret, KeyNames, SubjectHash};
use crate::topology::hash_slot::HashSlot;

/// One limit on one subject, with the total cost of a call to it: one part of a request.
#[derive(Clone, Debug)]
pub(crate) struct LimitCharge {
    pub(crate) limit: Arc<RuleLimit>,
    pub(crate) subject: SubjectHash,
    pub(crate) cost: Cost,
    /// Stored by a sliding log; empty for all other algorithms.
    pub(crate) caller: String,
    /// The key of its state.
    pub(crate) state: String,
    /// The hash of `state` in this process.
    pub(crate) hash: u64,
    pub(crate) hold: PartHold,
    /// What a unit of the quantity costs that the request holds; the cost is that of the minimum.
    pub(crate) per_unit: UnitCost,
}

/// What a request does with the hold of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartHold {
    /// The part is not held, but charged or only reported.
    None,
    /// Held until it is settled, and with this expiry.
    Made(Expiry),
    /// Settled at what is held; renewed or dropped; not extended.
    Ended,
    /// Settled at this cost, or extended to it.
    At(Cost),
}

impl LimitCharge {
    pub(crate) fn new(
        limit: Arc<RuleLimit>,
        subject: SubjectHash,
        cost: Cost,
        caller: Option<&str>,
        names: &KeyNames,
    ) -> Self {
        let keeps_caller = limit.limit().algorithm() == Algorithm::SlidingLog;
        let caller = caller.filter(|_| keeps_caller).unwrap_or_default().into();
        let state = names.state(subject, limit.state());
        let (hold, per_unit) = (PartHold::None, UnitCost::ZERO);
        Self { limit, subject, cost, caller, hash: names.hash(&state), state, hold, per_unit }
    }

    /// The parts of a call, and the index of each charge among them. Charges to the same limit and
    /// key are added up.
    pub(crate) fn all(
        Call { op, charges, .. }: &Call<'_>,
        secret: &HashSecret,
        names: &KeyNames,
    ) -> (Vec<Self>, Vec<usize>) {
        let mut parts: Vec<Self> = Vec::with_capacity(charges.len());
        let mut indexes = Vec::with_capacity(charges.len());
        for Charge { limit, key, cost, caller } in *charges {
            let mut part = Self::new((*limit).clone(), secret.subject(*key), *cost, *caller, names);
            part.per_unit =
                op.quantity().map_or(part.per_unit, |one| one.per_unit(limit.state(), *key));
            let same = parts.iter().position(|other| other.state == part.state);
            let index = same.unwrap_or(parts.len());
            match parts.get_mut(index) {
                Some(same) => same.cost = same.cost.saturating_add(part.cost),
                None => parts.push(part),
            }
            indexes.push(index);
        }
        (parts, indexes)
    }

    /// The same part, held by `op` or charged by it.
    pub(crate) fn with_hold_of(self, op: Op<'_>) -> Self {
        let hold = match op {
            Op::Hold(spec) if spec.holds(&self.limit) => {
                PartHold::Made(spec.expiry_of(&self.limit))
            }
            _ => PartHold::None,
        };
        Self { hold, ..self }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.hold != PartHold::None
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.limit.limit().capacity()
    }
}

/// The keys of a state that a call names in addition: its log, its holds, both or neither. While a
/// Cluster migrates a slot it serves only calls whose keys are all on one node, so a key is named
/// only if it exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ExtraKeys(u8);

impl ExtraKeys {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const LOG: Self = Self(1);
    pub(crate) const HOLDS: Self = Self(2);

    /// From the number in a script reply.
    pub(crate) fn from_bits(bits: i64) -> Option<Self> {
        u8::try_from(bits).ok().filter(|bits| *bits <= 3).map(Self)
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The number in script arguments.
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// The number of keys, with the state.
    pub(crate) fn key_count(self) -> usize {
        1 + self.0.count_ones() as usize
    }

    /// The keys that every state of this limit needs, and those of holds.
    fn of(limit: &Limit, has_holds: bool) -> Self {
        let log = if limit.is_log() { Self::LOG } else { Self::NONE };
        log.and(if has_holds { Self::HOLDS } else { Self::NONE })
    }
}

/// An operation of `decide.lua`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScriptOp {
    Check,
    Peek,
    Inspect,
    Record,
    Refund,
    Reset,
    Hold,
    /// A hold whose record is deleted when it is settled.
    Visit,
    Settle,
    Renew,
    Extend,
    /// Replies as `Extend` does, and extends nothing.
    TryExtend,
    /// Releases a hold and deletes its record.
    Drop,
}

impl ScriptOp {
    pub(crate) fn of(op: Op<'_>) -> Result<Self, EngineError> {
        Ok(match op {
            Op::Check => Self::Check,
            Op::Peek => Self::Peek,
            Op::Record => Self::Record,
            Op::Refund => Self::Refund,
            Op::Reset => Self::Reset,
            Op::Hold(hold) => match hold.kind {
                HoldKind::Reservation => Self::Hold,
                HoldKind::Request | HoldKind::Named { .. } | HoldKind::Entry | HoldKind::Loan => {
                    Self::Visit
                }
            },
            Op::Settle { .. } => Self::Settle,
            Op::Renew { .. } => Self::Renew,
            Op::Extend { .. } => Self::Extend,
            _ => {
                let text = "operation not supported by this version of tidegate-redis; upgrade it";
                return Err(EngineError::unavailable(StaticError(text)));
            }
        })
    }

    /// The text in ARGV 2.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Check => "check",
            Self::Peek => "peek",
            Self::Inspect => "inspect",
            Self::Record => "record",
            Self::Refund => "refund",
            Self::Reset => "reset",
            Self::Hold => "hold",
            Self::Visit => "visit",
            Self::Settle => "settle",
            Self::Renew => "renew",
            Self::Extend => "extend",
            Self::TryExtend => "try",
            Self::Drop => "drop",
        }
    }

    /// Whether the capacities at the end of the reply count: they may differ from those sent.
    /// `drop` returns them, too, but reports to no caller.
    pub(crate) fn returns_capacities(self) -> bool {
        matches!(self, Self::Settle | Self::Renew) || self.extends()
    }

    pub(crate) fn extends(self) -> bool {
        matches!(self, Self::Extend | Self::TryExtend)
    }
}

/// The script that decides a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CheckScript {
    /// `checks.lua`
    General,
    /// `lean.lua`
    Lean,
    /// `lean_log.lua`
    LeanLog,
}

/// What is sent to a script.
#[derive(Clone, Debug)]
pub(crate) struct ScriptRequest {
    pub(crate) op: ScriptOp,
    pub(crate) parts: Arc<[LimitCharge]>,
    /// The extra keys that are named, for each part.
    pub(crate) extra_keys: Vec<ExtraKeys>,
    /// The time of Redis, if a reply has sent it: calendar windows around it are needed.
    pub(crate) guess: Option<Micros>,
    pub(crate) hold: Option<HoldId>,
    pub(crate) ttl: Micros,
    pub(crate) once: Option<IdempotencyRecord>,
    /// The hold that an earlier attempt with this id made, once a reply has named it.
    pub(crate) earlier: Option<HoldId>,
    pub(crate) record: String,
    /// The smallest and the largest quantity that its hold is granted.
    pub(crate) quantity: Option<(Cost, Cost)>,
    /// It counts only when replicas confirm it, if any must.
    pub(crate) confirmed: bool,
    /// Which script decides it, if it is a plain check.
    pub(crate) script: CheckScript,
}

impl ScriptRequest {
    pub(crate) fn new(op: ScriptOp, parts: impl Into<Arc<[LimitCharge]>>) -> Self {
        Self {
            op,
            parts: parts.into(),
            extra_keys: Vec::new(),
            guess: None,
            hold: None,
            ttl: Micros::ZERO,
            once: None,
            earlier: None,
            record: String::new(),
            quantity: None,
            confirmed: true,
            script: CheckScript::General,
        }
    }

    /// The request that ends a hold. It needs no confirmation: a hold that replicas still have is
    /// charged or released when it expires.
    pub(crate) fn ending(op: ScriptOp, id: HoldId, parts: impl Into<Arc<[LimitCharge]>>) -> Self {
        Self { hold: Some(id), confirmed: false, ..Self::new(op, parts) }
    }

    /// Releases the hold that this request makes of these parts, and deletes its record, unless
    /// another hold has that id now.
    pub(crate) fn drop_hold(&self) -> Option<Self> {
        let drop = Self::ending(ScriptOp::Drop, self.hold?, self.held_parts());
        Some(Self { record: self.record.clone(), ..drop })
    }

    /// The parts that are held, to be settled at that, renewed or dropped.
    pub(crate) fn held_parts(&self) -> Vec<LimitCharge> {
        let held = self.parts.iter().filter(|part| part.is_held());
        held.map(|part| LimitCharge { hold: PartHold::Ended, ..part.clone() }).collect()
    }

    /// Whether it is sent by a script for many checks, with others.
    pub(crate) fn is_plain_check(&self) -> bool {
        self.op == ScriptOp::Check && self.once.is_none()
    }

    /// The script that decides it if the stored values are plain, too.
    pub(crate) fn lean_script(&self) -> CheckScript {
        let is_free = self.parts.first().is_some_and(|part| part.cost.is_zero());
        let is_lean = |(part, extra): (&LimitCharge, &ExtraKeys)| {
            let LimitCharge { limit, cost, .. } = part;
            *extra == ExtraKeys::NONE
                && cost.is_zero() == is_free
                && !limit.is_shadow()
                && limit.limit().stored_len().is_some()
        };
        match (&*self.parts, &*self.extra_keys) {
            _ if !self.is_plain_check() => CheckScript::General,
            // The length of the caller is packed in two bytes.
            ([log], [ExtraKeys::LOG]) => {
                let is_short = u16::try_from(log.caller.len()).is_ok();
                let is_lean = is_short && !log.limit.is_shadow();
                if is_lean { CheckScript::LeanLog } else { CheckScript::General }
            }
            (parts, extra) if parts.iter().zip(extra).all(is_lean) => CheckScript::Lean,
            _ => CheckScript::General,
        }
    }

    pub(crate) fn may_write(&self) -> bool {
        !matches!(self.op, ScriptOp::Peek | ScriptOp::Inspect | ScriptOp::TryExtend)
    }

    /// Names the extra keys that each part needs in any case, and holds where there may be some.
    pub(crate) fn name_extra_keys(&mut self, may_have_holds: impl Fn(&LimitCharge) -> bool) {
        let extra = |part: &LimitCharge| {
            let limit = part.limit.limit();
            ExtraKeys::of(limit, part.is_held() || limit.lease().is_some() || may_have_holds(part))
        };
        self.extra_keys = self.parts.iter().map(extra).collect();
    }

    /// The slot of all its keys; any slot if one server owns all of them.
    pub(crate) fn slot(&self) -> HashSlot {
        HashSlot::of(self.parts.first().map_or("", |part| &part.state))
    }
}

/// Where the result of a call with an idempotency key is stored.
#[derive(Clone, Debug)]
pub(crate) struct IdempotencyRecord {
    /// The subject in whose slot it is stored.
    pub(crate) subject: SubjectHash,
    pub(crate) name: SubjectHash,
    /// Hash of the content of the call.
    pub(crate) request: SubjectHash,
}

impl IdempotencyRecord {
    pub(crate) fn new(
        call: &Call<'_>,
        subject: SubjectHash,
        secret: &HashSecret,
        id: IdempotencyKey<'_>,
    ) -> Self {
        let rule = call.charges.first().map_or("", |charge| charge.limit.rule());
        let name = secret.hash([rule.as_bytes(), id.as_str().as_bytes()].into_iter());
        // The text is hashed, so it must not change.
        let op = match call.op {
            // The id of a hold is random, and differs between attempts.
            Op::Hold(hold) => {
                let name = if hold.expiry == Expiry::Charge { "lease" } else { "hold" };
                let quantity = hold.quantity.map(|one| format!(" {} {}", one.min, one.want));
                format!("{name} {}{}", hold.ttl.get(), quantity.unwrap_or_default())
            }
            // A peek with an id returns the stored result of the check with that id.
            Op::Peek => ScriptOp::Check.name().into(),
            op => ScriptOp::of(op).map_or("", ScriptOp::name).into(),
        };
        // The rules and not their limits: a rule may have got other limits meanwhile.
        let charges = call.charges.iter().filter(|charge| charge.limit.is_first());
        let charges = charges.map(|c| {
            let per_unit = call
                .op
                .quantity()
                .map(|quantity| quantity.per_unit(c.limit.state(), c.key).parts());
            let per_unit = per_unit.map_or(String::new(), |(num, den)| format!(" {num}/{den}"));
            format!("{} {} {}{per_unit}", secret.subject(c.key), c.limit.rule(), c.cost)
        });
        let content: Vec<String> = [op].into_iter().chain(charges).collect();
        Self { subject, name, request: secret.hash(content.iter().map(String::as_bytes)) }
    }

    /// The same id in the slot of another subject, for the result of that slot.
    pub(crate) fn at(&self, subject: SubjectHash, secret: &HashSecret) -> Self {
        if subject == self.subject {
            return self.clone();
        }
        let content = [self.name.to_string(), self.subject.to_string()];
        let name = secret.hash(content.iter().map(String::as_bytes));
        Self { subject, name, request: self.request }
    }

    /// The id of the holds of this call, which is the same in every attempt.
    pub(crate) fn hold_id(&self, secret: &HashSecret) -> HoldId {
        let Self { subject, name, request } = self;
        let content = ["hold".into(), subject.to_string(), name.to_string(), request.to_string()];
        secret.hash(content.iter().map(String::as_bytes)).0.into()
    }
}

/// Refuses a TTL of 0, and one above both the maximum and the longest lease of the limits.
pub(crate) fn check_ttl<'a>(
    ttl: Micros,
    parts: impl IntoIterator<Item = &'a LimitCharge>,
) -> Result<(), EngineError> {
    let lease = parts.into_iter().filter_map(|part| part.limit.limit().lease()).max();
    if ttl == Micros::ZERO || ttl > HoldId::MAX_TTL.max(lease.unwrap_or_default()) {
        return Err(Refusal::HoldLength.into());
    }
    Ok(())
}
