//! Index of the rules that can match a path.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::PathPattern;

/// Rules by the segments of their paths. It skips rules that cannot match; the candidates still
/// have to be matched.
#[derive(Default, Debug)]
pub(super) struct PathIndex {
    len: usize,
    /// The rules without a path.
    everywhere: Vec<usize>,
    root: PathNode,
}

/// The patterns with a common prefix.
#[derive(Default, Debug)]
struct PathNode {
    /// The rules whose pattern ends here.
    rules: Vec<usize>,
    literals: HashMap<Box<str>, PathNode>,
    /// Patterns whose next segment is a name or has a star.
    any: Option<Box<PathNode>>,
}

/// Indices of rules, in order.
pub(super) type RuleIndices = SmallVec<[usize; 16]>;

impl PathIndex {
    /// Up to this many rules are all candidates: the index would not be faster.
    const MAX_LINEAR_SCAN: usize = 16;

    /// Adds the next rule.
    pub(super) fn push(&mut self, path: Option<&PathPattern>) {
        let index = self.len;
        self.len += 1;
        let Some(path) = path else { return self.everywhere.push(index) };
        let mut node = &mut self.root;
        for literal in path.literals() {
            node = match literal {
                Some(text) => node.literals.entry(text.into()).or_default(),
                None => &mut **node.any.get_or_insert_default(),
            };
        }
        node.rules.push(index);
    }

    /// The rules that may match this path, in order.
    pub(super) fn candidates(&self, path: &str) -> RuleIndices {
        if self.len <= Self::MAX_LINEAR_SCAN {
            return (0..self.len).collect();
        }
        let mut indices = RuleIndices::from_slice(&self.everywhere);
        if let Some(path) = path.strip_prefix('/') {
            self.root.collect(Some(path), &mut indices);
            indices.sort_unstable();
        }
        indices
    }
}

impl PathNode {
    /// Adds the rules of patterns that end here, or continue like `rest`. The recursion is no
    /// deeper than the longest pattern, whatever the path.
    fn collect(&self, rest: Option<&str>, indices: &mut RuleIndices) {
        indices.extend_from_slice(&self.rules);
        let Some(rest) = rest else { return };
        let (segment, rest) = match rest.split_once('/') {
            Some((segment, rest)) => (segment, Some(rest)),
            None => (rest, None),
        };
        let next = self.literals.get(segment);
        next.into_iter().chain(self.any.as_deref()).for_each(|node| node.collect(rest, indices));
    }
}
