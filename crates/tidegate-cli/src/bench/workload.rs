//! Workload: what each request of a benchmark checks.

use std::fmt;

use tidegate::Limit;

use tidegate_server::internal::transport::envoy::proto::{
    Entry, RateLimitDescriptor, RateLimitRequest,
};

/// Common to all requests; only the key differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Workload {
    pub(crate) target: WorkloadTarget,
    pub(crate) cost: u64,
    /// Number of distinct keys.
    pub(crate) keys: u32,
}

/// What a request checks against.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum WorkloadTarget {
    /// A rule of the server's policy.
    Rule(String),
    Limit(Limit),
    /// A descriptor of Envoy's rate limit service.
    Descriptor(DescriptorTemplate),
}

/// An Envoy descriptor with a slot for the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DescriptorTemplate {
    pub(crate) domain: String,
    /// Keys and values; [`DescriptorTemplate::KEY`] in a value is replaced by the key.
    pub(crate) entries: Vec<(String, String)>,
}

impl DescriptorTemplate {
    const KEY: &'static str = "{key}";
}

impl fmt::Display for WorkloadTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(name) => write!(f, "rule {name}"),
            Self::Limit(limit) => write!(f, "limit {limit}"),
            Self::Descriptor(DescriptorTemplate { domain, entries }) => {
                let entries: Vec<String> =
                    entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
                write!(f, "domain {domain}, descriptor {}", entries.join(","))
            }
        }
    }
}

impl WorkloadTarget {
    /// The ad-hoc limit as it is sent; empty for other targets.
    pub(crate) fn limit(&self) -> String {
        match self {
            Self::Limit(limit) => limit.to_string(),
            Self::Rule(_) | Self::Descriptor(_) => String::new(),
        }
    }
}

impl DescriptorTemplate {
    pub(crate) fn request(&self, key: &str, cost: u64) -> RateLimitRequest {
        let entry = |(name, value): &(String, String)| Entry {
            key: name.clone(),
            value: value.replace(Self::KEY, key),
        };
        let descriptor = RateLimitDescriptor {
            entries: self.entries.iter().map(entry).collect(),
            // With a number, hits are recorded even if denied; without one, the request is checked.
            hits_addend: (cost != 1).then_some(cost),
            ..Default::default()
        };
        RateLimitRequest {
            domain: self.domain.clone(),
            descriptors: vec![descriptor],
            hits_addend: 0,
        }
    }
}
