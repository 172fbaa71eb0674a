//! Runs script requests: retries by status, and confirmation by replicas.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tidegate::{EngineError, HoldId, Refusal};
use tokio::time::Instant;

use crate::batch::Batcher;
use crate::durability::replica_ack::{PendingAck, SendVia};
use crate::durability::unconfirmed::Unconfirmed;
use crate::protocol::encode::encode_call;
use crate::protocol::hold_hints::HoldHints;
use crate::protocol::hold_record::{HOLD_RECORD_FIELD, parts_of};
use crate::protocol::keys::KeyNames;
use crate::protocol::reply::{ScriptDecision, Status, engine_error, malformed_reply};
use crate::protocol::request::{
    CheckScript, IdempotencyRecord, LimitCharge, ScriptOp, ScriptRequest,
};
use crate::protocol::scripts::ScriptVariant;
use crate::protocol::sender::ScriptSender;
use crate::topology::hash_slot::HashSlot;

/// Runs requests on the servers that own their keys. Clones share connections and hints.
#[derive(Clone)]
pub(crate) struct ScriptExecutor {
    pub(crate) sender: ScriptSender,
    pub(crate) names: KeyNames,
    pub(crate) hold_hints: Arc<HoldHints>,
    /// States that a lean script has left to `checks.lua`.
    pub(crate) general_hints: Arc<HoldHints>,
    /// Whether the lean scripts are used.
    pub(crate) uses_lean: bool,
    pub(crate) batcher: Arc<Batcher>,
}

impl ScriptExecutor {
    /// Runs a request. A status that is not a decision is an error.
    pub(crate) async fn request(
        &self,
        request: ScriptRequest,
        until: Instant,
    ) -> Result<ScriptDecision, EngineError> {
        self.run(request, until).await?.decided()
    }

    /// Runs a request; a plain check together with others. Runs it again if no calendar window that
    /// was sent contains Redis's time, if a state has extra keys that were not named, and if the
    /// record of an earlier hold is missing: each once, unless another client changes the keys
    /// meanwhile.
    pub(crate) async fn run(
        &self,
        mut request: ScriptRequest,
        until: Instant,
    ) -> Result<Status, EngineError> {
        const ATTEMPTS: usize = 6;
        request.name_extra_keys(|part| self.hold_hints.has(part.hash));
        let is_known = |part: &LimitCharge| self.general_hints.has_for_now(part.hash);
        if self.uses_lean && !request.parts.iter().any(is_known) {
            request.script = request.lean_script();
        }
        for _ in 0..ATTEMPTS {
            let status = match request.is_plain_check() {
                true => self.batcher.check(&request, until).await?,
                false => self.send(&request, until).await?,
            };
            match status {
                Status::OutsideCalendar(now) => request.guess = Some(now),
                Status::EarlierHold(id) => {
                    let held = request.parts.iter().find(|part| part.is_held());
                    let first = held.unwrap_or(&request.parts[0]);
                    request.earlier = Some(id.with_location(first.subject.0));
                }
                Status::MissingKeys(missing) => {
                    for (extra, missing) in request.extra_keys.iter_mut().zip(missing) {
                        *extra = extra.and(missing);
                    }
                }
                Status::NotPlain(needed) => {
                    request.parts.iter().for_each(|part| self.general_hints.remember(part.hash));
                    request.extra_keys.iter_mut().for_each(|extra| *extra = extra.and(needed));
                    request.script = CheckScript::General;
                }
                Status::Decided(decision) => {
                    self.update_hold_hints(&request, &decision);
                    return Ok(Status::Decided(decision));
                }
                status => return Ok(status),
            }
        }
        // None of the attempts has written.
        Err(malformed_reply(false))
    }

    /// The parts of a hold, from its record in Redis.
    pub(crate) async fn held_parts(
        &self,
        id: HoldId,
        until: Instant,
    ) -> Result<Vec<LimitCharge>, EngineError> {
        let key = self.names.hold(id);
        let mut cmd = redis::cmd("HGET");
        cmd.arg(&key).arg(HOLD_RECORD_FIELD);
        let record = self.sender.router.call_until(until, HashSlot::of(&key), &cmd).await;
        let record = match record.map_err(|error| engine_error(error, false))? {
            Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
            _ => return Err(Refusal::UnknownHold.into()),
        };
        let parts = record.and_then(|record| parts_of(&record, &self.names));
        parts.ok_or_else(|| malformed_reply(false))
    }

    /// Completes when replicas have the stored result of an id, which a read has found.
    pub(crate) async fn confirm_result(
        &self,
        once: &IdempotencyRecord,
        until: Instant,
    ) -> Result<(), EngineError> {
        let router = &self.sender.router;
        if router.replicas_to_confirm() == 0 {
            return Ok(());
        }
        let key = self.names.once(once.subject, once.name);
        let probe = probe(&key, RESULT_TTL);
        let probed = router.send(until, HashSlot::of(&key), &probe, SendVia::Confirmed).await;
        match probed.map_err(|error| engine_error(error, true))? {
            // A script writes all or nothing, so its charges are where its result is.
            (Value::Int(1), Some(ack)) => ack.confirm(until, None).await,
            _ => Err(Unconfirmed::Gone.into()),
        }
    }

    /// Sends a request to `decide.lua`.
    async fn send(&self, request: &ScriptRequest, until: Instant) -> Result<Status, EngineError> {
        let script = ScriptVariant::of_parts(&*request.parts).script();
        let via = match request.may_write() && request.confirmed {
            true => SendVia::Confirmed,
            false => SendVia::Shared,
        };
        let time = self.sender.time();
        let push = |cmd: &mut Cmd| encode_call(cmd, &self.names, request, &time);
        let reply = self.sender.eval(script, request.slot(), via, until, push).await;
        let (value, ack) = reply.map_err(|error| engine_error(error, request.may_write()))?;
        let status = Status::of_call(value, request)?;
        if let Some(ack) = ack {
            self.confirm(request, &status, ack, until).await?;
        }
        Ok(status)
    }

    /// Completes when replicas have the write of this call. If the write may be that of an earlier
    /// call, on another connection, its record is written again: `WAIT` counts only writes of its
    /// own connection.
    async fn confirm(
        &self,
        request: &ScriptRequest,
        status: &Status,
        ack: PendingAck,
        until: Instant,
    ) -> Result<(), EngineError> {
        let record = || request.hold.map(|id| self.names.hold(id));
        let probe = match status {
            Status::Decided(decision) if decision.repeated => {
                let once = request.once.as_ref();
                once.map(|once| probe(&self.names.once(once.subject, once.name), RESULT_TTL))
            }
            // Settling again writes nothing and returns the first result.
            Status::Decided(_) if request.op == ScriptOp::Settle => {
                record().map(|key| probe(&key, RESULT_TTL))
            }
            Status::Decided(decision) if decision.has_written(request) => None,
            // An earlier attempt with this id holds the permits, and they count as charged.
            Status::HoldExists { .. }
                if request.op == ScriptOp::Visit && request.once.is_some() =>
            {
                record().map(|key| probe(&key, Duration::from(HoldId::MAX_TTL) + RESULT_TTL))
            }
            // Denied or refused.
            _ => return Ok(()),
        };
        ack.confirm(until, probe).await
    }

    /// Stores which parts have holds. Expired holds stay in Redis until the next write.
    fn update_hold_hints(&self, request: &ScriptRequest, decision: &ScriptDecision) {
        if decision.repeated {
            return;
        }
        let has_written = decision.has_written(request);
        for (part, reply) in request.parts.iter().zip(&decision.parts) {
            if reply.held > 0 {
                self.hold_hints.remember(part.hash);
            } else if has_written && reply.verdict.allowed {
                self.hold_hints.forget(part.hash);
            }
        }
    }
}

/// How long results of calls are stored.
const RESULT_TTL: Duration = Duration::from_secs(3_600);

/// A write that changes nothing: it sets the TTL of a record. A record stores its own end, which is
/// never later.
fn probe(key: &str, ttl: Duration) -> Cmd {
    let ttl = ttl + Duration::from_secs(1);
    let mut cmd = redis::cmd("PEXPIRE");
    cmd.arg(key).arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    cmd
}
