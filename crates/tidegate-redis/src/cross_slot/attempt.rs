//! One attempt to take permits in several slots, at most once per idempotency key.
//!
//! The record of the id is in the slot of the first part, its home, as it is with a single slot.
//! The home charges and stores the record in one step, and that step decides: the other slots hold
//! before it, and charge after it. The ids of these holds are derived from the idempotency key. So
//! of two attempts one detects the other. And a hold that an interrupted attempt has left is
//! charged when it expires, and the next attempt finds it charged.

use std::ops::Range;

use tidegate::{Decision, EngineError, Op};
use tokio::time::Instant;

use crate::connection::timing::join_all;
use crate::cross_slot::abandoned_holds::{AbandonedHolds, all_ended};
use crate::cross_slot::error::{as_ambiguous, more_severe};
use crate::cross_slot::merge::MergedVerdicts;
use crate::cross_slot::slot_request::{CrossSlotCall, SlotRequest, SlotRole, not_ended};
use crate::executor::ScriptExecutor;
use crate::protocol::reply::{ScriptDecision, Status};
use crate::protocol::request::{IdempotencyRecord, ScriptOp};

pub(super) struct Attempt<'a> {
    executor: &'a ScriptExecutor,
    until: Instant,
    hold_until: Instant,
    /// The record of the id in the slot of each request.
    records: Vec<IdempotencyRecord>,
    home: SlotRequest,
    /// The call makes a hold.
    holds: bool,
    /// For the other slots.
    requests: Vec<SlotRequest>,
    outcomes: Vec<SlotOutcome>,
    abandoned: AbandonedHolds<'a>,
    /// From before the attempt, unless a slot has decided since.
    verdicts: MergedVerdicts<'a>,
}

/// The result of a request to a slot.
enum SlotOutcome {
    /// Not taken.
    None,
    /// Held by this attempt.
    Held(Option<ScriptDecision>),
    /// Charged by an earlier attempt, or by the expiry of its hold.
    Earlier,
}

/// Why an attempt ends early.
enum AttemptEnd {
    Denied,
    /// Another attempt is in progress.
    Busy,
    Failed(EngineError),
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        call: &'a CrossSlotCall<'a>,
        once: &IdempotencyRecord,
        verdicts: MergedVerdicts<'a>,
    ) -> Result<Self, EngineError> {
        let CrossSlotCall { executor, cleanup, secret, slots, until, .. } = *call;
        let (home, others) = slots.split_at(1);
        let hold_id = once.hold_id(secret);
        let (mut home, holds) = match call.call.op {
            Op::Hold(hold) => (SlotRequest::home(call, home.concat(), hold)?, true),
            _ => (SlotRequest::new(call, home.concat(), ScriptOp::Check, SlotRole::Look), false),
        };
        home.request.once = Some(once.clone());
        let mut requests = SlotRequest::all(call, others, hold_id)?;
        // The verdicts of parts without cost are known already.
        requests.retain(|slot| slot.role != SlotRole::Look);
        let records: Vec<IdempotencyRecord> =
            requests.iter().map(|slot| once.at(slot.subject(), secret)).collect();
        for (slot, record) in requests.iter_mut().zip(&records) {
            // A late hold, after another attempt has charged, must not be charged when it expires.
            // But the result of a reservation is valid only as long as its hold.
            if slot.role == SlotRole::Charge && !holds {
                slot.request.once = Some(record.clone());
            }
        }
        let abandoned = AbandonedHolds::new(executor, cleanup, vec![None; requests.len()]);
        Ok(Self {
            executor,
            until,
            hold_until: call.hold_until(),
            records,
            home,
            holds,
            requests,
            outcomes: Vec::new(),
            abandoned,
            verdicts,
        })
    }

    /// None if another attempt is in progress.
    pub(super) async fn run(mut self) -> Result<Option<Decision>, EngineError> {
        // The first slot alone: two attempts that hold in all slots concurrently could block each
        // other.
        let first = self.requests.len().min(1);
        for range in [0..first, first..self.requests.len()] {
            if let Some(end) = self.hold(range).await {
                return self.stop(end).await;
            }
        }
        // From here on the call may be decided: the holds stay, and are charged when they expire.
        self.abandoned.disarm();
        match self.executor.request(self.home.request.clone(), self.hold_until).await {
            Err(error @ EngineError::Ambiguous(_)) => Err(error),
            Err(error) => self.stop(AttemptEnd::Failed(error)).await,
            // Another attempt has made the hold meanwhile.
            Ok(reply) if reply.repeated && self.holds => self.stop(AttemptEnd::Busy).await,
            Ok(reply) if reply.repeated => {
                self.charge().await;
                Ok(None)
            }
            Ok(reply) => {
                self.verdicts.set(&self.home, &reply);
                if !self.verdicts.allowed() {
                    return self.stop(AttemptEnd::Denied).await;
                }
                self.charge().await;
                let mut decision = self.verdicts.decision();
                let made = reply.hold.and(self.home.request.hold);
                decision.details_mut().hold = made.filter(|_| self.holds);
                Ok(Some(decision))
            }
        }
    }

    /// Sends the requests in `range`.
    async fn hold(&mut self, range: Range<usize>) -> Option<AttemptEnd> {
        let (executor, hold_until) = (self.executor, self.hold_until);
        for index in range.clone() {
            self.abandoned.set(index, self.requests[index].drop_hold());
        }
        let slots = self.requests[range.clone()].iter();
        let replies = slots.map(|slot| executor.run(slot.request.clone(), hold_until));
        let replies = join_all(replies.collect()).await;
        let (mut failed, mut busy, mut denied) = (None, false, false);
        for (index, reply) in range.zip(replies) {
            let slot = &self.requests[index];
            let mut outcome = SlotOutcome::None;
            match reply {
                Err(error) => {
                    if matches!(error, EngineError::Ambiguous(_)) {
                        outcome = SlotOutcome::Held(None);
                    }
                    failed = more_severe(failed, error);
                }
                Ok(Status::HoldExists { is_active }) if slot.role == SlotRole::Charge => {
                    if is_active {
                        busy = true;
                    } else {
                        outcome = SlotOutcome::Earlier;
                    }
                }
                Ok(status) => match status.decided() {
                    Ok(reply) if reply.repeated => outcome = SlotOutcome::Earlier,
                    Ok(reply) if reply.hold.is_some() => outcome = SlotOutcome::Held(Some(reply)),
                    // Denied, or held by no limit but shadow limits that deny it.
                    Ok(reply) => {
                        self.verdicts.set(slot, &reply);
                        denied |= !self.verdicts.allowed();
                    }
                    Err(refusal) => failed = more_severe(failed, refusal),
                },
            }
            if !matches!(outcome, SlotOutcome::Held(_)) {
                self.abandoned.set(index, None);
            }
            self.outcomes.push(outcome);
        }
        match failed {
            Some(error) => Some(AttemptEnd::Failed(error)),
            None if busy => Some(AttemptEnd::Busy),
            None if denied => Some(AttemptEnd::Denied),
            None => None,
        }
    }

    /// Drops the holds of this attempt, and returns its result.
    async fn stop(&mut self, end: AttemptEnd) -> Result<Option<Decision>, EngineError> {
        for (index, outcome) in self.outcomes.iter().enumerate() {
            if matches!(outcome, SlotOutcome::Held(_)) {
                self.abandoned.set(index, self.requests[index].drop_hold());
            }
        }
        let ended = self.abandoned.drop_all(self.until).await;
        match (end, not_ended(&self.requests, &ended)) {
            (AttemptEnd::Failed(error), _) if all_ended(&ended) => Err(error),
            (AttemptEnd::Failed(error), _) => Err(as_ambiguous(error)),
            (_, Some(error)) => Err(error),
            (AttemptEnd::Busy, None) => Ok(None),
            (AttemptEnd::Denied, None) => Ok(Some(self.verdicts.decision())),
        }
    }

    /// The call is decided: charges the temporary holds. The caller's holds stay.
    async fn charge(&mut self) {
        for (index, slot) in self.requests.iter().enumerate() {
            if let SlotOutcome::Held(Some(reply)) = &self.outcomes[index] {
                self.verdicts.set(slot, reply);
            }
            if slot.role == SlotRole::Charge {
                let once = (!self.holds).then(|| self.records[index].clone());
                self.abandoned.set(index, slot.charge_hold(once));
            }
        }
        let ended = self.abandoned.charge_all(self.until).await;
        self.verdicts.set_charged(&self.requests, &ended);
        for (index, ended) in ended.iter().enumerate() {
            if matches!(ended, Some(Ok(reply)) if reply.repeated) {
                // Another attempt has charged: the hold of this one is one too many.
                self.abandoned.set(index, self.requests[index].drop_hold());
            }
        }
    }
}
