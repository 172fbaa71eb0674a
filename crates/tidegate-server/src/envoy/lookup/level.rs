//! The descriptors that stand beside one another in a file.

use std::collections::HashMap;
use std::sync::Arc;

use super::Entry;
use super::wildcard::{Wildcard, is_wildcard};
use crate::envoy::config::Leaf;

/// The descriptors that stand beside one another in a file, in order.
#[derive(Default, Debug)]
pub(in crate::envoy) struct Level {
    nodes: Vec<Node>,
    keys: HashMap<Box<str>, ByKey>,
    /// Those with a wildcard in their key.
    any_key: Vec<usize>,
}

/// The descriptors of one key, by their number in the level.
#[derive(Default, Debug)]
struct ByKey {
    alone: Option<usize>,
    values: HashMap<Box<str>, usize>,
    /// Those with a wildcard in their value, in the order of the file.
    wildcards: Vec<usize>,
}

/// One descriptor of a file.
#[derive(Debug)]
pub(in crate::envoy) struct Node {
    key: Box<str>,
    value: Box<str>,
    wildcard: Option<Wildcard>,
    /// The key and the value as one text, if there is a wildcard in the key.
    whole: Option<Box<str>>,
    pub(in crate::envoy) share_threshold: bool,
    pub(in crate::envoy) value_to_metric: bool,
    pub(in crate::envoy) leaf: Option<Arc<Leaf>>,
    pub(in crate::envoy) below: Level,
}

/// A descriptor that was found for an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step<'c> {
    pub(super) node: &'c Node,
    pub(super) by: By,
}

/// How it was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    Value,
    Wildcard,
    Key,
}

impl Level {
    pub(in crate::envoy) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Adds a descriptor behind the others, of which none has both its key and its value.
    pub(in crate::envoy) fn push(&mut self, node: Node) {
        let place = self.nodes.len();
        let by_key = self.keys.entry(node.key.clone()).or_default();
        if node.value.is_empty() {
            by_key.alone = Some(place);
        } else {
            by_key.values.insert(node.value.clone(), place);
        }
        if is_wildcard(&node.key) {
            self.any_key.push(place);
        } else if node.wildcard.is_some() {
            by_key.wildcards.push(place);
        }
        self.nodes.push(node);
    }

    pub(super) fn step(&self, entry: &impl Entry) -> Option<Step<'_>> {
        let (key, value) = (entry.key(), entry.value());
        let by_key = self.keys.get(key);
        let exact = by_key.filter(|_| !value.is_empty()).and_then(|by| by.values.get(value));
        if let Some(&place) = exact {
            return Some(Step { node: &self.nodes[place], by: By::Value });
        }
        if let Some(place) = self.wildcard(by_key, key, value) {
            return Some(Step { node: &self.nodes[place], by: By::Wildcard });
        }
        let place = by_key?.alone?;
        Some(Step { node: &self.nodes[place], by: By::Key })
    }

    /// The first in the file whose wildcard fits.
    fn wildcard(&self, by_key: Option<&ByKey>, key: &str, value: &str) -> Option<usize> {
        let fits = |place: &usize, text: &str| {
            let wildcard = self.nodes.get(*place).and_then(|node| node.wildcard.as_ref());
            wildcard.is_some_and(|wildcard| wildcard.matches(text))
        };
        let by_value = by_key.and_then(|by| by.wildcards.iter().find(|place| fits(place, value)));
        if self.any_key.is_empty() {
            return by_value.copied();
        }
        let whole = format!("{key}_{value}");
        let by_whole = self.any_key.iter().find(|place| fits(place, &whole));
        by_value.into_iter().chain(by_whole).min().copied()
    }
}

impl Node {
    /// A descriptor without anything. No value is an empty one.
    ///
    /// A wildcard in the key is looked for in the key and the value as one text, joined by `_`, as
    /// envoyproxy/ratelimit does it.
    pub(in crate::envoy) fn new(key: &str, value: &str) -> Self {
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
            below: Level::default(),
        }
    }

    pub(in crate::envoy) fn key(&self) -> &str {
        &self.key
    }

    /// The value, empty if there is none.
    pub(in crate::envoy) fn value(&self) -> &str {
        &self.value
    }

    pub(in crate::envoy) fn leaf(&self) -> Option<&Leaf> {
        self.leaf.as_deref()
    }

    pub(in crate::envoy) fn below(&self) -> &Level {
        &self.below
    }
}

impl<'c> Step<'c> {
    /// What stands for the value of an entry that shares a threshold with others.
    pub(super) fn shared(&self, key: &str) -> Option<&'c str> {
        (self.by == By::Wildcard && self.node.share_threshold).then(|| self.pattern(key))
    }

    /// The wildcard as it is written for the value of this key.
    pub(super) fn pattern(&self, key: &str) -> &'c str {
        let Some(whole) = &self.node.whole else { return &self.node.value };
        whole.strip_prefix(key).and_then(|rest| rest.strip_prefix('_')).unwrap_or(whole)
    }

    /// Is the key of the request perhaps another one than that of the file?
    pub(super) fn is_of_any_key(&self) -> bool {
        self.by == By::Wildcard && self.node.whole.is_some()
    }
}
