//! How a key stands, and how it recovers if nobody asks.

use std::sync::Arc;

use tidegate::policy::Question;
use tidegate::{Call, Charge, Cost, Inspection, Key, Micros, Op, RuleLimit, Source, Wait};

use super::{Ask, Failure, Service};
use crate::plot::Form;

/// A key under one limit.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// The limit.
    pub limit: Arc<RuleLimit>,
    /// How the key stands.
    pub found: Inspection,
    /// When more fits, soonest first; empty if nothing is used.
    pub recovery: Vec<Recovered>,
}

/// So much fits after so long, if nobody asks meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// How long it takes; never where only somebody who gives back could bring it.
    pub after: Wait,
    /// How much fits then.
    pub fits: u64,
}

impl Service {
    /// The most questions to the store about one key.
    const MOST_LOOKS: usize = 96;
    /// The most of them about one limit.
    const MOST_LOOKS_OF_ONE: usize = 32;

    /// How a key stands under each limit, and how it recovers. The store is asked several times, so that others who
    /// ask meanwhile are seen by some of its answers.
    pub async fn outlook(&self, ask: Ask<'_>) -> Result<Vec<Outlook>, Failure> {
        let active = self.active();
        let own = self.own_rules(&[ask], &active)?;
        let about = ask.about(own.first().and_then(Option::as_ref))?;
        ask.needs_key(&active)?;
        let questions = [Question { about, key: ask.key, cost: Cost::ZERO }];
        let plan = active.policy.plan_changes(&questions, self.clock.now())?;
        let count: usize = plan.steps().iter().map(|step| step.rule().limits().len()).sum();
        let budget = (Self::MOST_LOOKS / count.max(1)).clamp(2, Self::MOST_LOOKS_OF_ONE);
        let mut outlooks = Vec::new();
        for step in plan.steps() {
            for limit in step.rule().limits() {
                let found = self.limiter.engine().inspect(limit, step.key()).await;
                let found = found.map_err(|error| self.count_error(error))?;
                let recovery = self.recovery(limit, step.key(), &found, budget).await?;
                outlooks.push(Outlook { limit: limit.clone(), found, recovery });
            }
        }
        Ok(outlooks)
    }

    async fn recovery(
        &self,
        limit: &Arc<RuleLimit>,
        key: Key<'_>,
        found: &Inspection,
        budget: usize,
    ) -> Result<Vec<Recovered>, Failure> {
        let begun = self.clock.elapsed();
        let mut known = Known::new(limit, found, budget);
        for _ in 0..budget {
            let Some(wanted) = known.next() else { break };
            let Ok(cost) = Cost::new(wanted) else { break };
            let charges = [Charge { limit, key, cost, who: None }];
            let call = Call { op: Op::Peek, charges: &charges, once: None };
            let decision = self.limiter.engine().decide(call).await;
            let decision = decision.map_err(|error| self.count_error(error))?;
            // Whoever stands in for the store knows another state.
            if decision.source == Source::Fallback {
                return Ok(Vec::new());
            }
            let Some(verdict) = decision.verdicts.first().or(decision.shadow().first()) else {
                break;
            };
            let meanwhile = self.clock.elapsed().saturating_sub(begun);
            known.learn(wanted, verdict.retry_after, meanwhile);
        }
        Ok(known.recovery)
    }
}

/// What is known about a recovery, and what is worth asking.
struct Known {
    /// What fits already.
    fits: u64,
    /// Amounts that are looked at first.
    first: Vec<u64>,
    /// Does what fits grow evenly between the first and the last?
    is_even: bool,
    recovery: Vec<Recovered>,
}

impl Known {
    fn new(limit: &RuleLimit, found: &Inspection, budget: usize) -> Self {
        let (fits, capacity) = (found.standing.remaining, found.limit);
        let mut first = Vec::new();
        if fits < capacity {
            first.extend([capacity, fits + 1]);
            // An entry of a log leaves as a whole, so these are the amounts at which something changes.
            let mut left = found.standing.used.saturating_add(found.standing.held);
            let every = found.entries.len().div_ceil(budget.saturating_sub(2).max(1)).max(1);
            for (nth, (_, cost)) in found.entries.iter().enumerate() {
                left = left.saturating_sub(*cost);
                if (nth + 1) % every == 0 {
                    first.push(capacity.saturating_sub(left));
                }
            }
        }
        first.retain(|wanted| (fits + 1..=capacity).contains(wanted));
        let is_even = found.standing.held == 0 && Form::of(limit.limit()) == Form::Bucket;
        first.reverse();
        // Taken from the end: all that can be had, then the next that can.
        Self { fits, first, is_even, recovery: Vec::new() }
    }

    /// The next amount to ask about: what was named first, then the middle of the widest gap.
    fn next(&mut self) -> Option<u64> {
        while let Some(wanted) = self.first.pop() {
            if self.recovery.iter().all(|known| known.fits != wanted) {
                return Some(wanted);
            }
        }
        if self.is_even {
            return None;
        }
        let none = Recovered { after: Wait::NONE, fits: self.fits };
        let before = std::iter::once(&none).chain(&self.recovery);
        let gaps = before.zip(&self.recovery).filter(|(one, next)| {
            next.fits - one.fits > 1 && next.after != one.after && next.after.span().is_some()
        });
        let width = |(one, next): &(&Recovered, &Recovered)| {
            let span = |known: &Recovered| known.after.span().map_or(0, Micros::get);
            u128::from(span(next).saturating_sub(span(one))) * u128::from(next.fits - one.fits)
        };
        let (one, next) = gaps.max_by_key(width)?;
        Some(one.fits + (next.fits - one.fits) / 2)
    }

    /// Takes an answer into account that came so much later than the standing, which is as exactly as it is known when
    /// it was given. More never fits sooner.
    fn learn(&mut self, fits: u64, after: Wait, meanwhile: Micros) {
        let mut after = match after {
            Wait::For(Micros::MAX) | Wait::Never => Wait::Never,
            Wait::For(span) => Wait::For(span.saturating_add(meanwhile)),
        };
        let place = self.recovery.partition_point(|known| known.fits < fits);
        let before = place.checked_sub(1).and_then(|before| self.recovery.get(before));
        let next = self.recovery.get(place);
        for known in before.into_iter().chain(next) {
            if are_close(known.after, after, meanwhile) {
                after = known.after;
            }
        }
        let after = before.map_or(after, |before| after.max(before.after));
        let after = next.map_or(after, |next| after.min(next.after));
        self.recovery.insert(place, Recovered { after, fits });
    }
}

fn are_close(one: Wait, other: Wait, most: Micros) -> bool {
    let spans = one.span().zip(other.span());
    spans.is_some_and(|(one, other)| one.get().abs_diff(other.get()) <= most.get())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate::{Limit, ManualClock, Memory, Policy};

    use super::*;
    use crate::active::{Active, Adhoc};
    use crate::metrics::Metrics;
    use crate::service::{Target, Verb};

    fn service(clock: &ManualClock) -> Service {
        let engine = Memory::builder().clock(clock.clone()).build();
        let metrics = Arc::new(Metrics::default());
        let policy = Policy::new(Vec::<tidegate::PolicyRule>::new()).unwrap();
        let active = Active::new(policy, [].into_iter().collect(), Adhoc::Allow, &metrics);
        Service::new(Arc::new(engine), active, metrics)
    }

    async fn told(service: &Service, limit: &str) -> Vec<(u64, Option<u64>)> {
        let ask = Ask { target: Target::Limit(limit), key: Key::from("k"), cost: 0 };
        let outlook = service.outlook(ask).await.unwrap().remove(0);
        let millis = |known: &Recovered| known.after.span().map(|span| span.get() / 1_000);
        outlook.recovery.iter().map(|known| (known.fits, millis(known))).collect()
    }

    #[tokio::test]
    async fn a_recovery_is_told_as_the_arithmetic_has_it() {
        let clock = ManualClock::new(Micros::from_secs(1_700_000_000));
        let service = service(&clock);
        let use_up = async |limit: &'static str, cost: u64| {
            let ask = Ask { target: Target::Limit(limit), key: Key::from("k"), cost };
            assert!(service.ask(Verb::Check, &[ask], None).await.unwrap().decision.allowed());
        };
        assert_eq!(told(&service, "10/s").await, [], "an unused key has nothing to recover");
        use_up("10/s", 10).await;
        assert_eq!(told(&service, "10/s").await, [(1, Some(100)), (10, Some(1_000))]);
        use_up("fixed-window 100/1m", 60).await;
        // 1,700,000,000 lies 20 s into a minute.
        let end = [(41, Some(40_000)), (100, Some(40_000))];
        assert_eq!(told(&service, "fixed-window 100/1m").await, end);
        for cost in [1, 2] {
            use_up("sliding-log 5/10s", cost).await;
            clock.advance(Duration::from_secs(1));
        }
        let log = [(3, Some(8_000)), (4, Some(9_000)), (5, Some(9_000))];
        assert_eq!(told(&service, "sliding-log 5/10s").await, log);
        use_up("token-bucket 10/s burst 10 every 500ms", 8).await;
        let steps = told(&service, "token-bucket 10/s burst 10 every 500ms").await;
        assert_eq!(steps.first(), Some(&(3, Some(500))), "{steps:?}");
        assert!(steps.contains(&(7, Some(500))) && steps.contains(&(8, Some(1_000))), "{steps:?}");
    }

    #[tokio::test]
    async fn questions_are_bounded_however_large_the_limit_is() {
        let clock = ManualClock::new(Micros::from_secs(1_700_000_000));
        let service = service(&clock);
        let limit = "sliding-log 100000/1h";
        assert!(limit.parse::<Limit>().is_ok());
        for _ in 0..200 {
            let ask = Ask { target: Target::Limit(limit), key: Key::from("k"), cost: 7 };
            service.ask(Verb::Check, &[ask], None).await.unwrap();
            clock.advance(Duration::from_secs(3));
        }
        let recovery = told(&service, limit).await;
        assert_eq!(recovery.len(), Service::MOST_LOOKS_OF_ONE);
        assert!(recovery.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{recovery:?}");
        assert_eq!(recovery.last(), Some(&(100_000, Some(3_597_000))));
    }
}
