//! What this server knows of the fields, and how that is merged with what the store has.

use std::collections::{BTreeMap, BTreeSet};

use tidegate::Micros;
use tidegate_redis::{RuntimeVersion, RuntimeWrite};

use super::field::RuntimeField;
use super::stamp::Stamp;

/// The fields as this server knows them.
#[derive(Clone, Default, Debug)]
pub(crate) struct RuntimeCopy {
    fields: BTreeMap<String, RuntimeField>,
    /// Head and number of fields of the store when both were alike.
    seen: Option<(String, u64)>,
    /// Time of the store at the last contact.
    contact: Option<Micros>,
}

/// What a merge has found.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct MergeResult {
    /// Fields that are new in the copy.
    pub(crate) changed: Vec<String>,
    /// Fields that this version cannot read. Those of the copy stay.
    pub(crate) unreadable: Vec<String>,
    /// What the store lacks, or no longer needs.
    pub(crate) repair: Option<RuntimeWrite>,
}

impl RuntimeCopy {
    /// A copy that was stored at `contact`.
    pub(super) fn stored(
        fields: impl IntoIterator<Item = (String, RuntimeField)>,
        contact: Option<Micros>,
    ) -> Self {
        Self { fields: fields.into_iter().collect(), seen: None, contact }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&RuntimeField> {
        self.fields.get(name)
    }

    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &RuntimeField)> {
        self.fields.iter().map(|(name, field)| (name.as_str(), field))
    }

    /// Time of the store at the last contact; `None` if there was none.
    pub(crate) fn contact(&self) -> Option<Micros> {
        self.contact
    }

    /// Notes a contact with the store. Returns whether the copy differs from it.
    pub(crate) fn poll(&mut self, version: &RuntimeVersion) -> bool {
        let is_same = |(head, len): &(String, u64)| *head == version.head && *len == version.len;
        let differs = !self.seen.as_ref().is_some_and(is_same)
            || self.fields.values().any(|field| field.is_over(version.time));
        if !differs {
            self.contact = Some(version.time);
        }
        differs
    }

    /// Merges the fields of the store into the copy: of each field, the larger stamp stays.
    pub(crate) fn merge(
        &mut self,
        version: &RuntimeVersion,
        stored: Vec<(String, String)>,
        nonce: u32,
    ) -> MergeResult {
        let now = version.time;
        let names: BTreeSet<String> = stored.iter().map(|(name, _)| name.clone()).collect();
        let is_outdated = |contact: Micros| contact.saturating_add(RuntimeField::RETENTION) <= now;
        if self.contact.is_some_and(is_outdated) && !version.head.is_empty() {
            // Fields that were deleted meanwhile have left no trace: the store is right.
            self.fields.retain(|name, _| names.contains(name));
        }
        let mut result = MergeResult::default();
        let (mut set, mut delete) = (Vec::new(), Vec::new());
        for (name, text) in stored {
            let Some(field) = RuntimeField::read(&text) else {
                result.unreadable.push(name);
                continue;
            };
            match self.fields.get(&name) {
                Some(own) if own.stamp > field.stamp => set.push((name, own.text.clone())),
                Some(own) if own.stamp == field.stamp => {}
                None if field.is_over(now) => delete.push(name),
                _ => {
                    self.fields.insert(name.clone(), field);
                    result.changed.push(name);
                }
            }
        }
        let missing = self.fields.iter().filter(|(name, _)| !names.contains(*name));
        set.extend(missing.map(|(name, own)| (name.clone(), own.text.clone())));
        let over = self.fields.iter().filter(|(_, field)| field.is_over(now));
        let over: BTreeSet<String> = over.map(|(name, _)| name.clone()).collect();
        self.fields.retain(|name, _| !over.contains(name));
        set.retain(|(name, _)| !over.contains(name));
        delete.extend(over.intersection(&names).cloned());
        result.changed.extend(over);
        self.contact = Some(now);
        self.seen = Some((version.head.clone(), version.len));
        if !set.is_empty() || !delete.is_empty() {
            result.repair = Some(self.write(version, nonce, set, delete).1);
            self.seen = None;
        }
        result
    }

    /// The change of a store at `version`, and its stamp.
    pub(crate) fn write(
        &self,
        version: &RuntimeVersion,
        nonce: u32,
        set: Vec<(String, String)>,
        delete: Vec<String>,
    ) -> (Stamp, RuntimeWrite) {
        let known = self.fields.values().map(|field| field.stamp).max();
        let stamp = Stamp::next(version.head.parse().ok(), known, version.time, nonce);
        let expected = version.head.clone();
        (stamp, RuntimeWrite { expected, head: stamp.to_string(), set, delete })
    }

    /// Takes over a change that the store has made.
    pub(crate) fn insert(&mut self, name: String, field: RuntimeField) {
        self.fields.insert(name, field);
    }

    /// Reads the store again at the next poll, whether or not it has changed.
    pub(crate) fn forget_version(&mut self) {
        self.seen = None;
    }

    /// The store is like the copy.
    pub(crate) fn confirm(&mut self, version: &RuntimeVersion) {
        self.seen = Some((version.head.clone(), version.len));
        self.contact = Some(version.time);
    }

    /// Bytes of all fields, deleted ones too.
    pub(crate) fn bytes(&self) -> usize {
        self.fields.iter().map(|(name, field)| name.len() + field.text.len()).sum()
    }
}
