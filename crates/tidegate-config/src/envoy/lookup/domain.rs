//! The limits of a domain, and limits that came with requests.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use tidegate::Rule;

use super::level::{DescriptorLevel, DescriptorNode};
use crate::envoy::descriptor_limit::DescriptorLimit;
use crate::envoy::inherit::Inherited;
use crate::envoy::reservation::EnvoyReservation;
use crate::envoy::unit::{EnvoyUnit, EnvoyWindows};

/// The limits of a domain.
#[derive(Debug)]
pub struct Domain {
    name: Box<str>,
    pub(crate) level: DescriptorLevel,
    inherited: Inherited,
    windows: EnvoyWindows,
    /// Cache of limits that came with requests.
    overrides: RwLock<HashMap<(u32, EnvoyUnit), Arc<DescriptorLimit>>>,
}

impl Domain {
    /// Upper bound of the cached limits that came with requests.
    pub const MAX_OVERRIDES: usize = 256;

    pub(crate) fn new(name: &str, inherited: Inherited, windows: EnvoyWindows) -> Self {
        Self {
            name: name.into(),
            level: DescriptorLevel::default(),
            inherited,
            windows,
            overrides: RwLock::default(),
        }
    }

    /// The name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether requests may carry a limit where the files have none.
    pub fn allow_override(&self) -> bool {
        self.inherited.allow_override
    }

    /// All limits of the domain.
    pub fn leaves(&self) -> impl Iterator<Item = &DescriptorLimit> {
        let mut open: Vec<&DescriptorNode> = self.level.nodes().iter().rev().collect();
        let nodes = std::iter::from_fn(move || {
            let node = open.pop()?;
            open.extend(node.below().nodes().iter().rev());
            Some(node)
        });
        nodes.filter_map(DescriptorNode::leaf)
    }

    pub(crate) fn level(&self) -> &DescriptorLevel {
        &self.level
    }

    /// A limit that came with a request.
    ///
    /// Its state depends on the unit and the key only: a request with a different number continues
    /// with the same usage, as in envoyproxy/ratelimit.
    pub(crate) fn override_leaf(
        &self,
        requests: u32,
        unit: EnvoyUnit,
    ) -> Option<Arc<DescriptorLimit>> {
        let cached = self.overrides.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(leaf) = cached.get(&(requests, unit)) {
            return Some(leaf.clone());
        }
        drop(cached);
        let name = format!("override-{}", unit.name());
        // A bucket cannot count some numbers of billions exactly; a fixed window counts all.
        let limit = self.windows.limit(unit, requests).or_else(|_| unit.limit(requests));
        let rule = Rule::per_call(&name, [limit.ok()?]).ok()?;
        let rule = rule.on_store_failure(self.inherited.on_store_failure());
        let reservation = EnvoyReservation::default();
        let leaf = Arc::new(DescriptorLimit {
            rule: Some(rule.on_expiry(reservation.on_expiry)),
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
            charge_if_allowed: false,
            reservation,
            shares: None,
            metadata: None,
        });
        let mut cached = self.overrides.write().unwrap_or_else(PoisonError::into_inner);
        if cached.len() >= Self::MAX_OVERRIDES {
            // With so many different limits the cache does not help.
            cached.clear();
        }
        cached.insert((requests, unit), leaf.clone());
        Some(leaf)
    }
}
