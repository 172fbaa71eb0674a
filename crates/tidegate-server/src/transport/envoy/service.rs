//! `ShouldRateLimit` on top of [`CheckService`].
//!
//! Descriptors without a number of hits, or with one hit, are one call: all of them are charged, or
//! none. A larger number is usage that has happened, or happens whatever the response is: it is
//! charged, into debt if necessary.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use tidegate::policy::RuleTarget;
use tidegate::{Rule, RuleCheck, Source, Verdict};

use super::error::EnvoyError;
use super::proto::{RateLimitRequest, RateLimitResponse};
use super::request::{Action, LimitMatches, MatchedDescriptor};
use super::response::{DescriptorReport, DescriptorReports, response};
use super::settings::EnvoySettings;
use super::stats::EnvoyStats;
use crate::check::service::poll_now;
use crate::check::{ActivePolicy, CheckService, Operation};
use tidegate_config::RefundToken;
use tidegate_config::envoy::lookup::DescriptorKey;

/// Decides the requests of Envoy.
pub struct EnvoyService {
    service: Arc<CheckService>,
    settings: EnvoySettings,
    stats: Option<Arc<EnvoyStats>>,
}

impl EnvoyService {
    /// Decides with the Envoy configuration of this service.
    pub fn new(service: Arc<CheckService>, settings: EnvoySettings) -> Self {
        Self { service, settings, stats: None }
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
        let (limited, keys, service) = (&*limited, &*keys, &*self.service);
        let mut call = PendingResponse { service, active, limited, keys, reports };
        // Envoy sends the same token with every request.
        let refunds =
            active.refund_token == RefundToken::Admin && !call.with(Action::Refund).is_empty();
        if refunds {
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
    service: &'c CheckService,
    active: &'c ActivePolicy,
    limited: &'c [&'c MatchedDescriptor<'p>],
    keys: &'c [DescriptorKey<'s>],
    /// One for each of `limited`.
    reports: SmallVec<[DescriptorReport; 4]>,
}

/// Indices into [`PendingResponse::limited`].
type MatchIndices = SmallVec<[usize; 4]>;

impl PendingResponse<'_, '_, '_> {
    async fn run(&mut self) -> Result<(), EnvoyError> {
        let (takes, quotas) = (self.with(Action::Take), self.with(Action::TakeQuota));
        let allowed = self.take(&takes, &quotas).await?;
        // Each quota is a separate call: one may allow what another denies.
        for quota in quotas {
            let operation = if allowed { Operation::Check } else { Operation::Peek };
            self.call(operation, &[quota]).await?;
        }
        self.call(Operation::Record, &self.with(Action::Record)).await?;
        self.call(Operation::Peek, &self.with(Action::Peek)).await?;
        self.call(Operation::Refund, &self.with(Action::Refund)).await
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
        let check = |&index: &usize| {
            let limited = self.limited[index];
            let (key, cost) = (self.keys[index].key(), limited.cost().get());
            Some(RuleCheck { target: RuleTarget::Own(limited.rule()?), key, cost })
        };
        let checks: SmallVec<[RuleCheck<'_>; 4]> = indices.iter().filter_map(check).collect();
        let decided = self.service.run_under(self.active, operation, &checks, None).await?;
        let source = decided.decision.source;
        let is_charged = match operation {
            Operation::Check => decided.decision.allowed(),
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
