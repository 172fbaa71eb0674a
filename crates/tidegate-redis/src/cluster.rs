//! The way of a command through a Cluster: to the primary that has its slot, and after the slot
//! when it moves.
//!
//! # Layout
//!
//! - `map`: who has which slot, and a link to each. `view`: what one node says about that, and what
//!   several together. `refresh`: keeps the map true.
//! - `redirect`: what an error of a node says about the way.

mod map;
mod redirect;
mod refresh;
mod view;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};

use crate::address::Place;
use crate::confirm::{Pool, Witness};
use crate::dial::Dialer;
use crate::link::{LinkError, Settings, after, jittered, on_runtime, race};
use crate::resets::{Life, Resets};
use crate::slot::Slot;
use map::{Map, Node};
use redirect::Turn;

/// The primaries of one Cluster. Clones share their connections, and dropping the last one closes
/// them. Replicas are asked who has which slot, and never for a decision.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Owner>);

/// Ends the refresher when the last [`Cluster`] goes. The refresher itself holds only the core.
struct Owner {
    core: Arc<Core>,
    refresher: Mutex<Option<AbortHandle>>,
}

struct Core {
    seeds: Vec<Place>,
    dialer: Dialer,
    settings: Settings,
    map: watch::Sender<Map>,
    /// Somebody has reason to believe that the map is wrong.
    doubt: Notify,
    /// A node has said that it is.
    moved: Notify,
    /// Kept by the Cluster itself: a server that was replaced matters only if it had slots.
    resets: Resets,
}

impl Cluster {
    /// How often a call follows `MOVED` and `ASK`. One is usual, two are bad luck; more are nodes
    /// that do not agree, for which the pauses in between leave some time.
    const HOPS: u32 = 8;

    /// Starts to look round if this is a Tokio runtime; otherwise the first call does.
    pub(crate) fn new(seeds: Vec<Place>, dialer: Dialer, mut settings: Settings) -> Self {
        let resets = settings.resets.take().unwrap_or_default();
        let map = watch::Sender::new(Map::default());
        let core = Arc::new(Core {
            seeds,
            dialer,
            settings,
            map,
            doubt: Notify::new(),
            moved: Notify::new(),
            resets,
        });
        let cluster = Self(Arc::new(Owner { core, refresher: Mutex::new(None) }));
        cluster.start();
        cluster
    }

    /// When a call that begins now must have its answer.
    pub(crate) fn deadline(&self) -> Instant {
        after(self.0.core.settings.deadline)
    }

    /// The answer to `cmd`, whose keys all lie in `slot`, from the primary that has it.
    ///
    /// Errors that say that nothing was done are followed or waited for until the deadline. What may
    /// have been done is never sent again.
    pub(crate) async fn call_until(
        &self,
        end: Instant,
        slot: Slot,
        cmd: &Cmd,
    ) -> Result<Value, LinkError> {
        self.walk(end, slot, cmd, Way::Shared).await.map(|(value, _)| value)
    }

    /// The same of a command that writes, and who can confirm what it wrote.
    pub(crate) async fn write_until(
        &self,
        end: Instant,
        slot: Slot,
        cmd: &Cmd,
    ) -> Result<(Value, Option<Witness>), LinkError> {
        self.walk(end, slot, cmd, Way::Confirmed).await
    }

    async fn walk(
        &self,
        end: Instant,
        slot: Slot,
        cmd: &Cmd,
        way: Way,
    ) -> Result<(Value, Option<Witness>), LinkError> {
        on_runtime()?;
        let mut patience = Patience::new(end);
        let mut importer: Option<Arc<Node>> = None;
        loop {
            let asking = importer.is_some();
            let (node, answer) = match importer.take() {
                Some(node) => {
                    let answer = match self.pool(&node, way) {
                        Some(pool) => pool.call_asking_until(end, cmd).await.map(witnessed),
                        None => node.link.call_asking_until(end, cmd).await.map(unwitnessed),
                    };
                    (node, answer)
                }
                None => {
                    let node = self.owner(end, slot).await?;
                    let answer = match self.pool(&node, way) {
                        Some(pool) => pool.call_until(end, cmd).await.map(witnessed),
                        None => node.link.call_until(end, cmd).await.map(unwitnessed),
                    };
                    (node, answer)
                }
            };
            let error = match answer {
                Ok(value) => {
                    node.serves.store(true, Ordering::Relaxed);
                    return Ok(value);
                }
                Err(LinkError::Reply(error)) => error,
                // It may have been done; or nothing was sent, but there is no time left either.
                Err(other) => {
                    self.doubt();
                    return Err(other);
                }
            };
            let turn = Turn::of(&error, slot, &node.place);
            match &turn {
                Turn::Moved(place) => {
                    self.learn(slot, place);
                    self.0.core.moved.notify_one();
                    self.doubt();
                }
                Turn::Ask(place) => importer = self.node_at(place),
                Turn::TryAgain => {}
                Turn::Unsettled { serves } => {
                    node.serves.store(*serves, Ordering::Relaxed);
                    self.doubt();
                }
                Turn::Final => return Err(LinkError::Reply(error)),
            }
            let goes_on = match turn {
                Turn::Moved(_) | Turn::Ask(_) => patience.hop().await,
                // It will be sent here again, for as long as the slot is on its way.
                Turn::TryAgain if asking => patience.take_back_hop().pause().await,
                _ => patience.pause().await,
            };
            if let Err(spent) = goes_on {
                return Err(LinkError::Reply(spent.explain(error)));
            }
        }
    }

    fn pool(&self, node: &Node, way: Way) -> Option<Pool> {
        match way {
            Way::Shared => None,
            Way::Confirmed => self.0.core.pool_of(node),
        }
    }

    /// How many replicas must have what was written before it counts.
    pub(crate) fn confirmed_by(&self) -> u32 {
        self.0.core.settings.confirmed_by
    }

    /// Waits for a connection to the primary of `slot`, on which one may write.
    pub(crate) async fn ready(&self, end: Instant, slot: Slot) -> Result<(), LinkError> {
        let node = self.owner(end, slot).await?;
        match self.pool(&node, Way::Confirmed) {
            Some(pool) => pool.ready(end).await,
            None => node.link.ready(end).await,
        }
    }

    /// More than half of the slots are served, as far as is known.
    ///
    /// Not all of them: whoever takes a process out of service when it is not up would turn the loss
    /// of one shard, which is the same for every process, into that of everything.
    pub(crate) fn is_up(&self) -> bool {
        self.0.core.map.borrow().served() > usize::from(Slot::COUNT / 2)
    }

    /// What one of the servers should be otherwise, if one should.
    pub(crate) fn warning(&self) -> Option<Arc<str>> {
        let unconfirmed = |node: &Arc<Node>| node.pool.get()?.as_ref()?.warning();
        let map = self.0.core.map.borrow();
        map.nodes().find_map(|node| node.link.warning().or_else(|| unconfirmed(node)))
    }

    /// Changes when `slot` has another primary, or that one another connection.
    pub(crate) fn generation(&self, slot: Slot) -> u64 {
        self.0.core.map.borrow().generation(slot)
    }

    /// Who the primary of `slot` is, if it tells.
    pub(crate) fn life(&self, slot: Slot) -> Option<Arc<Life>> {
        self.0.core.map.borrow().owner(slot).ok()?.link.life()
    }

    /// By which number the primary of `slot` is told apart from others. 0 if there is none.
    pub(crate) fn number(&self, slot: Slot) -> usize {
        self.0.core.map.borrow().owner(slot).map_or(0, |node| node.number)
    }

    /// The primary of `slot`, as soon as there is a connection to it.
    async fn owner(&self, end: Instant, slot: Slot) -> Result<Arc<Node>, LinkError> {
        let core = &self.0.core;
        if let Ok(node) = core.map.borrow().owner(slot)
            && node.link.is_connected()
        {
            return Ok(node);
        }
        let mut map = core.map.subscribe();
        loop {
            let owner = map.borrow_and_update().owner(slot);
            let connected = async {
                match &owner {
                    Ok(node) => node.link.connected().await,
                    Err(_) => std::future::pending().await,
                }
            };
            let changed = async {
                let _ = map.changed().await;
            };
            self.doubt();
            // Whoever waits keeps the refresher going.
            let slice = end.min(after(refresh::GAP));
            let _ = timeout_at(slice, race(connected, changed)).await;
            match owner {
                Ok(node) if node.link.is_connected() => return Ok(node),
                Ok(node) if Instant::now() >= end => {
                    return Err(LinkError::Down(node.link.fault()));
                }
                Err(fault) if Instant::now() >= end => return Err(LinkError::Down(fault)),
                _ => {}
            }
        }
    }

    /// From now on, `slot` is at `place`.
    fn learn(&self, slot: Slot, place: &Place) {
        let Some(node) = self.node_at(place) else { return };
        self.0.core.map.send_if_modified(|map| map.learn(slot, &node));
    }

    /// None if too many have been named that no view knows of.
    fn node_at(&self, place: &Place) -> Option<Arc<Node>> {
        let core = &self.0.core;
        if let Some(node) = core.map.borrow().node_at(place) {
            return Some(node);
        }
        let mut node = None;
        core.map.send_if_modified(|map| {
            node = map.stranger(place, || core.link_to(place));
            false
        });
        node
    }

    /// Has the map looked at again, soon.
    fn doubt(&self) {
        self.start();
        self.0.core.doubt.notify_one();
    }

    /// Starts the refresher, or another one if the runtime of the last has gone.
    fn start(&self) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut refresher = self.0.refresher.lock().unwrap_or_else(PoisonError::into_inner);
        if refresher.as_ref().is_none_or(AbortHandle::is_finished) {
            let core = Arc::clone(&self.0.core);
            *refresher = Some(runtime.spawn(async move { core.refresh().await }).abort_handle());
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let refresher = self.refresher.get_mut().unwrap_or_else(PoisonError::into_inner);
        refresher.iter().for_each(AbortHandle::abort);
    }
}

/// By which connections a command goes.
#[derive(Clone, Copy)]
enum Way {
    /// By the one that all share.
    Shared,
    /// By one on which replicas can be asked for what was written.
    Confirmed,
}

fn witnessed((value, witness): (Value, Witness)) -> (Value, Option<Witness>) {
    (value, Some(witness))
}

fn unwitnessed(value: Value) -> (Value, Option<Witness>) {
    (value, None)
}

/// What one call has left of its time and its redirects.
struct Patience {
    end: Instant,
    /// What an attempt needs: one that is sent later would most likely time out, and nobody would
    /// know whether it was done.
    least: Duration,
    pause: Duration,
    hops: u32,
}

/// Why a call does not go on.
enum Spent {
    Time,
    Hops,
}

impl Patience {
    const SHORTEST: Duration = Duration::from_millis(2);
    const LONGEST: Duration = Duration::from_millis(32);
    const LEAST: Duration = Duration::from_millis(5);

    fn new(end: Instant) -> Self {
        let span = end.saturating_duration_since(Instant::now());
        Self { end, least: Self::LEAST.min(span / 5), pause: Self::SHORTEST, hops: 0 }
    }

    /// Follows a redirect. From the third on there are pauses: a slot that has just changed hands is
    /// known to one of the two a moment before the other.
    async fn hop(&mut self) -> Result<(), Spent> {
        self.hops += 1;
        match self.hops {
            0..=2 if Instant::now() < self.end => Ok(()),
            0..=2 => Err(Spent::Time),
            hops if hops > Cluster::HOPS => Err(Spent::Hops),
            _ => self.pause().await,
        }
    }

    fn take_back_hop(&mut self) -> &mut Self {
        self.hops = self.hops.saturating_sub(1);
        self
    }

    /// Twice as long each time, but it leaves some of the time for another attempt.
    async fn pause(&mut self) -> Result<(), Spent> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left <= 2 * self.least {
            return Err(Spent::Time);
        }
        sleep(jittered(self.pause).min(left / 2)).await;
        self.pause = Self::LONGEST.min(2 * self.pause);
        Ok(())
    }
}

impl Spent {
    /// The last answer, with what it means that it was the last.
    fn explain(self, error: Arc<RedisError>) -> Arc<RedisError> {
        match self {
            // Whatever it says has not changed until the deadline.
            Self::Time => error,
            Self::Hops => {
                let what = "sent from node to node without end; see whether CLUSTER SLOTS says the \
                            same on all of them";
                let detail = error.detail().unwrap_or_default().to_owned();
                Arc::new((error.kind(), what, detail).into())
            }
        }
    }
}

#[cfg(test)]
mod tests;
