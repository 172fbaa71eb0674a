//! What is asked.

use std::fmt;

use tidegate::Limit;

use crate::envoy::proto::{Entry, RateLimitDescriptor, RateLimitRequest};

/// What every question is about, but for its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// What is asked.
    pub about: About,
    /// At which cost.
    pub cost: u64,
    /// How many keys there are.
    pub keys: u32,
}

/// What a question is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum About {
    /// A rule of the server's policy.
    Rule(String),
    /// A limit that comes along.
    Limit(Limit),
    /// What Envoy asks about.
    Descriptor(Descriptor),
}

/// A descriptor of Envoy's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// Whose it is.
    pub domain: String,
    /// Its entries. In a value, [`Descriptor::KEY`] stands for the key.
    pub entries: Vec<(String, String)>,
}

impl Descriptor {
    /// What stands for a key.
    pub const KEY: &'static str = "{key}";
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(name) => write!(f, "rule {name}"),
            Self::Limit(limit) => write!(f, "limit {limit}"),
            Self::Descriptor(Descriptor { domain, entries }) => {
                let entries: Vec<String> =
                    entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
                write!(f, "domain {domain}, descriptor {}", entries.join(","))
            }
        }
    }
}

impl About {
    /// The limit as it is sent; nothing if it is none.
    pub(crate) fn limit(&self) -> String {
        match self {
            Self::Limit(limit) => limit.to_string(),
            Self::Rule(_) | Self::Descriptor(_) => String::new(),
        }
    }
}

impl Descriptor {
    pub(crate) fn request(&self, key: &str, cost: u64) -> RateLimitRequest {
        let entry = |(name, value): &(String, String)| Entry {
            key: name.clone(),
            value: value.replace(Self::KEY, key),
        };
        let descriptor = RateLimitDescriptor {
            entries: self.entries.iter().map(entry).collect(),
            // A number charges what has happened already; without one it is asked.
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
