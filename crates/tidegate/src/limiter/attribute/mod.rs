//! Runtime of `#[rate_limit]`: what the attribute calls. Imports: slot.
//!
//! - `rule_name`: rule name of a function. `call`: key, cost and timeout of one function call.
//!
//! Not for direct use; the attribute and this module have the same version.

mod call;
mod rule_name;

use std::sync::OnceLock;

use tidegate_core::{Limit, Micros};

pub use self::call::{DisplayArg, FunctionCall, IpArg, KeyArg};
pub use self::rule_name::FunctionPath;
use super::{Limited, Limiter, Slot};
use crate::InvalidRule;
use crate::engine::Refusal;
use crate::policy::{ListMode, RuleCheck, RuleTarget};
use crate::{Decision, EngineError, Key, Rule};

/// The limits of one function, in a static of that function.
#[derive(Debug)]
pub struct LimitedFunction(FunctionRule);

#[derive(Debug)]
enum FunctionRule {
    /// A rule of the limiter's policy.
    Named(&'static str),
    /// Limits in the attribute, made into a rule by the first call.
    Own {
        path: FunctionPath,
        limits: &'static [&'static str],
        rule: OnceLock<Result<Rule, EngineError>>,
    },
}

/// The permission to run the function's body, with its concurrency slot. It is dropped when the
/// body ends.
#[must_use = "must be kept until the function body ends"]
#[derive(Debug)]
pub struct FunctionPermit(#[expect(dead_code, reason = "released on drop")] Option<Slot>);

impl LimitedFunction {
    /// A function under a rule of the limiter's policy.
    pub const fn named(rule: &'static str) -> Self {
        Self(FunctionRule::Named(rule))
    }

    /// A function under these limits.
    pub const fn limited(path: FunctionPath, limits: &'static [&'static str]) -> Self {
        Self(FunctionRule::Own { path, limits, rule: OnceLock::new() })
    }

    /// Admits the call, now or after waiting, or returns the reason why not.
    pub async fn enter(
        &self,
        limiter: &Limiter,
        call: FunctionCall,
    ) -> Result<FunctionPermit, Limited> {
        let parts = call.parts().map_err(EngineError::from)?;
        let (target, key) = (self.target()?, Key::of(&parts));
        let check = RuleCheck::of(target, key, call.permits().get());
        let (policy, now) = (limiter.policy(), limiter.shared.clock.now());
        let plan = policy.plan_checks(&[check], ListMode::Evaluate, now);
        let plan = plan.map_err(EngineError::from)?;
        let plan = plan.with_slots().map_err(EngineError::from)?;
        let check = limiter.decide(plan.op()?, &plan);
        let slot = |decision: &Decision| Slot::of(limiter, decision, plan.lease()?);
        if let Some(timeout) = call.timeout() {
            let decision = check.wait(timeout).await?;
            return Ok(FunctionPermit(slot(&decision)));
        }
        let decision = check.await?;
        if !decision.allowed() {
            return Err(Limited::denied(decision));
        }
        let permit = FunctionPermit(slot(&decision));
        wait_for_turn(limiter, &decision).await;
        Ok(permit)
    }

    fn target(&self) -> Result<RuleTarget<'_>, EngineError> {
        match &self.0 {
            FunctionRule::Named(rule) => Ok(RuleTarget::Named(rule)),
            FunctionRule::Own { path, limits, rule } => {
                let rule = rule.get_or_init(|| rule_of(path, limits));
                rule.as_ref().map(RuleTarget::Own).map_err(EngineError::clone)
            }
        }
    }
}

/// A queue admits with a delay. Without waiting for it, the queue would not smooth anything.
async fn wait_for_turn(limiter: &Limiter, decision: &Decision) {
    let (clock, delay) = (&limiter.shared.clock, decision.delay());
    if delay > Micros::ZERO {
        clock.sleep_until(clock.elapsed().saturating_add(delay)).await;
    }
}

fn rule_of(path: &FunctionPath, limits: &[&str]) -> Result<Rule, EngineError> {
    // The attribute has parsed them already, except for time zones: it has no zone data.
    let limits: Vec<Limit> = limits
        .iter()
        .map(|text| text.parse())
        .collect::<Result<_, _>>()
        .map_err(EngineError::unavailable)?;
    Rule::new(&path.rule_name(), limits).map_err(|invalid| match invalid {
        InvalidRule::Zone(zone) => Refusal::UnknownZone(zone).into(),
        invalid => EngineError::unavailable(invalid),
    })
}
