//! A rule with the key that it counts by.

use std::sync::Arc;

use crate::key::ExtractKey;

/// A rule of a limiter and the key that it counts by.
///
/// ```
/// use tidegate::{Limiter, Memory, Rule};
/// use tidegate_tower::{ClientIp, Header, KeyedRule, RateLimitLayer};
///
/// let address = Rule::new("address", ["20/s".parse()?])?;
/// let tenant = Rule::new("tenant", ["100/s".parse()?])?;
/// let limiter = Limiter::with_rules(Memory::default(), [address, tenant])?;
/// let keyed = [
///     KeyedRule::new("address", ClientIp::default()),
///     KeyedRule::new("tenant", Header::from_static("x-tenant")),
/// ];
/// let layer = RateLimitLayer::rules(limiter, keyed)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct KeyedRule {
    pub(crate) rule: Box<str>,
    pub(crate) key: Arc<dyn ExtractKey>,
}

impl KeyedRule {
    /// The rule of this name, counting by this key.
    pub fn new(rule: &str, key: impl ExtractKey) -> Self {
        Self { rule: rule.into(), key: Arc::new(key) }
    }
}
