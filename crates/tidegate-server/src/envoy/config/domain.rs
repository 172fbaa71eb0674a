//! The limits of a domain, and those that come with requests.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use tidegate::Rule;

use super::inherit::Inherited;
use super::{Leaf, Unit};
use crate::envoy::lookup::{Level, Node};

/// The limits of a domain.
#[derive(Debug)]
pub struct Domain {
    name: Box<str>,
    pub(super) level: Level,
    inherited: Inherited,
    /// Limits that came with requests, so that each is made only once.
    overrides: RwLock<HashMap<(u32, Unit), Arc<Leaf>>>,
}

impl Domain {
    /// The most limits that came with requests and are kept.
    pub const MAX_OVERRIDES: usize = 256;

    pub(super) fn new(name: &str, inherited: Inherited) -> Self {
        Self { name: name.into(), level: Level::default(), inherited, overrides: RwLock::default() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// May a request bring a limit of its own where the files have none?
    pub fn allow_override(&self) -> bool {
        self.inherited.allow_override
    }

    /// All its limits.
    pub fn leaves(&self) -> impl Iterator<Item = &Leaf> {
        let mut open: Vec<&Node> = self.level.nodes().iter().rev().collect();
        let nodes = std::iter::from_fn(move || {
            let node = open.pop()?;
            open.extend(node.below().nodes().iter().rev());
            Some(node)
        });
        nodes.filter_map(Node::leaf)
    }

    pub(in crate::envoy) fn level(&self) -> &Level {
        &self.level
    }

    /// A limit that came with a request.
    ///
    /// Its state goes by the unit and the subject: a request that brings another number keeps what
    /// is used, as in envoyproxy/ratelimit.
    pub(in crate::envoy) fn override_leaf(&self, requests: u32, unit: Unit) -> Option<Arc<Leaf>> {
        let kept = self.overrides.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(leaf) = kept.get(&(requests, unit)) {
            return Some(leaf.clone());
        }
        drop(kept);
        let name = format!("override-{}", unit.name());
        let rule = Rule::brought_along(&name, [unit.limit(requests).ok()?]).ok()?;
        let leaf = Arc::new(Leaf {
            rule: Some(rule.on_store_failure(self.inherited.on_store_failure())),
            stat: self.name.clone(),
            name: None,
            replaces: Box::default(),
            current_limit: Some((requests, unit)),
            is_shadow: false,
            is_quota: false,
            detailed_metric: false,
            charge_denied: self.inherited.charge_denied,
            allow_override: true,
            says_unavailable: self.inherited.says_unavailable(),
            metadata: None,
        });
        let mut kept = self.overrides.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= Self::MAX_OVERRIDES {
            // Whoever sends so many different ones gains nothing by their being kept.
            kept.clear();
        }
        kept.insert((requests, unit), leaf.clone());
        Some(leaf)
    }
}
