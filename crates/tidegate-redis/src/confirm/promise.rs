//! What of an answer has to be confirmed.

use std::time::Duration;

use redis::{Cmd, Value};
use tidegate::{EngineError, HoldId};
use tokio::time::Instant;

use super::{Unconfirmed, Witness};
use crate::engine::Redis;
use crate::reply::{Reply, unavailable};
use crate::request::{Once, Part, Request};
use crate::slot::Slot;

/// What a reply lets its caller rely on.
#[derive(PartialEq, Eq, Debug)]
enum Promise {
    /// Nothing: it was denied or refused.
    Nothing,
    /// What this call has written.
    Written,
    /// What this call has written, or an earlier one: this touches its record.
    Earlier(Touch),
}

impl Redis {
    /// Completes when replicas have what this reply promises. Without a witness they are not asked.
    pub(crate) async fn confirm(
        &self,
        request: &Request,
        parts: &[Part],
        reply: &Reply,
        witness: Option<Witness>,
        until: Instant,
    ) -> Result<(), EngineError> {
        let Some(witness) = witness else { return Ok(()) };
        match self.promise(request, parts, reply)? {
            Promise::Nothing => Ok(()),
            Promise::Written => witness.confirm(until, None).await,
            // A connection is asked for its own writes, and this may have been written on another one.
            Promise::Earlier(touch) => witness.confirm(until, Some(touch.command())).await,
        }
    }

    /// Completes when replicas have what was done under an id, which a call that only looks has found.
    pub(crate) async fn confirm_once(
        &self,
        once: &Once,
        until: Instant,
    ) -> Result<(), EngineError> {
        if self.route.confirmed_by() == 0 {
            return Ok(());
        }
        let key = self.names.once(once.at, once.name);
        let slot = Slot::of(&key);
        let touched = self.route.write_until(until, slot, &Touch::ended(key).command()).await;
        match touched.map_err(|error| unavailable(error, true))? {
            // Where its record is, there is what was done: a script writes all or nothing.
            (Value::Int(1), Some(witness)) => witness.confirm(until, None).await,
            _ => Err(Unconfirmed::Gone.into()),
        }
    }

    fn promise(
        &self,
        request: &Request,
        parts: &[Part],
        reply: &Reply,
    ) -> Result<Promise, EngineError> {
        let record =
            || request.hold.map(|id| self.names.hold(id)).ok_or_else(|| reply.unreadable());
        let once = || request.once.as_ref().map(|once| self.names.once(once.at, once.name));
        Ok(match (reply.number(0)?, request.op) {
            (6, _) => Promise::Earlier(Touch::ended(once().ok_or_else(|| reply.unreadable())?)),
            // Under an id somebody has held this before, and it counts as charged.
            (5, "visit") if request.once.is_some() => Promise::Earlier(Touch::held(record()?)),
            // Settled once more, it is answered as before, and nothing is written.
            (1, "settle") => Promise::Earlier(Touch::ended(record()?)),
            (1, "check" | "hold" | "visit" | "enter") => match granted(parts, reply)? {
                true => Promise::Written,
                false => Promise::Nothing,
            },
            (1, _) => Promise::Written,
            _ => Promise::Nothing,
        })
    }
}

/// Did all that decide allow it, and was there something to take?
fn granted(parts: &[Part], reply: &Reply) -> Result<bool, EngineError> {
    let mut granted = parts.iter().any(|part| !part.cost.is_zero());
    for (place, part) in parts.iter().enumerate().filter(|(_, part)| !part.limit.is_shadow()) {
        granted &= reply.verdict(place, part.limit.limit().capacity())?.allowed;
    }
    Ok(granted)
}

/// A write that changes nothing: the time for which Redis keeps a record. The record knows by itself when
/// it ends, and that is no later.
#[derive(PartialEq, Eq, Debug)]
struct Touch {
    key: String,
    span: Duration,
}

impl Touch {
    const HOUR: Duration = Duration::from_secs(3_600);

    /// What is remembered of something that was done.
    fn ended(key: String) -> Self {
        Self { key, span: Self::HOUR }
    }

    /// What is known of a hold that is to be charged.
    fn held(key: String) -> Self {
        Self { key, span: Duration::from(HoldId::MAX_TTL) + Self::HOUR }
    }

    fn command(&self) -> Cmd {
        let span = self.span + Duration::from_secs(1);
        let mut cmd = redis::cmd("PEXPIRE");
        cmd.arg(&self.key).arg(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        cmd
    }
}
