//! Calls over several slots under an id, and those of which every slot does its share by itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{CallId, Decision, EngineError, Op, Verdict};
use tokio::time::{Instant, sleep};

use super::attempt::Attempt;
use super::verdicts::{Verdicts, allow};
use super::{Asked, Role, Unit, perhaps, side_by_side, worse};
use crate::engine::Redis;
use crate::keys::Secret;
use crate::reply::Reply;
use crate::request::{Once, Request};

/// How long an attempt waits for another one under the same id before it looks again.
const PAUSE: Duration = Duration::from_millis(2);

/// What is known under an id.
enum Looked<'a> {
    /// What was answered.
    Before(Box<Decision>),
    /// Nothing; this is what the limits say now.
    Nothing(Verdicts<'a>),
}

impl Redis {
    /// Every slot does its share, side by side. Under an id the first comes first: it knows whether
    /// the id was used for another request.
    pub(super) async fn each(
        &self,
        asked: &Asked<'_>,
        slots: &[Vec<usize>],
        op: &'static str,
        secret: &Secret,
    ) -> Result<Decision, EngineError> {
        let once = asked.call.once.map(|id| Once::new(&asked.call, asked.parts[0].tag, secret, id));
        let unit = |slot: &Vec<usize>| {
            let once = once.as_ref().map(|once| once.at(asked.parts[slot[0]].tag, secret));
            Unit::new(asked, slot.clone(), Request { once, ..Request::new(op) }, Role::Look)
        };
        let units: Vec<Unit> = slots.iter().map(unit).collect();
        let (first, rest) = units.split_at(if once.is_some() { 1 } else { units.len() });
        let mut answers = self.ask_all(first, asked.until).await;
        if answers.iter().all(Result::is_ok) {
            answers.extend(self.ask_all(rest, asked.until).await);
        }
        let done = op != "peek" && answers.iter().any(Result::is_ok);
        let failed = answers.iter().filter_map(|answer| answer.as_ref().err()).cloned();
        match failed.fold(None, worse) {
            Some(error) if done => Err(perhaps(error)),
            Some(error) => Err(error),
            None => merge(asked, &units, &answers.into_iter().flatten().collect::<Vec<_>>()),
        }
    }

    async fn ask_all(&self, units: &[Unit], until: Instant) -> Vec<Result<Reply, EngineError>> {
        let asks = units.iter().map(|unit| self.ask(unit.request.clone(), &unit.parts, until));
        side_by_side(asks.collect()).await
    }

    /// Takes at most once under `id`.
    pub(super) async fn take_once(
        &self,
        asked: &Asked<'_>,
        slots: &[Vec<usize>],
        secret: &Secret,
        id: CallId<'_>,
    ) -> Result<Decision, EngineError> {
        let once = Once::new(&asked.call, asked.parts[0].tag, secret, id);
        loop {
            let verdicts = match self.look_up(asked, slots, secret, &once).await? {
                Looked::Before(decision) => return Ok(*decision),
                Looked::Nothing(verdicts) => verdicts,
            };
            if !verdicts.allowed() {
                return Ok(verdicts.decision());
            }
            let attempt = Attempt::new(self, asked, slots, secret, &once, verdicts)?;
            match attempt.run().await? {
                Some(decision) if decision.allowed() => return Ok(decision),
                // Perhaps by what another attempt holds under this id.
                Some(denied) => {
                    let looked = self.look_up(asked, slots, secret, &once).await;
                    let Ok(Looked::Before(decision)) = looked else { return Ok(denied) };
                    return Ok(*decision);
                }
                None if Instant::now() + PAUSE < asked.until => sleep(PAUSE).await,
                None => return Err(EngineError::Ambiguous(Arc::new(UnderWay))),
            }
        }
    }

    async fn look_up<'a>(
        &self,
        asked: &'a Asked<'a>,
        slots: &[Vec<usize>],
        secret: &Secret,
        once: &Once,
    ) -> Result<Looked<'a>, EngineError> {
        let holds = matches!(asked.call.op, Op::Hold { .. });
        let unit = |(index, slot): (usize, &Vec<usize>)| {
            // A reservation is known at its home alone.
            let known = index == 0 || !holds;
            let once = known.then(|| once.at(asked.parts[slot[0]].tag, secret));
            Unit::new(asked, slot.clone(), Request { once, ..Request::new("peek") }, Role::Look)
        };
        let units: Vec<Unit> = slots.iter().enumerate().map(unit).collect();
        let answers = self.ask_all(&units, asked.until).await;
        let replies = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        if replies[0].repeats()? {
            // What lies in other slots was held and confirmed before that.
            self.confirm_once(once, asked.until).await?;
            let mut decision = merge(asked, &units, &replies)?;
            decision.details_mut().hold =
                replies[0].id(4).filter(|_| holds).map(|id| id.at(once.at.0));
            return Ok(Looked::Before(Box::new(decision)));
        }
        let mut verdicts = Verdicts::new(asked);
        for (unit, reply) in units.iter().zip(&replies) {
            if reply.repeats()? {
                // Charged here, and forgotten at home: it is not charged here again.
                let mut kept = reply.kept()?;
                kept.iter_mut().for_each(allow);
                verdicts.keep(unit, &kept);
            } else {
                verdicts.say(unit, reply)?;
            }
        }
        Ok(Looked::Nothing(verdicts))
    }
}

/// One decision of what the slots have said. If the first repeats what it said under an id, it is
/// that decision again.
fn merge(asked: &Asked<'_>, units: &[Unit], replies: &[Reply]) -> Result<Decision, EngineError> {
    let mut verdicts = Verdicts::new(asked);
    let mut in_order: Vec<Verdict> = Vec::new();
    let mut head = replies[0].head()?;
    let mut as_asked = true;
    for (unit, reply) in units.iter().zip(replies) {
        let other = reply.head()?;
        head.details_mut().refunded = head.refunded().max(other.refunded());
        if other.repeated() {
            let kept = reply.kept()?;
            as_asked &= verdicts.keep(unit, &kept);
            in_order.extend(kept);
        } else {
            verdicts.say(unit, reply)?;
            in_order.extend(verdicts.deciding(unit));
            // A record that was charged in one slot only now was not charged before.
            head.details_mut().repeated &=
                matches!(asked.call.op, Op::Check | Op::Peek | Op::Hold { .. });
        }
    }
    if head.repeated() && !matches!(asked.call.op, Op::Record | Op::Refund | Op::Reset) {
        verdicts.allow_all();
        in_order.iter_mut().for_each(allow);
    }
    let mut decision = verdicts.decision();
    if head.repeated() {
        decision.details_mut().shadow.clear();
    }
    if !as_asked {
        // The rules have got other limits meanwhile.
        decision.verdicts = in_order.into_iter().collect();
    }
    decision.details_mut().refunded = head.refunded();
    decision.details_mut().repeated = head.repeated();
    Ok(decision)
}

/// Somebody else is doing it.
#[derive(Debug)]
struct UnderWay;

impl fmt::Display for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "another attempt under this id is under way, or has been left behind; ask again under it",
        )
    }
}

impl std::error::Error for UnderWay {}
