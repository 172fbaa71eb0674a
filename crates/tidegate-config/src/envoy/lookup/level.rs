//! Sibling descriptors, by key and value.

use std::collections::HashMap;
use std::sync::Arc;

use super::entry::DescriptorEntry;
use super::wildcard::{Wildcard, is_wildcard};
use crate::envoy::descriptor_limit::DescriptorLimit;

/// Sibling descriptors in the order of the file.
#[derive(Default, Debug)]
pub(crate) struct DescriptorLevel {
    nodes: Vec<DescriptorNode>,
    keys: HashMap<Box<str>, KeyIndex>,
    /// Descriptors with a wildcard in the key.
    any_key: Vec<usize>,
}

/// The descriptors of one key, by their index in the level.
#[derive(Default, Debug)]
struct KeyIndex {
    /// The descriptor without a value.
    alone: Option<usize>,
    values: HashMap<Box<str>, usize>,
    /// Descriptors with a wildcard in the value, in the order of the file.
    wildcards: Vec<usize>,
}

/// One descriptor of a file.
#[derive(Debug)]
pub(crate) struct DescriptorNode {
    key: Box<str>,
    value: Box<str>,
    wildcard: Option<Wildcard>,
    /// The key and the value as one text, if the key has a wildcard.
    whole: Option<Box<str>>,
    pub(crate) share_threshold: bool,
    pub(crate) value_to_metric: bool,
    pub(crate) leaf: Option<Arc<DescriptorLimit>>,
    pub(crate) below: DescriptorLevel,
}

/// The descriptor that matches an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelMatch<'c> {
    pub(crate) node: &'c DescriptorNode,
    pub(crate) by: MatchKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MatchKind {
    Value,
    Wildcard,
    Key,
}

impl DescriptorLevel {
    pub(crate) fn nodes(&self) -> &[DescriptorNode] {
        &self.nodes
    }

    /// Adds a descriptor at the end. No other may have the same key and value.
    pub(crate) fn push(&mut self, node: DescriptorNode) {
        let index = self.nodes.len();
        let by_key = self.keys.entry(node.key.clone()).or_default();
        if node.value.is_empty() {
            by_key.alone = Some(index);
        } else {
            by_key.values.insert(node.value.clone(), index);
        }
        if is_wildcard(&node.key) {
            self.any_key.push(index);
        } else if node.wildcard.is_some() {
            by_key.wildcards.push(index);
        }
        self.nodes.push(node);
    }

    pub(crate) fn step(&self, entry: &impl DescriptorEntry) -> Option<LevelMatch<'_>> {
        let (key, value) = (entry.key(), entry.value());
        let by_key = self.keys.get(key);
        let exact = by_key.filter(|_| !value.is_empty()).and_then(|by| by.values.get(value));
        if let Some(&index) = exact {
            return Some(LevelMatch { node: &self.nodes[index], by: MatchKind::Value });
        }
        if let Some(index) = self.wildcard(by_key, key, value) {
            return Some(LevelMatch { node: &self.nodes[index], by: MatchKind::Wildcard });
        }
        let index = by_key?.alone?;
        Some(LevelMatch { node: &self.nodes[index], by: MatchKind::Key })
    }

    /// The first descriptor in the file with a matching wildcard.
    fn wildcard(&self, by_key: Option<&KeyIndex>, key: &str, value: &str) -> Option<usize> {
        let matches = |index: &usize, text: &str| {
            let wildcard = self.nodes.get(*index).and_then(|node| node.wildcard.as_ref());
            wildcard.is_some_and(|wildcard| wildcard.matches(text))
        };
        let by_value =
            by_key.and_then(|by| by.wildcards.iter().find(|index| matches(index, value)));
        if self.any_key.is_empty() {
            return by_value.copied();
        }
        let whole = format!("{key}_{value}");
        let by_whole = self.any_key.iter().find(|index| matches(index, &whole));
        by_value.into_iter().chain(by_whole).min().copied()
    }
}

impl DescriptorNode {
    /// A descriptor without a limit. An empty `value` means that it has none.
    ///
    /// A wildcard in the key is matched against key and value joined by `_`, as in
    /// envoyproxy/ratelimit.
    pub(crate) fn new(key: &str, value: &str) -> Self {
        let whole: Option<Box<str>> = is_wildcard(key).then(|| match value {
            "" => key.into(),
            value => format!("{key}_{value}").into(),
        });
        Self {
            key: key.into(),
            value: value.into(),
            wildcard: Wildcard::new(whole.as_deref().unwrap_or(value)),
            whole,
            share_threshold: false,
            value_to_metric: false,
            leaf: None,
            below: DescriptorLevel::default(),
        }
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// The value; empty if the descriptor has none.
    pub(crate) fn value(&self) -> &str {
        &self.value
    }

    pub(crate) fn leaf(&self) -> Option<&DescriptorLimit> {
        self.leaf.as_deref()
    }

    pub(crate) fn below(&self) -> &DescriptorLevel {
        &self.below
    }
}

impl<'c> LevelMatch<'c> {
    /// The wildcard that replaces the value of an entry that shares a threshold.
    pub(crate) fn shared(&self, key: &str) -> Option<&'c str> {
        (self.by == MatchKind::Wildcard && self.node.share_threshold).then(|| self.pattern(key))
    }

    /// The part of the wildcard for the value of this key.
    pub(crate) fn pattern(&self, key: &str) -> &'c str {
        let Some(whole) = &self.node.whole else { return &self.node.value };
        whole.strip_prefix(key).and_then(|rest| rest.strip_prefix('_')).unwrap_or(whole)
    }

    /// Whether the key of the request can differ from the key in the file.
    pub(crate) fn is_of_any_key(&self) -> bool {
        self.by == MatchKind::Wildcard && self.node.whole.is_some()
    }
}
