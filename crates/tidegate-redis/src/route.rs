//! The way of a command to the server that has its key.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{Instant, sleep};

use crate::address::{Address, Target};
use crate::cluster::Cluster;
use crate::link::{Aim, Link, LinkError, Settings};
use crate::sentinel::Watcher;
use crate::slot::Slot;

/// However the servers are arranged. Clones share their connections.
#[derive(Clone)]
pub(crate) enum Route {
    /// One server has everything.
    One(Link),
    /// The primary that sentinels name has everything.
    Primary(Link),
    /// Each slot has a server.
    Cluster(Cluster),
}

impl Route {
    pub(crate) fn new(address: Address, settings: Settings) -> Self {
        match address.target {
            Target::One(place) => Self::One(Link::new(place, address.dialer, settings)),
            Target::Sentinel(sentinels) => {
                let span = settings.connect_deadline;
                let watcher = Watcher::new(sentinels, address.dialer.clone(), span);
                // A replica may be promoted at any moment, and then everybody waits for us.
                let (&min, &max) = (settings.backoff.start(), settings.backoff.end());
                let settings = Settings { backoff: min..=max.min(LONGEST_PAUSE), ..settings };
                Self::Primary(Link::new(Aim::Primary(watcher), address.dialer, settings))
            }
            Target::Cluster(seeds) => Self::Cluster(Cluster::new(seeds, address.dialer, settings)),
        }
    }

    /// When a call that begins now must have its answer.
    pub(crate) fn deadline(&self) -> Instant {
        match self {
            Self::One(link) | Self::Primary(link) => link.deadline(),
            Self::Cluster(cluster) => cluster.deadline(),
        }
    }

    /// The answer to `cmd`, whose keys all lie in `slot`.
    pub(crate) async fn call_until(
        &self,
        end: Instant,
        slot: Slot,
        cmd: &Cmd,
    ) -> Result<Value, LinkError> {
        match self {
            Self::One(link) => link.call_until(end, cmd).await,
            Self::Primary(link) => call_primary(link, end, cmd).await,
            Self::Cluster(cluster) => cluster.call_until(end, slot, cmd).await,
        }
    }

    /// Waits for a connection to the server that has `slot`.
    pub(crate) async fn ready(&self, end: Instant, slot: Slot) -> Result<(), LinkError> {
        match self {
            Self::One(link) | Self::Primary(link) => link.ready(end).await,
            Self::Cluster(cluster) => cluster.ready(end, slot).await,
        }
    }

    /// May keys of several slots come in one command?
    pub(crate) fn spans_slots(&self) -> bool {
        match self {
            Self::One(_) | Self::Primary(_) => true,
            Self::Cluster(_) => false,
        }
    }

    /// Somebody serves, as far as is known.
    pub(crate) fn is_up(&self) -> bool {
        match self {
            Self::One(link) | Self::Primary(link) => link.is_up(),
            Self::Cluster(cluster) => cluster.is_up(),
        }
    }

    /// What a server should be otherwise, if one should.
    pub(crate) fn warning(&self) -> Option<Arc<str>> {
        match self {
            Self::One(link) | Self::Primary(link) => link.warning(),
            Self::Cluster(cluster) => cluster.warning(),
        }
    }

    /// Changes when the server that has `slot` may be another, or may have forgotten what it knew.
    pub(crate) fn generation(&self, slot: Slot) -> u64 {
        match self {
            Self::One(link) | Self::Primary(link) => link.generation(),
            Self::Cluster(cluster) => cluster.generation(slot),
        }
    }
}

/// Between attempts to reach a primary.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Asks again while a failover is under way. Only after an answer that says that nothing was done:
/// a server gives these before the command begins, or at the first write of a script, and whatever
/// a script of ours could stumble over comes before that.
async fn call_primary(link: &Link, end: Instant, cmd: &Cmd) -> Result<Value, LinkError> {
    const PAUSE: Duration = Duration::from_millis(5);
    const CODES: [&str; 3] = ["LOADING", "READONLY", "MASTERDOWN"];
    loop {
        let answer = link.call_until(end, cmd).await;
        match &answer {
            // As long as there is time for another answer: one that does not come leaves a doubt.
            Err(LinkError::Reply(error))
                if error.code().is_some_and(|code| CODES.contains(&code))
                    && Instant::now() + 3 * PAUSE <= end =>
            {
                sleep(PAUSE).await;
            }
            _ => return answer,
        }
    }
}
