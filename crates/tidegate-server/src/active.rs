//! The policy that is in force, and all that belongs to it.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::{Policy, Rule, Share};
use tidegate_tower::extract::TrustedProxies;

use crate::envoy::config::{EnvoyConfig, Leaf};
use crate::metrics::{Metrics, RuleMetrics};

/// A policy and its settings: swapped as one, so that no call sees a mixture of two.
#[derive(Debug)]
pub struct Active {
    /// The rules.
    pub policy: Arc<Policy>,
    /// Whose word about a client's address counts.
    pub trusted: TrustedProxies,
    /// May askers bring limits of their own?
    pub adhoc: bool,
    /// By how much of it a wait may be told longer, at random.
    pub retry_jitter: Option<Share>,
    envoy: Option<Arc<EnvoyConfig>>,
    counters: HashMap<Box<str>, Arc<RuleMetrics>>,
    others: Arc<RuleMetrics>,
}

impl Active {
    /// A policy with the counters of its rules.
    pub fn new(policy: Policy, trusted: TrustedProxies, adhoc: Adhoc, metrics: &Metrics) -> Self {
        let names = policy.rules().iter().map(|rule| rule.name());
        let names = names.chain([Rule::ADHOC, Rule::THROTTLE]);
        Self {
            counters: names.map(|name| (name.into(), metrics.rule(name))).collect(),
            others: metrics.rule(Metrics::OTHER),
            policy: Arc::new(policy),
            trusted,
            adhoc: adhoc == Adhoc::Allow,
            retry_jitter: None,
            envoy: None,
        }
    }

    /// With the limits of Envoy's domains beside the policy, each counted as a rule is.
    #[must_use]
    pub fn with_envoy(mut self, config: Option<Arc<EnvoyConfig>>, metrics: &Metrics) -> Self {
        let rules = config.iter().flat_map(|config| config.leaves()).filter_map(Leaf::rule);
        let names = rules.map(|rule| rule.name());
        self.counters.extend(names.map(|name| (name.into(), metrics.rule(name))));
        Self { envoy: config, ..self }
    }

    /// The limits of Envoy's domains.
    pub fn envoy(&self) -> Option<&EnvoyConfig> {
        self.envoy.as_deref()
    }

    /// Tells those who are denied to come back later by up to this share of their wait.
    #[must_use]
    pub fn with_retry_jitter(self, share: Option<Share>) -> Self {
        Self { retry_jitter: share, ..self }
    }

    /// The counters of a rule.
    pub fn metrics(&self, rule: &Rule) -> &RuleMetrics {
        self.counters.get(rule.name()).unwrap_or(&self.others)
    }
}

/// May askers bring limits of their own?
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Adhoc {
    /// They may.
    #[default]
    Allow,
    /// They may not: rules are all there is.
    Refuse,
}
