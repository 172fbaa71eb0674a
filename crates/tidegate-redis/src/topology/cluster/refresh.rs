//! The refresh task: reads the slot map periodically, and when a call has reason to doubt it.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::node_view::{Consensus, NodeView};
use super::slot_map::{ClusterNode, SlotMap};
use crate::connection::dial::Dialer;
use crate::connection::endpoint::Endpoint;
use crate::connection::error::{CallError, ConnectFailure};
use crate::connection::supervisor::{ConnectionSettings, SupervisedConnection};
use crate::connection::timing::{deadline_after, jittered};
use crate::durability::data_loss::DataLossLog;
use crate::durability::replica_ack::ReplicaAckPool;
use crate::topology::hash_slot::HashSlot;

/// Shortest interval between the starts of two rounds.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(50);
/// The same when the map has been in doubt for long and nothing has changed; with jitter.
const MAX_DOUBT_INTERVAL: Duration = Duration::from_millis(500);
/// Longest interval between two rounds; with jitter.
const PERIOD: Duration = Duration::from_secs(5);
/// Nodes that are queried in one round.
const NODES_PER_ROUND: usize = 8;
/// How long a round waits for connected nodes.
const ROUND_TIMEOUT: Duration = Duration::from_millis(250);
/// How long a round waits for the rest once it has enough views: the rest may be frozen.
const STRAGGLER_TIMEOUT: Duration = Duration::from_millis(10);

/// The parts of a Cluster that its handles and the refresh task share.
pub(super) struct ClusterInner {
    seeds: Vec<Endpoint>,
    dialer: Dialer,
    pub(super) settings: ConnectionSettings,
    pub(super) map: watch::Sender<SlotMap>,
    /// The map may be wrong.
    pub(super) doubt: Notify,
    /// A node has replied `MOVED`: the map is wrong.
    pub(super) moved: Notify,
    data_loss: DataLossLog,
}

impl ClusterInner {
    pub(super) fn new(
        seeds: Vec<Endpoint>,
        dialer: Dialer,
        settings: ConnectionSettings,
        data_loss: DataLossLog,
    ) -> Self {
        Self {
            seeds,
            dialer,
            settings,
            map: watch::Sender::new(SlotMap::default()),
            doubt: Notify::new(),
            moved: Notify::new(),
            data_loss,
        }
    }

    /// Never completes.
    pub(crate) async fn refresh(&self) {
        let longest = *self.settings.backoff.end();
        let mut pause = MIN_INTERVAL;
        // Since when the map has been in doubt without a pause and without a change.
        let mut doubted = Instant::now();
        loop {
            let begun = Instant::now();
            let Some(changed) = self.refresh_once().await else {
                // Each round dials the seeds again, which is expensive.
                sleep(jittered(pause)).await;
                pause = longest.min(2 * pause).max(MIN_INTERVAL);
                continue;
            };
            pause = MIN_INTERVAL;
            if changed {
                doubted = begun;
            }
            sleep_until(begun + MIN_INTERVAL).await;
            let next = begun + jittered(interval_after(doubted.elapsed()));
            if timeout_at(next, self.moved.notified()).await.is_ok() {
                doubted = Instant::now();
            }
            // While slots are not served, an open circuit breaker may block all calls, and waits
            // for this task to find that the slots are served again.
            if self.map.borrow().served() < usize::from(HashSlot::COUNT) {
                continue;
            }
            let waiting = Instant::now();
            let _ = timeout(jittered(PERIOD), self.doubt.notified()).await;
            if waiting.elapsed() > MAX_DOUBT_INTERVAL {
                doubted = Instant::now();
            }
        }
    }

    /// One round. Returns whether the map has changed; None if no node replied.
    async fn refresh_once(&self) -> Option<bool> {
        let known = self.known();
        let mut round = RoundResult::default();
        if known.iter().any(|node| node.connection.is_connected()) {
            let span = ROUND_TIMEOUT.max(self.settings.deadline.min(4 * ROUND_TIMEOUT));
            round = query(&known, span).await;
        }
        if round.views.is_empty() {
            // Each of these connections resolves the names again.
            let seeds = self.seeds.iter().map(|endpoint| self.node(endpoint));
            let all: Vec<_> = seeds.chain(known.iter().cloned()).collect();
            round = query(&all, self.settings.connect_deadline + ROUND_TIMEOUT).await;
            // A seed may be partitioned from the others, and the nodes it names know more.
            self.doubt.notify_one();
        }
        if round.views.is_empty() {
            let why = round.why.unwrap_or_else(|| "no known nodes".to_owned());
            let failure = ConnectFailure(format!("no cluster node is reachable ({why})"));
            self.map.send_if_modified(|map| {
                map.set_failure(failure);
                false
            });
            return None;
        }
        let consensus = Consensus::of(round.views);
        Some(self.map.send_if_modified(|map| {
            let changed = map.install(consensus, |endpoint| self.connect(endpoint));
            map.detect_data_loss(&self.data_loss);
            changed
        }))
    }

    /// The nodes to query: connected ones first, in random order, then the others.
    fn known(&self) -> Vec<Arc<ClusterNode>> {
        let map = self.map.borrow();
        let mut known: Vec<Arc<ClusterNode>> = map.nodes().cloned().collect();
        let new: Vec<Endpoint> = map.unconnected().cloned().collect();
        drop(map);
        let random = RandomState::new();
        known.sort_by_cached_key(|node| {
            (!node.connection.is_connected(), random.hash_one(&node.endpoint))
        });
        known.truncate(NODES_PER_ROUND);
        // In a small Cluster this connects to each replica, so that a promoted one is reachable at
        // once.
        for endpoint in new.iter().take(NODES_PER_ROUND - known.len()) {
            self.map.send_if_modified(|map| {
                known.extend(map.unlisted_node(endpoint, || self.connect(endpoint)));
                false
            });
        }
        known
    }

    pub(super) fn connect(&self, endpoint: &Endpoint) -> SupervisedConnection {
        SupervisedConnection::new(endpoint.clone(), self.dialer.clone(), self.settings.clone())
    }

    /// The connections to `node` for writes that replicas must confirm; None if none must.
    pub(super) fn pool_of(&self, node: &ClusterNode) -> Option<ReplicaAckPool> {
        let connect = |settings| {
            SupervisedConnection::new(node.endpoint.clone(), self.dialer.clone(), settings)
        };
        node.pool.get_or_init(|| ReplicaAckPool::new(&self.settings, connect)).clone()
    }

    fn node(&self, endpoint: &Endpoint) -> Arc<ClusterNode> {
        Arc::new(ClusterNode::new(endpoint, self.connect(endpoint), 0))
    }
}

/// The interval after the map has been in doubt for so long without a change. A fleet that queries
/// all nodes 20 times a second while one of them is down is a burden. So the result of a failover
/// is detected late by at most a sixteenth of its duration.
fn interval_after(doubted: Duration) -> Duration {
    (doubted / 16).clamp(MIN_INTERVAL, MAX_DOUBT_INTERVAL)
}

#[derive(Default)]
struct RoundResult {
    views: Vec<NodeView>,
    /// Why one of the other nodes did not reply.
    why: Option<String>,
}

/// Queries all nodes concurrently. Once more than half of the connected ones have replied, or any
/// one if none was connected, the rest have [`STRAGGLER_TIMEOUT`] left.
async fn query(nodes: &[Arc<ClusterNode>], span: Duration) -> RoundResult {
    let (last, mut end) = (deadline_after(span), deadline_after(span + STRAGGLER_TIMEOUT));
    let connected = nodes.iter().filter(|node| node.connection.is_connected()).count();
    let mut queries = JoinSet::new();
    for node in nodes {
        queries.spawn(view_of(Arc::clone(node), last));
    }
    let mut round = RoundResult::default();
    while let Ok(Some(reply)) = timeout_at(end, queries.join_next()).await {
        match reply {
            Ok(Ok(view)) => round.views.push(view),
            Ok(Err(why)) => round.why = Some(why),
            Err(_) => {}
        }
        if 2 * round.views.len() > connected {
            end = end.min(deadline_after(STRAGGLER_TIMEOUT));
        }
    }
    round
}

async fn view_of(node: Arc<ClusterNode>, end: Instant) -> Result<NodeView, String> {
    let cluster = |subcommand: &str| -> Cmd {
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg(subcommand);
        cmd
    };
    let (info, slots) = (cluster("INFO"), cluster("SLOTS"));
    let connection = &node.connection;
    let (info, slots) =
        tokio::join!(connection.call_until(end, &info), connection.call_until(end, &slots));
    let endpoint = &node.endpoint;
    let slots: Value = slots.map_err(|error| match error {
        CallError::NotSent(failure) => failure.to_string(),
        error => format!("redis at {endpoint}: {error}"),
    })?;
    let view = NodeView::read(endpoint, info.ok().as_ref(), &slots)
        .ok_or_else(|| format!("redis at {endpoint} reports no assigned slots"))?;
    node.serves.store(view.is_ok, Ordering::Relaxed);
    Ok(view)
}
