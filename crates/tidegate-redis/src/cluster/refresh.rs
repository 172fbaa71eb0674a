//! Keeps the map true: asks around from time to time, and when somebody doubts it.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::Core;
use super::map::Node;
use super::view::{Consensus, View};
use crate::address::Place;
use crate::confirm::Pool;
use crate::link::{Fault, Link, LinkError, after, jittered};
use crate::slot::Slot;

/// Between the beginnings of two rounds at least.
pub(super) const GAP: Duration = Duration::from_millis(50);
/// The same when it has been doubted for long and nothing has changed, cut by up to a half at random.
const LONGEST_GAP: Duration = Duration::from_millis(500);
/// Between two rounds at most, cut by up to a half at random.
const PERIOD: Duration = Duration::from_secs(5);
/// How many nodes are asked in one round.
const ASKED: usize = 8;
/// How long a round waits for nodes that it has a connection to.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long it waits for the rest when it has heard enough: one that is frozen is not worth more.
const GRACE: Duration = Duration::from_millis(10);

impl Core {
    /// Never completes.
    pub(super) async fn refresh(&self) {
        let longest = *self.settings.backoff.end();
        let mut pause = GAP;
        // Since when it has been doubted without a break, and looking round has brought nothing new.
        let mut doubted = Instant::now();
        loop {
            let begun = Instant::now();
            let Some(news) = self.look_round().await else {
                // Each round dials the seeds anew, and nobody is helped by that being done often.
                sleep(jittered(pause)).await;
                pause = longest.min(2 * pause).max(GAP);
                continue;
            };
            pause = GAP;
            if news {
                doubted = begun;
            }
            sleep_until(begun + GAP).await;
            let next = begun + jittered(gap_after(doubted.elapsed()));
            if timeout_at(next, self.moved.notified()).await.is_ok() {
                doubted = Instant::now();
            }
            // While slots are not served, perhaps nobody calls who could doubt: a breaker waits for this to
            // say that they are.
            if self.map.borrow().served() < usize::from(Slot::COUNT) {
                continue;
            }
            let calm = Instant::now();
            let _ = timeout(jittered(PERIOD), self.doubt.notified()).await;
            if calm.elapsed() > LONGEST_GAP {
                doubted = Instant::now();
            }
        }
    }

    /// One round. Has it brought anything new? None if nobody had an answer.
    async fn look_round(&self) -> Option<bool> {
        let known = self.known();
        let mut heard = Heard::default();
        if known.iter().any(|node| node.link.is_connected()) {
            heard = ask(&known, PATIENCE.max(self.settings.deadline.min(4 * PATIENCE))).await;
        }
        if heard.views.is_empty() {
            // Names are looked up again with each of these links.
            let seeds = self.seeds.iter().map(|place| self.node(place));
            let all: Vec<_> = seeds.chain(known.iter().cloned()).collect();
            heard = ask(&all, self.settings.connect_deadline + PATIENCE).await;
            // A seed may have been cut off, and those it names know more.
            self.doubt.notify_one();
        }
        if heard.views.is_empty() {
            let why = heard.why.unwrap_or_else(|| "there is nobody to ask".to_owned());
            let fault = Fault(format!("no node of the cluster can be asked ({why})"));
            self.map.send_if_modified(|map| {
                map.failed(fault);
                false
            });
            return None;
        }
        let found = Consensus::of(heard.views);
        Some(self.map.send_if_modified(|map| {
            let changed = map.install(found, |place| self.link_to(place));
            map.take_stock(&self.resets);
            changed
        }))
    }

    /// Whom to ask: those with a connection first, in no order, and those without one behind.
    fn known(&self) -> Vec<Arc<Node>> {
        let map = self.map.borrow();
        let mut known: Vec<Arc<Node>> = map.nodes().cloned().collect();
        let new: Vec<Place> = map.unlinked().cloned().collect();
        drop(map);
        let random = RandomState::new();
        known.sort_by_cached_key(|node| (!node.link.is_connected(), random.hash_one(&node.place)));
        known.truncate(ASKED);
        // In a small Cluster this leads to a link to each replica. Whichever is promoted then is
        // reached at once.
        for place in new.iter().take(ASKED - known.len()) {
            self.map.send_if_modified(|map| {
                known.extend(map.stranger(place, || self.link_to(place)));
                false
            });
        }
        known
    }

    pub(super) fn link_to(&self, place: &Place) -> Link {
        Link::new(place.clone(), self.dialer.clone(), self.settings.clone())
    }

    /// The connections to `node` for what its replicas are to confirm; none if they are not asked.
    pub(super) fn pool_of(&self, node: &Node) -> Option<Pool> {
        let link = |settings| Link::new(node.place.clone(), self.dialer.clone(), settings);
        node.pool.get_or_init(|| Pool::new(&self.settings, link)).clone()
    }

    fn node(&self, place: &Place) -> Arc<Node> {
        Arc::new(Node::new(place, self.link_to(place), 0))
    }
}

/// After a doubt of so long without anything new. A fleet that asks all nodes twenty times a second while
/// one of them is down is a burden; so what a failover has changed is noticed late by no more than a
/// sixteenth of the time that it took.
fn gap_after(doubted: Duration) -> Duration {
    (doubted / 16).clamp(GAP, LONGEST_GAP)
}

#[derive(Default)]
struct Heard {
    views: Vec<View>,
    /// Why one of those who did not answer did not.
    why: Option<String>,
}

/// Asks all of them side by side. When more than half of those with a connection have answered, or
/// one if there was none, the rest has a moment left.
async fn ask(nodes: &[Arc<Node>], span: Duration) -> Heard {
    let (last, mut end) = (after(span), after(span + GRACE));
    let connected = nodes.iter().filter(|node| node.link.is_connected()).count();
    let mut asked = JoinSet::new();
    for node in nodes {
        asked.spawn(view_of(Arc::clone(node), last));
    }
    let mut heard = Heard::default();
    while let Ok(Some(answer)) = timeout_at(end, asked.join_next()).await {
        match answer {
            Ok(Ok(view)) => heard.views.push(view),
            Ok(Err(why)) => heard.why = Some(why),
            Err(_) => {}
        }
        if 2 * heard.views.len() > connected {
            end = end.min(after(GRACE));
        }
    }
    heard
}

async fn view_of(node: Arc<Node>, end: Instant) -> Result<View, String> {
    let cluster = |what: &str| -> Cmd {
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg(what);
        cmd
    };
    let (info, slots) = (cluster("INFO"), cluster("SLOTS"));
    let (info, slots) =
        tokio::join!(node.link.call_until(end, &info), node.link.call_until(end, &slots));
    let place = &node.place;
    let slots: Value = slots.map_err(|error| match error {
        LinkError::Down(fault) => fault.to_string(),
        error => format!("redis at {place}: {error}"),
    })?;
    let view = View::read(place, info.ok().as_ref(), &slots)
        .ok_or_else(|| format!("redis at {place} knows of no slot that anybody has"))?;
    node.serves.store(view.settled, Ordering::Relaxed);
    Ok(view)
}
