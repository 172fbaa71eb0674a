//! Who has which slot, as far as is known, and a link to each.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tidegate::Shards;

use super::view::Consensus;
use crate::address::Place;
use crate::confirm::Pool;
use crate::link::{Fault, Link};
use crate::resets::{Change, Life, Resets};
use crate::slot::Slot;

/// One node, primary or replica.
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) link: Link,
    /// It has not said that the Cluster is down, or not since it has served somebody.
    pub(super) serves: AtomicBool,
    /// By which it is told apart, from 1; 0 is none.
    pub(super) number: usize,
    /// The connections for what its replicas are to confirm, once they are needed.
    pub(super) pool: OnceLock<Option<Pool>>,
}

impl Node {
    pub(super) fn new(place: &Place, link: Link, number: usize) -> Self {
        let (serves, pool) = (AtomicBool::new(true), OnceLock::new());
        Self { place: place.clone(), link, serves, number, pool }
    }
}

/// What is known of a Cluster.
pub(super) struct Map {
    owners: Vec<Owner>,
    /// Those that there is a link to.
    nodes: HashMap<Place, Known>,
    /// All that the latest views name.
    named: HashSet<Place>,
    /// Those of them that had no slot when stock was taken.
    replicas: HashSet<Place>,
    /// How often an owner has changed.
    changes: u32,
    /// Whose the numbers are, from 1 on.
    numbers: Vec<Place>,
    /// Why a slot has no owner.
    fault: Arc<Fault>,
}

/// Who has one slot, and since which change.
#[derive(Clone, Default)]
struct Owner {
    node: Option<Arc<Node>>,
    since: u32,
    /// Who had it when stock was taken.
    life: Option<Arc<Life>>,
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
        let Owner { node, since, .. } = &self.owners[usize::from(slot.get())];
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

    /// Compares who has each slot with who had it when this was done last. A slot that was moved from
    /// one living node to another took its keys along; anything else may have lost some.
    pub(super) fn take_stock(&mut self, resets: &Resets) {
        // Slots of one node lie side by side, and callers wait meanwhile.
        let mut met: Option<(Arc<Node>, Option<Arc<Life>>)> = None;
        let mut changes: Vec<(Arc<Life>, Arc<Life>)> = Vec::new();
        for owner in &mut self.owners {
            let Some(node) = &owner.node else { continue };
            if !met.as_ref().is_some_and(|(other, _)| Arc::ptr_eq(other, node)) {
                met = Some((Arc::clone(node), node.link.life()));
            }
            let Some((_, Some(life))) = &met else { continue };
            if owner.life.as_ref().is_some_and(|before| Arc::ptr_eq(before, life)) {
                continue;
            }
            let before = owner.life.replace(Arc::clone(life));
            let Some(before) = before.filter(|before| !before.is_same_process(life)) else {
                continue;
            };
            let is_known = |(other, then): &(Arc<Life>, Arc<Life>)| {
                other.is_same_process(&before) && then.is_same_process(life)
            };
            if !changes.iter().any(is_known) {
                changes.push((before, Arc::clone(life)));
            }
        }
        for (before, now) in &changes {
            let was_replica = self.replicas.contains(&now.place);
            let there = self.node_at(&before.place).and_then(|node| node.link.life());
            let lives_on = there.is_some_and(|there| there.is_same_process(before));
            if was_replica || now.continues(before) || !lives_on {
                resets.note(&Change { before, now, was_replica });
            }
        }
        let mut owners: Vec<&Place> = self.owners.iter().filter_map(Owner::stocked).collect();
        owners.dedup_by(|one, other| std::ptr::eq(*one, *other));
        let owners: HashSet<&Place> = owners.into_iter().collect();
        self.replicas =
            self.named.iter().filter(|place| !owners.contains(place)).cloned().collect();
    }

    /// Nobody could be asked. What was known stays.
    pub(super) fn failed(&mut self, fault: Fault) {
        self.fault = fault.into();
    }

    fn link(&mut self, place: &Place, link: impl FnOnce() -> Link) -> Arc<Node> {
        if let Some(known) = self.nodes.get(place) {
            return Arc::clone(&known.node);
        }
        let node = Arc::new(Node::new(place, link(), self.number(place)));
        self.nodes.insert(place.clone(), Known { node: Arc::clone(&node), absent: 0 });
        node
    }

    /// The same for one place as long as there is room to remember it. When there is none, a place that
    /// there is no link to any more gives its number away; in the largest Clusters, several share one.
    fn number(&mut self, place: &Place) -> usize {
        const MOST: usize = Shards::MOST - 1;
        if let Some(known) = self.numbers.iter().position(|other| other == place) {
            return 1 + known;
        }
        if self.numbers.len() < MOST {
            self.numbers.push(place.clone());
            return self.numbers.len();
        }
        let unused = self.numbers.iter().position(|other| !self.nodes.contains_key(other));
        if let Some(unused) = unused {
            self.numbers[unused] = place.clone();
        }
        1 + unused.unwrap_or(self.nodes.len() % MOST)
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
    /// Where the one is who had it when stock was taken. One that has just taken its place and was not
    /// met yet is still a replica.
    fn stocked(&self) -> Option<&Place> {
        let had = self.life.as_ref().map(|life| &life.place);
        had.or_else(|| self.node.as_ref().map(|node| &node.place))
    }

    fn becomes(&mut self, node: Option<&Arc<Node>>, since: u32) -> bool {
        let same = match (&self.node, node) {
            (Some(present), Some(node)) => Arc::ptr_eq(present, node),
            (present, node) => present.is_none() && node.is_none(),
        };
        if !same {
            (self.node, self.since) = (node.cloned(), since);
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
            replicas: HashSet::new(),
            changes: 0,
            numbers: Vec::new(),
            fault: Fault(fault.to_owned()).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::Dialer;
    use crate::link::Settings;

    /// Links that are made outside of a runtime do nothing.
    fn named(map: &mut Map, port: u16) -> usize {
        let place = Place::Tcp { host: "10.0.0.1".to_owned(), port };
        let dialer = Dialer::new(redis::RedisConnectionInfo::default());
        map.link(&place, || Link::new(place.clone(), dialer, Settings::default())).number
    }

    #[test]
    fn nodes_keep_their_numbers_and_those_that_have_left_give_theirs_away() {
        let mut map = Map::default();
        let numbers: Vec<usize> = (1..=63).map(|port| named(&mut map, port)).collect();
        assert_eq!(numbers, (1..=63).collect::<Vec<_>>());
        assert_eq!((named(&mut map, 7), named(&mut map, 63)), (7, 63));
        // There is no number left, so two nodes have the same.
        assert!((1..=63).contains(&named(&mut map, 64)));
        map.nodes.retain(|place, _| place.to_string() != "10.0.0.1:5");
        assert_eq!((named(&mut map, 65), named(&mut map, 7)), (5, 7));
        for port in 100..400 {
            map.nodes.clear();
            assert!((1..=63).contains(&named(&mut map, port)));
        }
        assert_eq!(map.numbers.len(), 63);
    }
}
