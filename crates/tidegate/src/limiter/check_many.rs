//! Several independent checks at once.

use smallvec::SmallVec;

use super::Limiter;
use super::poll_once::poll_once;
use crate::engine::Refusal;
use crate::policy::{ListMode, Plan, RuleCheck};
use crate::{Call, Charge, Decision, EngineError, Op};

impl Limiter {
    /// Checks several rules and keys in their order, each exactly as if alone: a denial does not
    /// affect the others. The results are in the same order. To charge all or none, use
    /// [`check_each`](Self::check_each).
    ///
    /// Faster than one check after the other: in memory the states of several keys are fetched at
    /// the same time, and Redis gets the checks in one batch.
    ///
    /// ```
    /// use tidegate::{Limiter, Memory, Rule, RuleCheck};
    ///
    /// let login = Rule::new("login", ["1/m".parse()?])?;
    /// let limiter = Limiter::with_rules(Memory::default(), [login])?;
    /// let checks = ["ann", "bob", "ann"].map(|user| RuleCheck::new("login", user));
    /// let allowed: Vec<bool> =
    ///     limiter.check_many_now(&checks).into_iter().map(|one| one.unwrap().allowed()).collect();
    /// assert_eq!(allowed, [true, true, false]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn check_many(&self, checks: &[RuleCheck<'_>]) -> Vec<Result<Decision, EngineError>> {
        let (policy, now) = (self.policy(), self.clock().now());
        let plan = |check| policy.plan_checks(std::slice::from_ref(check), ListMode::Evaluate, now);
        let plans: Vec<Result<Plan<'_>, Refusal>> = checks.iter().map(plan).collect();
        let planned: Vec<(Op<'_>, &Plan<'_>)> =
            plans.iter().flatten().map(|plan| (Op::Check, plan)).collect();
        let mut decided = self.decide_many(&planned).await.into_iter();
        let result = |plan: &Result<Plan<'_>, Refusal>| match plan {
            Ok(_) => decided.next().unwrap_or(Err(Refusal::NotImmediate.into())),
            Err(refusal) => Err(refusal.clone().into()),
        };
        plans.iter().map(result).collect()
    }

    /// As [`check_many`](Self::check_many), without a runtime; refused by an engine that has to
    /// wait.
    pub fn check_many_now(&self, checks: &[RuleCheck<'_>]) -> Vec<Result<Decision, EngineError>> {
        let is_synchronous = self.engine().is_synchronous();
        let decided = is_synchronous.then(|| poll_once(self.check_many(checks))).flatten();
        decided.unwrap_or_else(|| vec![Err(Refusal::NotImmediate.into()); checks.len()])
    }

    /// Applies operations to plans in their order, each as [`decide`](Self::decide) would.
    pub async fn decide_many(
        &self,
        plans: &[(Op<'_>, &Plan<'_>)],
    ) -> Vec<Result<Decision, EngineError>> {
        let is_behind =
            |(op, plan): &(Op<'_>, &Plan<'_>)| self.decide(*op, plan).may_be_behind(plan);
        if plans.iter().any(is_behind) {
            // Callers wait for some of the keys, and get their share.
            let mut decided = Vec::with_capacity(plans.len());
            for (op, plan) in plans {
                decided.push(self.decide(*op, plan).await);
            }
            return decided;
        }
        let charges: Vec<SmallVec<[Charge<'_>; 2]>> =
            plans.iter().map(|(_, plan)| plan.charges(None)).collect();
        // Some plans need no engine.
        let needs_engine = |plan: &Plan<'_>| plan.decision().is_none();
        let calls: Vec<Call<'_>> = plans
            .iter()
            .zip(&charges)
            .filter(|((_, plan), _)| needs_engine(plan))
            .map(|((op, _), charges)| Call { op: *op, charges, idempotency_key: None })
            .collect();
        let decided = self.engine().decide_many(&calls).await;
        let mut decided = decided.unwrap_or_else(|error| vec![Err(error); calls.len()]);
        for (call, result) in calls.iter().zip(&mut decided) {
            self.after(call, result);
        }
        let mut decided = decided.into_iter();
        let result = |(_, plan): &(Op<'_>, &Plan<'_>)| match plan.decision() {
            Some(decision) => Ok(decision),
            None => decided.next().unwrap_or(Err(Refusal::NotImmediate.into())),
        };
        plans.iter().map(result).collect()
    }
}
