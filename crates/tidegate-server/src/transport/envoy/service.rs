//! `ShouldRateLimit` on top of [`CheckService`].
//!
//! Descriptors without a number of hits, or with one hit, are one call: all of them are charged, or
//! none. A larger number is usage that has happened, or happens whatever the response is: it is
//! charged, into debt if necessary.
//!
//! Descriptors of a reserve are one hold, all of them or none. Its id is derived from their rules,
//! keys and request ids, so that any server finds it when the commit names the same descriptors.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate::policy::RuleTarget;
use tidegate::{EngineError, Expiry, HoldId, Refusal, Rule, RuleCheck, RuleCost, Source, Verdict};

use super::error::EnvoyError;
use super::phase::{self, HeldName, MAX_SAME_NAME};
use super::proto::{RateLimitRequest, RateLimitResponse};
use super::quota::registry::QuotaShares;
use super::request::{Action, Hits, LimitMatches, MatchedDescriptor};
use super::response::{DescriptorReport, DescriptorReports, is_over, response};
use super::settings::EnvoySettings;
use super::shared_limit::SharedLimits;
use super::stats::EnvoyStats;
use crate::check::service::poll_now;
use crate::check::{
    ActivePolicy, CheckDecision, CheckError, CheckService, Operation, ReserveOptions,
};
use tidegate_config::RefundToken;
use tidegate_config::envoy::lookup::DescriptorKey;

/// Decides the requests of Envoy.
pub struct EnvoyService {
    service: Arc<CheckService>,
    settings: EnvoySettings,
    stats: Option<Arc<EnvoyStats>>,
    shares: Arc<QuotaShares>,
}

impl EnvoyService {
    /// Decides with the Envoy configuration of this service.
    pub fn new(service: Arc<CheckService>, settings: EnvoySettings) -> Self {
        let shares = QuotaShares::new(service.clock().clone(), service.metrics().clone());
        Self { service, settings, stats: None, shares: Arc::new(shares) }
    }

    /// The limits that are lent in shares.
    pub(crate) fn shares(&self) -> &Arc<QuotaShares> {
        &self.shares
    }

    /// Also counts under envoyproxy/ratelimit's metric names.
    #[must_use]
    pub fn with_stats(self, stats: Arc<EnvoyStats>) -> Self {
        Self { stats: Some(stats), ..self }
    }

    /// Counters under envoyproxy/ratelimit's metric names, if enabled.
    pub fn stats(&self) -> Option<&EnvoyStats> {
        self.stats.as_deref()
    }

    /// Headers and enforcement.
    pub fn settings(&self) -> EnvoySettings {
        self.settings
    }

    /// The service that decides.
    pub fn service(&self) -> &Arc<CheckService> {
        &self.service
    }

    /// Replies to a request with a status for each of its descriptors.
    pub async fn decide(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, EnvoyError> {
        let decided = if let Some(active) = self.service.lock_policy() {
            poll_now(self.decide_under(&active, request))
        } else {
            let active = self.service.active();
            self.decide_under(&active, request).await
        };
        if let (Some(stats), Err(error)) = (&self.stats, &decided) {
            stats.count_error(error);
        }
        decided
    }

    /// Decides under one policy.
    async fn decide_under(
        &self,
        active: &ActivePolicy,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, EnvoyError> {
        let matches = LimitMatches::from_request(request, active.envoy())?;
        let limited: SmallVec<[&MatchedDescriptor<'_>; 4]> = matches.limited().collect();
        let keys: SmallVec<[DescriptorKey<'_>; 2]> = limited.iter().map(|l| l.key()).collect();
        let reports = SmallVec::from_elem(DescriptorReport::empty(), limited.len());
        let (limited, keys, service) = (&*limited, &*keys, &self.service);
        let shared = SharedLimits::new(&self.shares, active);
        let mut call = PendingResponse { service, active, shared, limited, keys, reports };
        // Envoy sends the same token with every request.
        let refunds = limited.iter().any(|limited| matches!(limited.hits, Hits::Refund(_)));
        if refunds && active.refund_token == RefundToken::Admin {
            let detail = "negative hits are disabled (`refund_token: admin`); nothing was charged";
            return Err(EnvoyError::Invalid(detail.into()));
        }
        call.run().await?;
        let reports: DescriptorReports<'_, '_> =
            limited.iter().copied().zip(call.reports).collect();
        if let Some(stats) = &self.stats {
            stats.count(&request.domain, &matches, &reports);
        }
        Ok(response(&matches, &reports, self.settings, &**self.service.clock()))
    }
}

impl fmt::Debug for EnvoyService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvoyService").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// A request in flight.
struct PendingResponse<'c, 'p, 's> {
    service: &'c Arc<CheckService>,
    active: &'c ActivePolicy,
    shared: SharedLimits<'c>,
    limited: &'c [&'c MatchedDescriptor<'p>],
    keys: &'c [DescriptorKey<'s>],
    /// One for each of `limited`.
    reports: SmallVec<[DescriptorReport; 4]>,
}

/// A hold of a request without a response. It is cancelled if Envoy resets the stream.
struct UnansweredHold {
    service: Arc<CheckService>,
    id: Option<HoldId>,
}

impl Drop for UnansweredHold {
    fn drop(&mut self) {
        if let (Some(id), Ok(runtime)) = (self.id, tokio::runtime::Handle::try_current()) {
            let service = Arc::clone(&self.service);
            runtime.spawn(async move { service.cancel(id).await });
        }
    }
}

/// Indices into [`PendingResponse::limited`].
type MatchIndices = SmallVec<[usize; 4]>;

impl PendingResponse<'_, '_, '_> {
    async fn run(&mut self) -> Result<(), EnvoyError> {
        let reserves = self.with(Action::Reserve);
        let mut hold = UnansweredHold { service: Arc::clone(self.service), id: None };
        let mut result = self.reserve(&reserves, &mut hold).await;
        if result.is_ok() {
            result = self.charge(&reserves).await;
        }
        // All descriptors or none: a request that is denied has no hold.
        let keeps = result.is_ok() && !is_over(self.limited.iter().copied().zip(&self.reports));
        if let Some(id) = hold.id.take()
            && !keeps
        {
            self.service.cancel(id).await;
        }
        result
    }

    /// Charges the descriptors that are not reserved.
    async fn charge(&mut self, reserves: &[usize]) -> Result<(), EnvoyError> {
        let (takes, quotas) = (self.with(Action::Take), self.with(Action::TakeQuota));
        let shared = self.with(Action::Shared);
        self.charge_shared(&shared, !self.denies(reserves));
        if self.denies(reserves) || self.denies(&shared) {
            self.call(Operation::Peek, &takes).await?;
            self.call(Operation::Peek, &quotas).await?;
        } else {
            let taken = self.take(&takes, &quotas).await;
            if !matches!(taken, Ok(true)) {
                self.shared.give_back();
            }
            let allowed = taken?;
            // Each quota is a separate call: one may allow what another denies.
            for quota in quotas {
                let operation = if allowed { Operation::Check } else { Operation::Peek };
                self.call(operation, &[quota]).await?;
            }
        }
        self.call(Operation::Record, &self.with(Action::Record)).await?;
        self.commit(&self.with(Action::Commit)).await?;
        self.call(Operation::Peek, &self.with(Action::Peek)).await?;
        self.call(Operation::Refund, &self.with(Action::Refund)).await
    }

    /// Charges descriptors whose limits are lent in shares: one hit to all of them, or to none.
    fn charge_shared(&mut self, indices: &[usize], takes: bool) {
        let of = |index: &usize| (self.limited[*index], self.keys[*index].key());
        let reports = self.shared.charge(indices.iter().map(of), takes);
        for (&index, report) in indices.iter().zip(reports) {
            self.reports[index] = report;
        }
    }

    /// Holds the hits of these descriptors, all or none.
    async fn reserve(
        &mut self,
        reserves: &[usize],
        hold: &mut UnansweredHold,
    ) -> Result<(), EnvoyError> {
        if reserves.is_empty() {
            return Ok(());
        }
        let indices = self.by_name(reserves);
        let ttls = indices.iter().map(|&index| self.limited[index].limit().reservation().ttl);
        let ttl = ttls.max();
        // The last one has no name.
        for nth in 0..=MAX_SAME_NAME {
            let name = (nth < MAX_SAME_NAME).then(|| self.hold_id(&indices, nth));
            let reserve = Operation::Reserve(ReserveOptions { ttl, name, ..Default::default() });
            match self.decide(reserve, &indices).await {
                Err(CheckError::Refused(Refusal::IdReused)) => {}
                decided => {
                    let decided = decided?;
                    hold.id = decided.decision.hold();
                    return self.report(reserve, &indices, &decided);
                }
            }
        }
        Ok(())
    }

    /// Settles a hold of these descriptors; without one, records what was used. Envoy ignores the
    /// response.
    async fn commit(&mut self, commits: &[usize]) -> Result<(), EnvoyError> {
        if commits.is_empty() {
            return Ok(());
        }
        let indices = self.by_name(commits);
        for &index in &indices {
            self.reports[index] = DescriptorReport::empty().of_commit();
        }
        match self.settle(&indices).await {
            Ok(settled) => {
                self.report_settled(&indices, &settled);
                return Ok(());
            }
            // It may have been settled.
            Err(CheckError::Store(EngineError::Ambiguous(_))) => return Ok(()),
            Err(_) => {}
        }
        let is_known = |index: &usize| !self.limited[*index].cost().is_zero();
        let (known, unknown): (MatchIndices, MatchIndices) =
            indices.iter().copied().partition(is_known);
        self.call(Operation::Record, &known).await?;
        self.call(Operation::Peek, &unknown).await?;
        for index in indices {
            let report = std::mem::replace(&mut self.reports[index], DescriptorReport::empty());
            self.reports[index] = report.of_commit();
        }
        Ok(())
    }

    /// Settles one hold of these descriptors.
    async fn settle(&self, indices: &[usize]) -> Result<CheckDecision, CheckError> {
        let costs = self.costs(indices);
        for nth in 0..MAX_SAME_NAME {
            let (name, key) = (self.hold_id(indices, nth), self.keys[indices[0]].key());
            match self.service.settle_named(self.active, name, key, &costs).await {
                Err(CheckError::Refused(Refusal::UnknownHold)) => {}
                result => return result,
            }
        }
        Err(Refusal::UnknownHold.into())
    }

    /// The costs at which a hold of these descriptors is settled. What is not known is charged as
    /// held, or released.
    fn costs(&self, indices: &[usize]) -> SmallVec<[RuleCost<'_>; 4]> {
        let mut costs: SmallVec<[RuleCost<'_>; 4]> = SmallVec::new();
        for &index in indices {
            let limited = self.limited[index];
            let (key, rule) = (self.keys[index].key(), limited.rule().map_or("", Rule::name));
            let charges = limited.limit().reservation().on_expiry == Expiry::Charge;
            if limited.hits == Hits::Commit(None) && charges {
                continue;
            }
            match costs.iter_mut().find(|cost| cost.rule == rule && cost.key == Some(key)) {
                Some(same) => same.cost = same.cost.saturating_add(limited.cost()),
                None => costs.push(RuleCost {
                    key: Some(key),
                    ..RuleCost::new(rule, limited.cost()).if_held()
                }),
            }
        }
        costs
    }

    /// These descriptors, in an order that does not depend on that of the request.
    fn by_name(&self, indices: &[usize]) -> MatchIndices {
        let mut indices: MatchIndices = indices.into();
        indices.sort_by(|&a, &b| {
            let [(rule_a, key_a, id_a), (rule_b, key_b, id_b)] = [a, b].map(|i| self.held_name(i));
            rule_a.cmp(rule_b).then(key_a.parts().cmp(key_b.parts())).then(id_a.cmp(id_b))
        });
        indices
    }

    fn held_name(&self, index: usize) -> HeldName<'_> {
        let limited = self.limited[index];
        (limited.rule().map_or("", Rule::name), self.keys[index].key(), limited.request_id)
    }

    fn hold_id(&self, indices: &[usize], nth: u8) -> HoldId {
        phase::hold_id(indices.iter().map(|index| self.held_name(*index)), nth)
    }

    /// Whether one of these descriptors is over a limit that is enforced.
    fn denies(&self, indices: &[usize]) -> bool {
        let enforced = indices.iter().filter(|index| !self.limited[**index].limit().is_shadow());
        enforced.copied().any(|index| self.reports[index].is_over())
    }

    /// Charges one hit to each limit, if all allow it. If all quotas are over, the request is
    /// denied, and nothing is charged.
    async fn take(&mut self, takes: &[usize], quotas: &[usize]) -> Result<bool, EnvoyError> {
        if takes.is_empty() {
            return Ok(true);
        }
        self.call(Operation::Peek, quotas).await?;
        if !quotas.is_empty() && quotas.iter().all(|&index| self.reports[index].is_over()) {
            self.call(Operation::Peek, takes).await?;
            return Ok(false);
        }
        self.call(Operation::Check, takes).await?;
        Ok(!takes.iter().any(|&index| self.reports[index].is_over()))
    }

    fn with(&self, action: Action) -> MatchIndices {
        let limited = self.limited.iter().enumerate();
        limited.filter(|(_, one)| one.action() == action).map(|(index, _)| index).collect()
    }

    /// One call for these descriptors, decided together.
    async fn call(&mut self, operation: Operation, indices: &[usize]) -> Result<(), EnvoyError> {
        if indices.is_empty() {
            return Ok(());
        }
        let decided = self.decide(operation, indices).await?;
        self.report(operation, indices, &decided)
    }

    async fn decide(
        &self,
        operation: Operation,
        indices: &[usize],
    ) -> Result<CheckDecision, CheckError> {
        let check = |&index: &usize| {
            let limited = self.limited[index];
            let (key, cost) = (self.keys[index].key(), limited.cost().get());
            Some(RuleCheck::of(RuleTarget::Own(limited.rule()?), key, cost))
        };
        let checks: SmallVec<[RuleCheck<'_>; 4]> = indices.iter().filter_map(check).collect();
        self.service.run_under(self.active, operation, &checks, None).await
    }

    /// Reports the decision of a call to each of its descriptors.
    fn report(
        &mut self,
        operation: Operation,
        indices: &[usize],
        decided: &CheckDecision,
    ) -> Result<(), EnvoyError> {
        let source = decided.decision.source;
        let is_charged = match operation {
            Operation::Check | Operation::Reserve(_) => decided.decision.allowed(),
            operation => operation == Operation::Record,
        };
        let mut verdicts = decided.decision.pair_all(&decided.limits);
        for (nth, &index) in indices.iter().enumerate() {
            let configured = self.limited[index].limit();
            if source == Source::Fallback && configured.says_unavailable() {
                let detail = "store unavailable; the rule leaves the decision to Envoy";
                return Err(EnvoyError::Unavailable(detail.into()));
            }
            let count = configured.rule().map_or(0, |rule| rule.limits().len());
            let later = if is_charged { self.cost_of_same(index, &indices[nth + 1..]) } else { 0 };
            // The verdict is that after all charges.
            let before_later = |verdict: &Verdict| match verdict.allowed {
                true => Verdict { remaining: verdict.remaining.saturating_add(later), ..*verdict },
                false => *verdict,
            };
            let of_rule = verdicts.by_ref().take(count).filter_map(|(_, verdict)| verdict);
            self.reports[index] =
                DescriptorReport::new(operation, source, of_rule.map(before_later).collect());
        }
        Ok(())
    }

    /// Reports a settlement, whose limits are in the order of `indices`.
    fn report_settled(&mut self, indices: &[usize], settled: &CheckDecision) {
        let mut verdicts = settled.verdicts().peekable();
        let mut before: Option<usize> = None;
        for &index in indices {
            let (rule, key, _) = self.held_name(index);
            let is_same = |other: &usize| {
                let (rule_before, key_before, _) = self.held_name(*other);
                (rule_before, key_before) == (rule, key)
            };
            if let Some(other) = before.filter(is_same) {
                self.reports[index] = self.reports[other].clone();
                continue;
            }
            let limits = self.limited[index].rule().map_or(0, |rule| rule.limits().len());
            let of_rule =
                std::iter::from_fn(|| verdicts.next_if(|(limit, _)| limit.rule() == rule));
            let of_rule = of_rule.take(limits).map(|(_, verdict)| *verdict).collect();
            let report = DescriptorReport::new(Operation::Peek, settled.decision.source, of_rule);
            self.reports[index] = report.of_commit();
            before = Some(index);
        }
    }

    /// The cost of those of `others` that are counted together with `index`.
    fn cost_of_same(&self, index: usize, others: &[usize]) -> u64 {
        let name = |index: usize| self.limited[index].rule().map(Rule::name);
        let is_same = |&&other: &&usize| {
            let [one, other_key] = [index, other].map(|index| self.keys[index].key());
            name(other) == name(index) && one.parts().eq(other_key.parts())
        };
        others.iter().filter(is_same).map(|&other| self.limited[other].cost().get()).sum()
    }
}
