//! Calls, asked of the server that has their keys.

use std::fmt;
use std::sync::{Arc, Mutex};

use redis::{Cmd, Value};
use tidegate::{
    Answer, Call, Charge, Clock, Cost, Decision, Engine, EngineError, Health, HoldId, Inspection,
    Key, Micros, Op, Refusal, RuleLimit, Shards, SystemClock,
};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::across::Asked;
use crate::batch::Batcher;
use crate::classify::Meaning;
use crate::confirm::Witness;
use crate::keys::{Found, Names, Secret};
use crate::link::LinkError;
use crate::reply::{Reply, Unreadable, refusal, unavailable};
use crate::request::{Beside, Once, Part, Request, check_ttl, word};
use crate::resets::Resets;
use crate::route::Route;
use crate::script::Covers;
use crate::secret::Agreed;
use crate::seen::Seen;
use crate::slot::Slot;
use crate::unheard::{End, Unheard};

/// Counts in Redis or Valkey, for a fleet.
pub struct Redis {
    pub(crate) route: Route,
    pub(crate) names: Names,
    pub(crate) configured_secret: Option<Secret>,
    pub(crate) agreed: Mutex<Option<Agreed>>,
    pub(crate) seen: Arc<Seen>,
    pub(crate) batcher: Arc<Batcher>,
    /// One server is treated as if it were a Cluster; for tests.
    pub(crate) slots_apart: bool,
    /// Whose instants are sent instead of being read by Redis; for tests.
    pub(crate) test_clock: Option<Arc<dyn Clock>>,
    /// How often the store may have lost what it had counted.
    pub(crate) resets: Resets,
    /// For the tasks that end holds of which nobody will hear.
    pub(crate) enders: Arc<Semaphore>,
}

impl Engine for Redis {
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        Answer::Later(Box::pin(async move {
            call.validate()?;
            // One deadline, however many commands it takes.
            let until = self.route.deadline();
            match call.op {
                Op::Settle { id, cost } => {
                    let request =
                        Request { settle: cost, hold: Some(id), ..Request::new("settle") };
                    self.about_hold(id, request, until).await
                }
                Op::Renew { id, ttl } => {
                    let request = Request { ttl, hold: Some(id), ..Request::new("renew") };
                    self.about_hold(id, request, until).await
                }
                _ => self.run(call, until).await,
            }
        }))
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
        Answer::Later(Box::pin(async move {
            let charge = Charge { limit, key, cost: Cost::ZERO, who: None };
            Call { op: Op::Peek, charges: &[charge], once: None }.validate()?;
            let until = self.route.deadline();
            let secret = self.secret(until).await?;
            let part = [Part::new(&charge, &secret)];
            let reply = self.ask(Request::new("inspect"), &part, until).await?;
            reply.inspection(limit)
        }))
    }

    fn shards(&self, call: &Call<'_>) -> Shards {
        self.shards_of(call)
    }

    fn health(&self) -> Health {
        let mut health = Health::up(None, 0);
        health.up = self.route.is_up();
        health.warning = self.route.warning();
        (health.resets, health.last_reset) = self.resets.told();
        health
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.test_clock.clone().unwrap_or_else(|| Arc::new(SystemClock))
    }
}

impl Redis {
    async fn run(&self, call: Call<'_>, until: Instant) -> Result<Decision, EngineError> {
        let secret = &self.secret(until).await?;
        let (parts, places) = Part::all(call.charges, secret);
        let slots = self.by_slot(&parts);
        if slots.len() > 1 {
            word(call.op)?;
            let asked = Asked { call, parts, places, until };
            return self.across(asked, &slots, secret).await;
        }
        let held = parts.iter().filter(|part| call.op.sets_aside(part.limit.limit()));
        let held: Vec<&Part> = held.collect();
        // Whoever enters where nobody counts holders only passes.
        let only_passes = matches!(call.op, Op::Enter { .. }) && held.is_empty();
        if call.once.is_none() && (only_passes || call.op == Op::Check) {
            return self.check(&call, parts, &places, until).await;
        }
        let mut request = Request::new(word(if only_passes { Op::Check } else { call.op })?);
        let mut made = None;
        if let (Some((id, ttl, expiry)), Some(first)) = (call.op.hold(), held.first()) {
            check_ttl(ttl, held.iter().copied())?;
            // The record lies with the first subject, and the id says so.
            let id = id.at(first.tag.0);
            let record = record_of(held.iter().copied());
            request = Request { hold: Some(id), ttl, expiry, record, ..request };
            made = Some(id);
        }
        request.once = call.once.map(|id| Once::new(&call, parts[0].tag, secret, id));
        // Under an id, whoever asks again gets the same hold.
        let alone = made.filter(|_| call.once.is_none());
        let held = held.into_iter().cloned().collect();
        let end = alone.map(|id| End::drop(id, request.record.clone(), held));
        let mut unheard = Unheard::new(self, vec![end]);
        let reply = self.ask(request, &parts, until).await;
        let decision = reply.and_then(|reply| reply.decision_on(&call, &parts, &places, made));
        // Somebody knows how it ended, unless it is ambiguous.
        if !matches!(decision, Err(EngineError::Ambiguous(_))) {
            unheard.leave();
        }
        decision
    }

    /// Finds a hold by its id, and asks about it with the limits it was made for.
    async fn about_hold(
        &self,
        id: HoldId,
        request: Request,
        until: Instant,
    ) -> Result<Decision, EngineError> {
        let record = self.names.hold(id);
        let mut cmd = redis::cmd("HGET");
        cmd.arg(&record).arg("b");
        let found = self.route.call_until(until, Slot::of(&record), &cmd).await;
        let found = found.map_err(|error| unavailable(error, false))?;
        let text = match found {
            Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
            _ => return Err(Refusal::UnknownHold.into()),
        };
        let unreadable = || EngineError::unavailable(Unreadable);
        let found = text.as_deref().and_then(Found::read).ok_or_else(unreadable)?;
        let part = |found: Found| {
            let limit = found.limit.parse().ok()?;
            Some(Part {
                limit: Arc::new(RuleLimit::stored(&found.rule, &found.policy, &found.state, limit)),
                tag: found.tag,
                cost: Cost::total(found.cost),
                who: String::new(),
            })
        };
        let parts: Vec<Part> =
            found.into_iter().map(part).collect::<Option<_>>().ok_or_else(unreadable)?;
        if request.op == "renew" {
            check_ttl(request.ttl, parts.iter())?;
        }
        let slots = self.by_slot(&parts);
        let mut decision = if slots.len() > 1 {
            self.about_shares(id, &request, &parts, &slots, until).await?
        } else {
            self.ask(request, &parts, until).await?.decision(&parts)?
        };
        let deciding = parts.into_iter().filter(|part| !part.limit.is_shadow());
        decision.details_mut().held = deciding.map(|part| part.limit).collect();
        Ok(decision)
    }

    /// The answer to a request; an error if there is none.
    pub(crate) async fn ask(
        &self,
        request: Request,
        parts: &[Part],
        until: Instant,
    ) -> Result<Reply, EngineError> {
        let reply = self.converse(request, parts, until).await?;
        match reply.number(0)? {
            1 | 6 => Ok(reply),
            _ => Err(refusal(&reply)),
        }
    }

    /// Runs the script; once more if the client's calendar did not hold Redis's now, if a state has
    /// something beside it that was not named, and if it is about an earlier hold, whose record has
    /// to be named.
    pub(crate) async fn converse(
        &self,
        mut request: Request,
        parts: &[Part],
        until: Instant,
    ) -> Result<Reply, EngineError> {
        const ATTEMPTS: usize = 6;
        let mut guess = self.clock().now();
        let seen = |part| if self.seen(part) { Beside::HOLDS } else { Beside::NOTHING };
        let mut beside: Vec<Beside> =
            parts.iter().map(|part| request.needs(part).and(seen(part))).collect();
        for _ in 0..ATTEMPTS {
            let (reply, witness) = self.evaluate(&request, parts, &beside, guess, until).await?;
            match reply.number(0)? {
                0 => guess = Micros::new(reply.natural(1)?),
                1 | 6 => {
                    self.learn(&request, parts, &reply)?;
                    self.confirm(&request, parts, &reply, witness, until).await?;
                    return Ok(reply);
                }
                7 => {
                    let earlier = reply.id(2).ok_or_else(|| reply.unreadable())?;
                    request.earlier = Some(earlier.at(parts[0].tag.0));
                }
                8 => {
                    for (place, beside) in beside.iter_mut().enumerate() {
                        *beside = beside.and(reply.missing(place)?);
                    }
                }
                _ => {
                    self.confirm(&request, parts, &reply, witness, until).await?;
                    return Ok(reply);
                }
            }
        }
        // Nothing was written by any of them.
        Err(EngineError::unavailable(Unreadable))
    }

    /// Were there holds on this part, when it was last asked about?
    fn seen(&self, part: &Part) -> bool {
        self.seen.has(&self.state_key(part))
    }

    /// Remembers which parts have holds. Holds that have ended stay until somebody writes.
    fn learn(&self, request: &Request, parts: &[Part], reply: &Reply) -> Result<(), EngineError> {
        if reply.repeats()? {
            return Ok(());
        }
        let verdicts = (0..parts.len()).map(|place| reply.verdict(place, 0));
        let allowed = verdicts.collect::<Result<Vec<_>, _>>()?.iter().all(|v| v.allowed);
        for (place, part) in parts.iter().enumerate() {
            if reply.held(place)? > 0 {
                self.seen.remember(&self.state_key(part));
            } else if request.writes() && allowed {
                self.seen.forget(&self.state_key(part));
            }
        }
        Ok(())
    }

    async fn evaluate(
        &self,
        request: &Request,
        parts: &[Part],
        beside: &[Beside],
        guess: Micros,
        until: Instant,
    ) -> Result<(Reply, Option<Witness>), EngineError> {
        let covers = Covers::of(parts.iter().map(|part| part.limit.limit().algorithm()));
        let script = covers.script();
        let (keys, args) = self.words(request, parts, beside, guess);
        let command = |name: &str, script: &str| {
            let mut cmd = redis::cmd(name);
            cmd.arg(script).arg(keys.len()).arg(&keys).arg(&args);
            cmd
        };
        let slot = Slot::of(&keys[0]);
        let send = async |cmd: Cmd| match request.writes() && request.confirmed {
            true => self.route.write_until(until, slot, &cmd).await,
            false => Ok((self.route.call_until(until, slot, &cmd).await?, None)),
        };
        let answer = match send(command("EVALSHA", &script.digest)).await {
            // Nothing has run: the server has not seen the script yet.
            Err(LinkError::Reply(error)) if Meaning::of(&error) == Meaning::NoScript => {
                send(command("EVAL", &script.text)).await
            }
            answer => answer,
        };
        let (answer, witness) = answer.map_err(|error| unavailable(error, request.writes()))?;
        Ok((Reply::new(answer, request.writes())?, witness))
    }

    /// An engine on the same connection, for what outlives a call.
    pub(crate) fn twin(&self) -> Self {
        Self {
            route: self.route.clone(),
            names: self.names.clone(),
            configured_secret: self.configured_secret.clone(),
            agreed: Mutex::new(None),
            seen: Arc::clone(&self.seen),
            batcher: Arc::clone(&self.batcher),
            slots_apart: self.slots_apart,
            test_clock: self.test_clock.clone(),
            resets: self.resets.clone(),
            enders: self.enders.clone(),
        }
    }
}

/// What a hold of these parts is found again by.
pub(crate) fn record_of<'a>(held: impl Iterator<Item = &'a Part>) -> String {
    let found = |part: &Part| Found::new(&part.limit, part.tag, part.cost.get());
    Found::write(&held.map(found).collect::<Vec<_>>())
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("names", &self.names).finish_non_exhaustive()
    }
}
