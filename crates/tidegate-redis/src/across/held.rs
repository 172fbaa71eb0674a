//! Settling and renewing a hold that lies in several slots.

use tidegate::{Decision, EngineError, HoldId, Refusal, Source};
use tokio::time::Instant;

use super::{perhaps, side_by_side, worse};
use crate::engine::Redis;
use crate::reply::Reply;
use crate::request::{Part, Request};

/// What a slot said about its share of a hold.
enum Share {
    Known(Reply),
    /// There is none any more: it ended, and was forgotten.
    Gone(Reply),
}

impl Redis {
    /// Asks every slot about its share. The one whose record names the others comes last when the
    /// hold is settled: as long as that stands, whoever had no answer can ask again.
    pub(crate) async fn about_shares(
        &self,
        id: HoldId,
        request: &Request,
        parts: &[Part],
        slots: &[Vec<usize>],
        until: Instant,
    ) -> Result<Decision, EngineError> {
        let (home, others) = slots.split_first().ok_or(Refusal::UnknownHold)?;
        let ask = async |slot: &[usize]| {
            let parts: Vec<Part> = slot.iter().map(|place| parts[*place].clone()).collect();
            let hold = Some(id.at(parts.first().map_or(id.place(), |first| first.tag.0)));
            let request = Request { hold, ..request.clone() };
            match self.ask(request, &parts, until).await {
                Ok(reply) => Ok(Share::Known(reply)),
                Err(EngineError::Refused(Refusal::UnknownHold)) if slot != home => {
                    let reply = self.ask(Request::new("peek"), &parts, until).await;
                    reply.map(Share::Gone)
                }
                Err(error) => Err(error),
            }
        };
        let asks: Vec<_> = others.iter().map(|slot| ask(slot)).collect();
        let mut shares = Vec::new();
        let mut failed = None;
        for answer in side_by_side(asks).await {
            match answer {
                Ok(share) => shares.push(share),
                Err(error) => failed = worse(failed, error),
            }
        }
        if let Some(error) = failed {
            return Err(if shares.is_empty() { error } else { perhaps(error) });
        }
        shares.insert(0, ask(home).await.map_err(perhaps)?);
        self.merge_shares(parts, slots, &shares)
    }

    fn merge_shares(
        &self,
        parts: &[Part],
        slots: &[Vec<usize>],
        shares: &[Share],
    ) -> Result<Decision, EngineError> {
        let mut said = vec![None; parts.len()];
        let mut decision = Decision::new(Source::Redis, Default::default());
        for (slot, share) in slots.iter().zip(shares) {
            for (index, place) in slot.iter().enumerate() {
                said[*place] = Some(match share {
                    Share::Known(reply) => reply.verdict(index, reply.capacity(index)?)?,
                    Share::Gone(reply) => {
                        reply.verdict(index, parts[*place].limit.limit().capacity())?
                    }
                });
            }
            decision.details_mut().expired |= match share {
                Share::Known(reply) => reply.expired(),
                Share::Gone(_) => true,
            };
        }
        for (part, verdict) in parts.iter().zip(said) {
            decision.push(&part.limit, verdict.ok_or(Refusal::UnknownHold)?);
        }
        Ok(decision)
    }
}
