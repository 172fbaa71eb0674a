//! Who has which slot, as far as is known, and a link to each.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::view::Consensus;
use crate::address::Place;
use crate::link::{Fault, Link};
use crate::slot::Slot;

/// One node, primary or replica.
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) link: Link,
    /// It has not said that the Cluster is down, or not since it has served somebody.
    pub(super) serves: AtomicBool,
}

/// What is known of a Cluster.
pub(super) struct Map {
    owners: Vec<Owner>,
    /// Those that there is a link to.
    nodes: HashMap<Place, Known>,
    /// All that the latest views name.
    named: HashSet<Place>,
    /// How often an owner has changed.
    changes: u32,
    /// Why a slot has no owner.
    fault: Arc<Fault>,
}

/// Who has one slot, and since which change.
#[derive(Clone, Default)]
struct Owner {
    node: Option<Arc<Node>>,
    since: u32,
}

struct Known {
    node: Arc<Node>,
    /// How many views in a row did not name it.
    absent: u32,
}

impl Map {
    /// A node that so many views in a row do not name has left. One view may be from before it came.
    const ABSENT: u32 = 3;
    /// How many nodes may be known from redirects alone.
    const STRANGERS: usize = 32;

    /// The primary of `slot`, or why there is none.
    pub(super) fn owner(&self, slot: Slot) -> Result<Arc<Node>, Arc<Fault>> {
        let owner = &self.owners[usize::from(slot.get())];
        owner.node.clone().ok_or_else(|| match self.named.is_empty() {
            true => Arc::clone(&self.fault),
            false => {
                let what = format!("no node of the cluster has slot {}", slot.get());
                Fault(what + "; see CLUSTER SLOTS and assign it").into()
            }
        })
    }

    /// Changes with the owner of `slot`, and with its connection.
    pub(super) fn generation(&self, slot: Slot) -> u64 {
        let Owner { node, since } = &self.owners[usize::from(slot.get())];
        let connections = node.as_ref().map_or(0, |node| node.link.generation());
        (u64::from(*since) << 32) | (connections & u64::from(u32::MAX))
    }

    /// How many slots have a primary that serves.
    pub(super) fn served(&self) -> usize {
        let same = |one: &Owner, other: &Owner| match (&one.node, &other.node) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let runs = self.owners.chunk_by(same);
        let serves = |node: &Arc<Node>| node.link.is_up() && node.serves.load(Ordering::Relaxed);
        runs.filter(|run| run[0].node.as_ref().is_some_and(serves)).map(<[Owner]>::len).sum()
    }

    /// Those that there is a link to.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values().map(|known| &known.node)
    }

    pub(super) fn node_at(&self, place: &Place) -> Option<Arc<Node>> {
        self.nodes.get(place).map(|known| Arc::clone(&known.node))
    }

    /// Those that there is no link to.
    pub(super) fn unlinked(&self) -> impl Iterator<Item = &Place> {
        self.named.iter().filter(|place| !self.nodes.contains_key(place))
    }

    /// The node at `place`, linked to if need be. None if it would be one too many that no view has
    /// named.
    pub(super) fn stranger(
        &mut self,
        place: &Place,
        link: impl FnOnce() -> Link,
    ) -> Option<Arc<Node>> {
        if let Some(node) = self.node_at(place) {
            return Some(node);
        }
        let strangers = self.nodes.keys().filter(|place| !self.named.contains(place)).count();
        if !self.named.contains(place) && strangers >= Self::STRANGERS {
            return None;
        }
        Some(self.link(place, link))
    }

    /// One slot has moved. False if that was known.
    pub(super) fn learn(&mut self, slot: Slot, node: &Arc<Node>) -> bool {
        let since = self.changes.wrapping_add(1);
        let changed = self.owners[usize::from(slot.get())].becomes(Some(node), since);
        self.changes = if changed { since } else { self.changes };
        changed
    }

    /// Takes over what views say. False if it was known.
    pub(super) fn install(&mut self, found: Consensus, link: impl Fn(&Place) -> Link) -> bool {
        let Consensus { named, owners } = found;
        let mut nodes: Vec<Option<Arc<Node>>> = vec![None; named.len()];
        for owner in owners.iter().flatten() {
            nodes[*owner].get_or_insert_with(|| self.link(&named[*owner], || link(&named[*owner])));
        }
        let since = self.changes.wrapping_add(1);
        let mut changed = false;
        for (slot, owner) in self.owners.iter_mut().zip(owners) {
            let node = owner.and_then(|owner| nodes[owner].as_ref());
            changed |= slot.becomes(node, since);
        }
        self.changes = if changed { since } else { self.changes };
        self.named = named.into_iter().collect();
        self.forget_absent();
        changed
    }

    /// Nobody could be asked. What was known stays.
    pub(super) fn failed(&mut self, fault: Fault) {
        self.fault = fault.into();
    }

    fn link(&mut self, place: &Place, link: impl FnOnce() -> Link) -> Arc<Node> {
        if let Some(known) = self.nodes.get(place) {
            return Arc::clone(&known.node);
        }
        let serves = AtomicBool::new(true);
        let node = Arc::new(Node { place: place.clone(), link: link(), serves });
        self.nodes.insert(place.clone(), Known { node: Arc::clone(&node), absent: 0 });
        node
    }

    fn forget_absent(&mut self) {
        let owners = self.owners.iter().filter_map(|owner| owner.node.as_ref());
        let owners: HashSet<*const Node> = owners.map(Arc::as_ptr).collect();
        let named = &self.named;
        self.nodes.retain(|place, known| {
            known.absent = if named.contains(place) { 0 } else { known.absent + 1 };
            known.absent < Self::ABSENT || owners.contains(&Arc::as_ptr(&known.node))
        });
    }
}

impl Owner {
    fn becomes(&mut self, node: Option<&Arc<Node>>, since: u32) -> bool {
        let same = match (&self.node, node) {
            (Some(present), Some(node)) => Arc::ptr_eq(present, node),
            (present, node) => present.is_none() && node.is_none(),
        };
        if !same {
            *self = Self { node: node.cloned(), since };
        }
        !same
    }
}

impl Default for Map {
    fn default() -> Self {
        let fault = "no node of the cluster has been reached yet; wait a moment";
        Self {
            owners: vec![Owner::default(); usize::from(Slot::COUNT)],
            nodes: HashMap::new(),
            named: HashSet::new(),
            changes: 0,
            fault: Fault(fault.to_owned()).into(),
        }
    }
}
