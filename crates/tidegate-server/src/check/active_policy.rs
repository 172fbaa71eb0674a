//! The policy, settings and rule counters that a check reads, swapped as one.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::policy::{ListMode, RuleTarget};
use tidegate::pricing::Prices;
use tidegate::{Fraction, Micros, Op, Plan, Policy, Rule, RuleCheck};
use tidegate_config::RefundToken;
use tidegate_config::envoy::{DescriptorLimit, EnvoyConfig};
use tidegate_tower::extract::TrustedProxies;
use tidegate_tower::headers::HeaderStyle;

use super::decision::CheckError;
use crate::observe::metrics::{Metrics, RuleMetrics};

/// A policy and its settings. They are swapped as one, so that no call sees a mixture of two.
#[derive(Debug)]
pub struct ActivePolicy {
    /// Rules of the file, composed with those made at run time.
    pub policy: Arc<Policy>,
    /// The proxies whose forwarding headers are believed.
    pub trusted: TrustedProxies,
    /// Whether requests may bring ad-hoc limits.
    pub adhoc: bool,
    /// Version of the headers about limits.
    pub headers: HeaderStyle,
    /// Token that a refund needs.
    pub refund_token: RefundToken,
    /// Random jitter added to `retry_after`, as a fraction of it.
    pub retry_jitter: Option<Fraction>,
    /// Prices of language models.
    pub prices: Option<Arc<Prices>>,
    envoy: Option<Arc<EnvoyConfig>>,
    counters: HashMap<Box<str>, Arc<RuleMetrics>>,
    others: Arc<RuleMetrics>,
}

impl ActivePolicy {
    /// A policy with the counters of its rules.
    pub fn new(
        policy: Policy,
        trusted: TrustedProxies,
        adhoc: AdhocLimits,
        metrics: &Metrics,
    ) -> Self {
        let names = policy.rules().iter().map(|rule| rule.name());
        let names = names.chain([Rule::ADHOC, Rule::THROTTLE]);
        Self {
            counters: names.map(|name| (name.into(), metrics.rule(name))).collect(),
            others: metrics.rule(Metrics::OTHER),
            policy: Arc::new(policy),
            trusted,
            adhoc: adhoc == AdhocLimits::Allow,
            headers: HeaderStyle::default(),
            refund_token: RefundToken::default(),
            retry_jitter: None,
            prices: None,
            envoy: None,
        }
    }

    /// Adds the limits of Envoy's domains. Each is counted as a rule is.
    #[must_use]
    pub fn with_envoy(mut self, config: Option<Arc<EnvoyConfig>>, metrics: &Metrics) -> Self {
        let rules =
            config.iter().flat_map(|config| config.leaves()).filter_map(DescriptorLimit::rule);
        let names = rules.map(|rule| rule.name());
        self.counters.extend(names.map(|name| (name.into(), metrics.rule(name))));
        Self { envoy: config, ..self }
    }

    /// The limits of Envoy's domains, if configured.
    pub fn envoy(&self) -> Option<&EnvoyConfig> {
        self.envoy.as_deref()
    }

    /// Adds up to this fraction of `retry_after` to it, at random.
    #[must_use]
    pub fn with_retry_jitter(self, jitter: Option<Fraction>) -> Self {
        Self { retry_jitter: jitter, ..self }
    }

    /// Sets the prices of language models.
    #[must_use]
    pub fn with_prices(self, prices: Option<Arc<Prices>>) -> Self {
        Self { prices, ..self }
    }

    /// Sets the version of the headers about limits, and the token that a refund needs.
    #[must_use]
    pub fn with_wire_settings(self, headers: HeaderStyle, refund_token: RefundToken) -> Self {
        Self { headers, refund_token, ..self }
    }

    /// Plans checks that name their rules or limits. A peek costs nothing.
    pub(super) fn plan<'p>(
        &'p self,
        checks: &[RuleCheck<'p>],
        op: Op<'_>,
        now: Micros,
    ) -> Result<Plan<'p>, CheckError> {
        for check in checks {
            let needs_key = match check.target {
                RuleTarget::Adhoc(_) if !self.adhoc => return Err(CheckError::AdhocDisabled),
                // An unknown rule is reported later, by the plan.
                RuleTarget::Named(name) => {
                    self.policy.rule(name).is_some_and(|rule| !rule.key().is_empty())
                }
                RuleTarget::Own(_) | RuleTarget::Adhoc(_) => true,
            };
            // A caller that forgets the key would share one count with every other such caller.
            if needs_key && check.key.parts().next().is_none() {
                return Err(CheckError::MissingKey);
            }
        }
        let plan = self.policy.plan_checks(checks, ListMode::of(op), now)?;
        Ok(if op == Op::Peek { plan.without_costs() } else { plan })
    }

    /// Ends the counters of all other rules.
    pub(super) fn set_metrics(&self, metrics: &Metrics) {
        metrics.set_rules(self.counters.iter().map(|(name, rule)| (&**name, rule)), &self.others);
    }

    /// The counters of the rule of this name, if it is active.
    pub(crate) fn metrics_of(&self, rule: &str) -> Option<Arc<RuleMetrics>> {
        self.counters.get(rule).cloned()
    }

    /// The counters of a rule; those of `Metrics::OTHER` if it has none.
    pub fn metrics(&self, rule: &Rule) -> &RuleMetrics {
        self.counters.get(rule.name()).unwrap_or(&self.others)
    }
}

/// Whether requests may bring ad-hoc limits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AdhocLimits {
    /// Ad-hoc limits are accepted.
    #[default]
    Allow,
    /// A request has to name a rule.
    Refuse,
}
