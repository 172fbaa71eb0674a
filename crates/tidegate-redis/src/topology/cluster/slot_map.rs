//! The known owner of each slot, and a connection to each node.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tidegate::Shards;

use super::node_view::Consensus;
use crate::connection::endpoint::Endpoint;
use crate::connection::error::ConnectFailure;
use crate::connection::server_identity::ServerIdentity;
use crate::connection::supervisor::SupervisedConnection;
use crate::durability::data_loss::{DataLossLog, ServerChange};
use crate::durability::replica_ack::ReplicaAckPool;
use crate::topology::hash_slot::HashSlot;

/// One node, primary or replica.
pub(crate) struct ClusterNode {
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: SupervisedConnection,
    /// False after the node replied that the Cluster is down, until it serves a call again.
    pub(crate) serves: AtomicBool,
    /// Identifies the node in [`Shards`], from 1; 0 for none.
    pub(crate) shard_index: usize,
    /// The connections for writes that replicas must confirm, made on first use.
    pub(crate) pool: OnceLock<Option<ReplicaAckPool>>,
}

impl ClusterNode {
    pub(crate) fn new(
        endpoint: &Endpoint,
        connection: SupervisedConnection,
        shard_index: usize,
    ) -> Self {
        let (serves, pool) = (AtomicBool::new(true), OnceLock::new());
        Self { endpoint: endpoint.clone(), connection, serves, shard_index, pool }
    }
}

/// The known nodes of a Cluster and the owner of each slot.
pub(crate) struct SlotMap {
    owners: Vec<SlotOwner>,
    /// The nodes with a connection.
    nodes: HashMap<Endpoint, KnownNode>,
    /// All nodes in the latest views.
    listed: HashSet<Endpoint>,
    /// The nodes in the latest views that owned no slot at the latest check for data loss.
    replicas: HashSet<Endpoint>,
    /// The number of changes of an owner.
    changes: u32,
    /// The node of each shard index, from 1.
    shard_indexes: Vec<Endpoint>,
    /// Why no slot has an owner.
    failure: Arc<ConnectFailure>,
}

/// The owner of one slot, and since which change.
#[derive(Clone, Default)]
struct SlotOwner {
    node: Option<Arc<ClusterNode>>,
    since: u32,
    /// The owner at the latest check for data loss.
    checked: Option<Arc<ServerIdentity>>,
}

struct KnownNode {
    node: Arc<ClusterNode>,
    /// How many views in a row did not list it.
    absent: u32,
}

impl SlotMap {
    /// A node that so many views in a row do not list has left. One view may be older than the
    /// node.
    const FORGET_AFTER_VIEWS: u32 = 3;
    /// How many nodes may be known from redirects alone.
    const MAX_UNLISTED_NODES: usize = 32;

    /// The primary of `slot`, or why there is none.
    pub(crate) fn owner(&self, slot: HashSlot) -> Result<Arc<ClusterNode>, Arc<ConnectFailure>> {
        let owner = &self.owners[usize::from(slot.get())];
        owner.node.clone().ok_or_else(|| self.unowned(usize::from(slot.get())))
    }

    /// Why a slot has no primary.
    fn unowned(&self, slot: usize) -> Arc<ConnectFailure> {
        match self.listed.is_empty() {
            true => Arc::clone(&self.failure),
            false => {
                let text = format!("slot {slot} has no node; see CLUSTER SLOTS and assign it");
                ConnectFailure(text).into()
            }
        }
    }

    /// Changes with the owner of `slot`, and with the connection to it.
    pub(crate) fn generation(&self, slot: HashSlot) -> u64 {
        let SlotOwner { node, since, .. } = &self.owners[usize::from(slot.get())];
        let connections = node.as_ref().map_or(0, |node| node.connection.generation());
        (u64::from(*since) << 32) | (connections & u64::from(u32::MAX))
    }

    /// The number of slots whose primary serves calls.
    pub(crate) fn served(&self) -> usize {
        let serves = |node: &Arc<ClusterNode>| {
            node.connection.is_up() && node.serves.load(Ordering::Relaxed)
        };
        let runs = self.runs().filter(|run| run[0].node.as_ref().is_some_and(serves));
        runs.map(<[SlotOwner]>::len).sum()
    }

    /// Why the first slot that is not served has no service.
    pub(crate) fn error(&self) -> Option<Arc<str>> {
        let mut first = 0;
        for run in self.runs() {
            let Some(node) = &run[0].node else {
                return Some(self.unowned(first).0.as_str().into());
            };
            if let Some(error) = node.connection.error() {
                return Some(error);
            }
            if !node.serves.load(Ordering::Relaxed) {
                let text = format!("redis at {} reports that the Cluster is down", node.endpoint);
                return Some((text + "; see CLUSTER INFO").into());
            }
            first += run.len();
        }
        None
    }

    /// The number of nodes that own slots.
    pub(crate) fn primaries(&self) -> u32 {
        let owners = self.runs().filter_map(|run| Some(run[0].node.as_ref()?.shard_index));
        owners.collect::<HashSet<_>>().len() as u32
    }

    /// The slots, in runs of one owner.
    fn runs(&self) -> impl Iterator<Item = &[SlotOwner]> {
        self.owners.chunk_by(|one, other| match (&one.node, &other.node) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        })
    }

    /// The nodes with a connection.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<ClusterNode>> {
        self.nodes.values().map(|known| &known.node)
    }

    pub(crate) fn node_at(&self, endpoint: &Endpoint) -> Option<Arc<ClusterNode>> {
        self.nodes.get(endpoint).map(|known| Arc::clone(&known.node))
    }

    /// The listed nodes without a connection.
    pub(crate) fn unconnected(&self) -> impl Iterator<Item = &Endpoint> {
        self.listed.iter().filter(|endpoint| !self.nodes.contains_key(endpoint))
    }

    /// The node at `endpoint`, which may be new. None if no view lists it and there are
    /// [`MAX_UNLISTED_NODES`](Self::MAX_UNLISTED_NODES) already.
    pub(crate) fn unlisted_node(
        &mut self,
        endpoint: &Endpoint,
        connect: impl FnOnce() -> SupervisedConnection,
    ) -> Option<Arc<ClusterNode>> {
        if let Some(node) = self.node_at(endpoint) {
            return Some(node);
        }
        let unlisted = self.nodes.keys().filter(|other| !self.listed.contains(other)).count();
        if !self.listed.contains(endpoint) && unlisted >= Self::MAX_UNLISTED_NODES {
            return None;
        }
        Some(self.add_node(endpoint, connect))
    }

    /// Sets the owner of one slot. False if it is unchanged.
    pub(crate) fn set_owner(&mut self, slot: HashSlot, node: &Arc<ClusterNode>) -> bool {
        let since = self.changes.wrapping_add(1);
        let changed = self.owners[usize::from(slot.get())].set_node(Some(node), since);
        self.changes = if changed { since } else { self.changes };
        changed
    }

    /// Replaces all owners. False if they are unchanged.
    pub(crate) fn install(
        &mut self,
        consensus: Consensus,
        connect: impl Fn(&Endpoint) -> SupervisedConnection,
    ) -> bool {
        let Consensus { endpoints, owners } = consensus;
        let mut nodes: Vec<Option<Arc<ClusterNode>>> = vec![None; endpoints.len()];
        for owner in owners.iter().flatten() {
            let endpoint = &endpoints[*owner];
            nodes[*owner].get_or_insert_with(|| self.add_node(endpoint, || connect(endpoint)));
        }
        let since = self.changes.wrapping_add(1);
        let mut changed = false;
        for (slot, owner) in self.owners.iter_mut().zip(owners) {
            let node = owner.and_then(|owner| nodes[owner].as_ref());
            changed |= slot.set_node(node, since);
        }
        self.changes = if changed { since } else { self.changes };
        self.listed = endpoints.into_iter().collect();
        self.forget_absent();
        changed
    }

    /// Compares the owner of each slot with the one at the previous check. A slot that was migrated
    /// between two running nodes kept its keys; any other change may have lost some.
    pub(crate) fn detect_data_loss(&mut self, data_loss: &DataLossLog) {
        // The slots of one node are adjacent, so each identity is read once: callers wait
        // meanwhile.
        let mut last: Option<(Arc<ClusterNode>, Option<Arc<ServerIdentity>>)> = None;
        let mut changes: Vec<(Arc<ServerIdentity>, Arc<ServerIdentity>)> = Vec::new();
        for owner in &mut self.owners {
            let Some(node) = &owner.node else { continue };
            if !last.as_ref().is_some_and(|(other, _)| Arc::ptr_eq(other, node)) {
                last = Some((Arc::clone(node), node.connection.identity()));
            }
            let Some((_, Some(now))) = &last else { continue };
            if owner.checked.as_ref().is_some_and(|before| Arc::ptr_eq(before, now)) {
                continue;
            }
            let before = owner.checked.replace(Arc::clone(now));
            let Some(before) = before.filter(|before| !before.is_same_process(now)) else {
                continue;
            };
            let is_known = |(other, then): &(Arc<ServerIdentity>, Arc<ServerIdentity>)| {
                other.is_same_process(&before) && then.is_same_process(now)
            };
            if !changes.iter().any(is_known) {
                changes.push((before, Arc::clone(now)));
            }
        }
        for (before, now) in &changes {
            let was_replica = self.replicas.contains(&now.endpoint);
            let at_endpoint =
                self.node_at(&before.endpoint).and_then(|node| node.connection.identity());
            let still_runs = at_endpoint.is_some_and(|server| server.is_same_process(before));
            if was_replica || now.continues(before) || !still_runs {
                data_loss.record(&ServerChange { before, now, was_replica });
            }
        }
        let mut owners: Vec<&Endpoint> =
            self.owners.iter().filter_map(SlotOwner::previous_owner).collect();
        owners.dedup_by(|one, other| std::ptr::eq(*one, *other));
        let owners: HashSet<&Endpoint> = owners.into_iter().collect();
        self.replicas =
            self.listed.iter().filter(|endpoint| !owners.contains(endpoint)).cloned().collect();
    }

    /// No node replied. The known owners stay.
    pub(crate) fn set_failure(&mut self, failure: ConnectFailure) {
        self.failure = failure.into();
    }

    fn add_node(
        &mut self,
        endpoint: &Endpoint,
        connect: impl FnOnce() -> SupervisedConnection,
    ) -> Arc<ClusterNode> {
        if let Some(known) = self.nodes.get(endpoint) {
            return Arc::clone(&known.node);
        }
        let index = self.shard_index(endpoint);
        let node = Arc::new(ClusterNode::new(endpoint, connect(), index));
        self.nodes.insert(endpoint.clone(), KnownNode { node: Arc::clone(&node), absent: 0 });
        node
    }

    /// The same for one endpoint, while there are free indexes. After that it reuses the index of
    /// an endpoint without a connection; in the largest Clusters, several nodes share one.
    fn shard_index(&mut self, endpoint: &Endpoint) -> usize {
        const MAX: usize = Shards::MAX - 1;
        if let Some(known) = self.shard_indexes.iter().position(|other| other == endpoint) {
            return 1 + known;
        }
        if self.shard_indexes.len() < MAX {
            self.shard_indexes.push(endpoint.clone());
            return self.shard_indexes.len();
        }
        let unused = self.shard_indexes.iter().position(|other| !self.nodes.contains_key(other));
        if let Some(unused) = unused {
            self.shard_indexes[unused] = endpoint.clone();
        }
        1 + unused.unwrap_or(self.nodes.len() % MAX)
    }

    fn forget_absent(&mut self) {
        let owners = self.owners.iter().filter_map(|owner| owner.node.as_ref());
        let owners: HashSet<*const ClusterNode> = owners.map(Arc::as_ptr).collect();
        let listed = &self.listed;
        self.nodes.retain(|endpoint, known| {
            known.absent = if listed.contains(endpoint) { 0 } else { known.absent + 1 };
            known.absent < Self::FORGET_AFTER_VIEWS || owners.contains(&Arc::as_ptr(&known.node))
        });
    }
}

impl SlotOwner {
    /// The endpoint of the owner at the latest check for data loss. A new owner without a
    /// connection still counts as a replica.
    fn previous_owner(&self) -> Option<&Endpoint> {
        let checked = self.checked.as_ref().map(|server| &server.endpoint);
        checked.or_else(|| self.node.as_ref().map(|node| &node.endpoint))
    }

    fn set_node(&mut self, node: Option<&Arc<ClusterNode>>, since: u32) -> bool {
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

impl Default for SlotMap {
    fn default() -> Self {
        let failure = "not connected to any cluster node yet; retry";
        Self {
            owners: vec![SlotOwner::default(); usize::from(HashSlot::COUNT)],
            nodes: HashMap::new(),
            listed: HashSet::new(),
            replicas: HashSet::new(),
            changes: 0,
            shard_indexes: Vec::new(),
            failure: ConnectFailure(failure.to_owned()).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::dial::Dialer;
    use crate::connection::supervisor::ConnectionSettings;

    /// Connections that are made outside a runtime do nothing.
    fn index_of(map: &mut SlotMap, port: u16) -> usize {
        let endpoint = Endpoint::Tcp { host: "10.0.0.1".to_owned(), port };
        let dialer = Dialer::new(redis::RedisConnectionInfo::default());
        map.add_node(&endpoint, || {
            SupervisedConnection::new(endpoint.clone(), dialer, ConnectionSettings::default())
        })
        .shard_index
    }

    #[test]
    fn nodes_keep_their_shard_index_and_indexes_of_removed_nodes_are_reused() {
        let mut map = SlotMap::default();
        let indexes: Vec<usize> = (1..=63).map(|port| index_of(&mut map, port)).collect();
        assert_eq!(indexes, (1..=63).collect::<Vec<_>>());
        assert_eq!((index_of(&mut map, 7), index_of(&mut map, 63)), (7, 63));
        // There is no index left, so two nodes share one.
        assert!((1..=63).contains(&index_of(&mut map, 64)));
        map.nodes.retain(|endpoint, _| endpoint.to_string() != "10.0.0.1:5");
        assert_eq!((index_of(&mut map, 65), index_of(&mut map, 7)), (5, 7));
        for port in 100..400 {
            map.nodes.clear();
            assert!((1..=63).contains(&index_of(&mut map, port)));
        }
        assert_eq!(map.shard_indexes.len(), 63);
    }
}
