//! Index of the rules that can match a request, by host, header and path.

use std::borrow::Cow;
use std::collections::HashMap;

use smallvec::SmallVec;

use super::matching::{Match, PathPattern, Request, host_name};

/// Rules by host, then by a header, then by the segments of their paths. It skips rules that cannot
/// match; the candidates still have to be matched. Each rule is in one place.
#[derive(Default, Debug)]
pub(super) struct RuleIndex {
    len: usize,
    /// The rules without a host.
    any_host: HeaderIndex,
    /// The rules of one host, by its name in lower case.
    hosts: HashMap<Box<str>, HeaderIndex>,
    /// The rules of all subdomains, by the name of their parent in lower case.
    parents: HashMap<Box<str>, HeaderIndex>,
    /// Longest name in `parents`, so that a long host of a request is not looked up in full.
    longest_parent: usize,
}

/// Rules of the same hosts.
#[derive(Default, Debug)]
struct HeaderIndex {
    /// The rules without a header whose value is fixed.
    any: PathIndex,
    /// The others, by their first such header.
    fixed: Vec<FixedHeader>,
}

/// Rules with a header of this name, by its value.
#[derive(Debug)]
struct FixedHeader {
    name: Box<str>,
    values: HashMap<Box<str>, PathIndex>,
}

/// Rules of the same hosts and header.
#[derive(Default, Debug)]
struct PathIndex {
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

impl RuleIndex {
    /// Up to this many rules are all candidates: the index would not be faster.
    const MAX_LINEAR_SCAN: usize = 16;

    /// Adds the next rule.
    pub(super) fn push(&mut self, matches: &Match) {
        let headers = match matches.host.as_deref().map(|host| (host, host.strip_prefix("*."))) {
            None => &mut self.any_host,
            Some((host, None)) => self.hosts.entry(host.to_ascii_lowercase().into()).or_default(),
            Some((_, Some(parent))) => {
                self.longest_parent = self.longest_parent.max(parent.len());
                self.parents.entry(parent.to_ascii_lowercase().into()).or_default()
            }
        };
        headers.push(self.len, matches);
        self.len += 1;
    }

    /// The rules that may match this request, in order.
    pub(super) fn candidates(&self, request: &impl Request) -> RuleIndices {
        if self.len <= Self::MAX_LINEAR_SCAN {
            return (0..self.len).collect();
        }
        let mut indices = RuleIndices::new();
        self.any_host.collect(request, &mut indices);
        if !self.hosts.is_empty() || !self.parents.is_empty() {
            let host = lower_case(host_name(request.host()));
            let of_host = self.hosts.get(&*host);
            of_host.into_iter().for_each(|headers| headers.collect(request, &mut indices));
            if !self.parents.is_empty() {
                self.parents_of(&host).for_each(|headers| headers.collect(request, &mut indices));
            }
        }
        if indices.len() > 1 {
            indices.sort_unstable();
            // A request can have a header of one value twice.
            indices.dedup();
        }
        indices
    }

    /// The rules of all subdomains of a parent of this host.
    fn parents_of<'i>(&'i self, host: &'i str) -> impl Iterator<Item = &'i HeaderIndex> {
        let parents = host.rmatch_indices('.').map(|(at, _)| (at, &host[at + 1..]));
        let parents = parents.take_while(|(_, parent)| parent.len() <= self.longest_parent);
        parents.filter(|(at, _)| *at > 0).filter_map(|(_, parent)| self.parents.get(parent))
    }
}

impl HeaderIndex {
    fn push(&mut self, index: usize, matches: &Match) {
        let fixed = matches.headers.iter().find(|(_, value)| !value.contains('*'));
        let paths = match fixed {
            None => &mut self.any,
            Some((name, value)) => {
                let known = self.fixed.iter().position(|header| header.name == *name);
                let at = known.unwrap_or(self.fixed.len());
                if known.is_none() {
                    self.fixed.push(FixedHeader { name: name.clone(), values: HashMap::new() });
                }
                self.fixed[at].values.entry(value.clone()).or_default()
            }
        };
        paths.push(index, matches.path.as_ref());
    }

    fn collect(&self, request: &impl Request, indices: &mut RuleIndices) {
        self.any.collect(request.path(), indices);
        for FixedHeader { name, values } in &self.fixed {
            let found = std::cell::RefCell::new(&mut *indices);
            // Visits all values of the header.
            request.any_header(name, &|value| {
                if let Some(paths) = values.get(value) {
                    paths.collect(request.path(), &mut found.borrow_mut());
                }
                false
            });
        }
    }
}

impl PathIndex {
    fn push(&mut self, index: usize, path: Option<&PathPattern>) {
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

    fn collect(&self, path: &str, indices: &mut RuleIndices) {
        indices.extend_from_slice(&self.everywhere);
        if let Some(path) = path.strip_prefix('/') {
            self.root.collect(Some(path), indices);
        }
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

fn lower_case(text: &str) -> Cow<'_, str> {
    match text.bytes().any(|b| b.is_ascii_uppercase()) {
        true => text.to_ascii_lowercase().into(),
        false => text.into(),
    }
}
