//! A rule with the key that it counts by.

use std::sync::Arc;

use crate::key::ExtractKey;

/// A rule of a limiter and the key that it counts by.
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
