//! Which rules of a large policy to look at for a path.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::PathPattern;

/// Rules by the segments of their paths. It leaves out rules that cannot match; those that it finds
/// still have to be asked whether they do.
#[derive(Default, Debug)]
pub(super) struct Index {
    /// How many rules there are.
    len: usize,
    /// The rules without a path.
    everywhere: Vec<usize>,
    root: Node,
}

/// What the patterns that begin alike go on with.
#[derive(Default, Debug)]
struct Node {
    /// The rules whose last segment this is.
    rules: Vec<usize>,
    literals: HashMap<Box<str>, Node>,
    /// Where a segment is a name or has a star.
    any: Option<Box<Node>>,
}

/// Places of rules, in order.
pub(super) type Places = SmallVec<[usize; 16]>;

impl Index {
    /// Up to so many rules are all looked at: that is no slower.
    const FEW: usize = 16;

    /// Adds the next rule.
    pub(super) fn push(&mut self, path: Option<&PathPattern>) {
        let place = self.len;
        self.len += 1;
        let Some(path) = path else { return self.everywhere.push(place) };
        let mut node = &mut self.root;
        for literal in path.literals() {
            node = match literal {
                Some(text) => node.literals.entry(text.into()).or_default(),
                None => &mut **node.any.get_or_insert_default(),
            };
        }
        node.rules.push(place);
    }

    /// The rules that may match this path, in order.
    pub(super) fn candidates(&self, path: &str) -> Places {
        if self.len <= Self::FEW {
            return (0..self.len).collect();
        }
        let mut places = Places::from_slice(&self.everywhere);
        if let Some(path) = path.strip_prefix('/') {
            self.root.collect(Some(path), &mut places);
            places.sort_unstable();
        }
        places
    }
}

impl Node {
    /// Adds the rules of patterns that end here, or go on like `rest`. It goes no deeper than the
    /// longest pattern, whatever the path is.
    fn collect(&self, rest: Option<&str>, places: &mut Places) {
        places.extend_from_slice(&self.rules);
        let Some(rest) = rest else { return };
        let (segment, rest) = match rest.split_once('/') {
            Some((segment, rest)) => (segment, Some(rest)),
            None => (rest, None),
        };
        let next = self.literals.get(segment);
        next.into_iter().chain(self.any.as_deref()).for_each(|node| node.collect(rest, places));
    }
}
