//! Lookup in a domain.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use super::domain::Domain;
use super::entry::DescriptorEntry;
use super::key::DescriptorKey;
use super::level::LevelMatch;
use super::stat_name;
use crate::envoy::descriptor_limit::DescriptorLimit;
use crate::envoy::unit::EnvoyUnit;

/// The limit for a descriptor of a request.
#[derive(Debug)]
pub struct LookupResult<'c> {
    domain: &'c Domain,
    leaf: LookupKind<'c>,
    /// How each entry matched; empty if the limit came with the request.
    steps: SmallVec<[LevelMatch<'c>; 4]>,
}

#[derive(Debug)]
enum LookupKind<'c> {
    FromFile(&'c DescriptorLimit),
    FromRequest(Arc<DescriptorLimit>),
}

impl Domain {
    /// The limit for these entries; `None` if there is none and every request is allowed.
    pub fn find(&self, entries: &[impl DescriptorEntry]) -> Option<LookupResult<'_>> {
        let mut steps: SmallVec<[LevelMatch<'_>; 4]> = SmallVec::with_capacity(entries.len());
        let mut level = self.level();
        for entry in entries {
            let step = level.step(entry)?;
            level = step.node.below();
            steps.push(step);
        }
        let leaf = LookupKind::FromFile(steps.last()?.node.leaf()?);
        Some(LookupResult { domain: self, leaf, steps })
    }

    /// Like [`find`](Self::find), for entries that carry a limit. It replaces the limit of the
    /// file, or the absence of one, unless `allow_override: false` applies.
    pub fn find_overridden(
        &self,
        entries: &[impl DescriptorEntry],
        requests: u32,
        unit: EnvoyUnit,
    ) -> Option<LookupResult<'_>> {
        let found = self.find(entries);
        let allowed = found.as_ref().map_or(self.allow_override(), |f| f.leaf().allow_override());
        if !allowed || entries.is_empty() {
            return found;
        }
        let leaf = LookupKind::FromRequest(self.override_leaf(requests, unit)?);
        Some(LookupResult { domain: self, leaf, steps: SmallVec::new() })
    }
}

impl LookupResult<'_> {
    /// The limit with its settings.
    pub fn leaf(&self) -> &DescriptorLimit {
        match &self.leaf {
            LookupKind::FromFile(leaf) => leaf,
            LookupKind::FromRequest(leaf) => leaf,
        }
    }

    /// Whether the limit came with the request.
    pub fn is_override(&self) -> bool {
        matches!(self.leaf, LookupKind::FromRequest(_))
    }

    /// The key to count by: the domain and all entries. Values that share a threshold are replaced
    /// by their wildcard. Pass the entries that were looked up.
    pub fn subject<'a, E: DescriptorEntry>(&'a self, entries: &'a [E]) -> DescriptorKey<'a> {
        let value = |(i, entry): (usize, &'a E)| {
            let shared = self.steps.get(i).and_then(|step| step.shared(entry.key()));
            (entry.key(), shared.unwrap_or(entry.value()))
        };
        DescriptorKey::new(self.domain.name(), entries.iter().enumerate().map(value))
    }

    /// Its name in the metrics of envoyproxy/ratelimit: `domain.key_value.key`, with values of the
    /// request where the file requests them.
    pub fn stat_name(&self, entries: &[impl DescriptorEntry]) -> Cow<'_, str> {
        match &self.leaf {
            LookupKind::FromFile(leaf) => {
                stat_name::of_file(self.domain.name(), leaf, &self.steps, entries)
            }
            LookupKind::FromRequest(_) => stat_name::of_request(self.domain.name(), entries).into(),
        }
    }
}
