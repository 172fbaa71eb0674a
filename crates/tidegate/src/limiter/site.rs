//! A place in a program that is under a limit: what `#[rate_limit(..)]` writes into a function.
//!
//! # Layout
//!
//! - `name`: what the rule of a function is called.
//! - `visit`: one call of the function, with its key, its cost and its patience.
//!
//! Nothing here is for people; the attribute and this belong to the same version.

mod name;
mod visit;

use std::sync::OnceLock;

use tidegate_core::{Limit, Micros};

pub use self::name::Place;
pub use self::visit::{Address, Part, Text, Visit};
use super::{Limited, Limiter, Slot};
use crate::engine::Refusal;
use crate::policy::{About, Question};
use crate::rule::InvalidRule;
use crate::{Decision, EngineError, Key, Rule};

/// The limits of one function, in a static of that function.
#[derive(Debug)]
pub struct Site(Under);

#[derive(Debug)]
enum Under {
    /// A rule of the limiter's policy.
    Named(&'static str),
    /// Limits of its own, made into a rule with the first call.
    Own { place: Place, limits: &'static [&'static str], rule: OnceLock<Result<Rule, EngineError>> },
}

/// The permission to run the function's body, kept until that has ended, with the place that it may
/// take among others.
#[must_use = "the body runs while it is kept"]
#[derive(Debug)]
pub struct Pass(#[expect(dead_code, reason = "kept for what its end does")] Option<Slot>);

impl Site {
    /// A function under a rule of the limiter's policy.
    pub const fn named(rule: &'static str) -> Self {
        Self(Under::Named(rule))
    }

    /// A function under these limits.
    pub const fn limited(place: Place, limits: &'static [&'static str]) -> Self {
        Self(Under::Own { place, limits, rule: OnceLock::new() })
    }

    /// Lets the call in, now or when its turn has come, or says why not.
    pub async fn pass(&self, limiter: &Limiter, visit: Visit) -> Result<Pass, Limited> {
        let parts = visit.parts().map_err(EngineError::from)?;
        let question =
            Question { about: self.about()?, key: Key::of(&parts), cost: visit.asked_for() };
        let (policy, clock) = (limiter.policy(), &limiter.shared.clock);
        let plan = policy.plan_questions(&[question], clock.now()).map_err(EngineError::from)?;
        let plan = plan.entering().map_err(EngineError::from)?;
        let asking = limiter.ask(plan.passing()?, &plan);
        let place = |decision: &Decision| Slot::of(limiter, decision, plan.lease()?);
        if let Some(timeout) = visit.patience() {
            let decision = asking.wait(timeout).await?;
            return Ok(Pass(place(&decision)));
        }
        let decision = asking.await?;
        if !decision.allowed() {
            return Err(Limited::denied(decision));
        }
        let pass = Pass(place(&decision));
        turn_of(limiter, &decision).await;
        Ok(pass)
    }

    fn about(&self) -> Result<About<'_>, EngineError> {
        match &self.0 {
            Under::Named(rule) => Ok(About::Rule(rule)),
            Under::Own { place, limits, rule } => {
                let rule = rule.get_or_init(|| rule_of(place, limits));
                rule.as_ref().map(About::Own).map_err(EngineError::clone)
            }
        }
    }
}

/// A queue lets in with a delay. Whoever ran at once would make a queue of nothing.
async fn turn_of(limiter: &Limiter, decision: &Decision) {
    let (clock, delay) = (&limiter.shared.clock, decision.delay());
    if delay > Micros::ZERO {
        clock.sleep_until(clock.elapsed().saturating_add(delay)).await;
    }
}

fn rule_of(place: &Place, limits: &[&str]) -> Result<Rule, EngineError> {
    // The attribute has read them already, all but the zones: it has no zone data.
    let limits: Vec<Limit> = limits
        .iter()
        .map(|text| text.parse())
        .collect::<Result<_, _>>()
        .map_err(EngineError::unavailable)?;
    Rule::new(&place.rule_name(), limits).map_err(|invalid| match invalid {
        InvalidRule::Zone(zone) => Refusal::UnknownZone(zone).into(),
        invalid => EngineError::unavailable(invalid),
    })
}
