//! The way of a command to the server that has its key.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{Instant, sleep};

use crate::address::{Address, Target};
use crate::classify::Meaning;
use crate::cluster::Cluster;
use crate::confirm::{Pool, Witness};
use crate::link::{Aim, Link, LinkError, Settings};
use crate::resets::Life;
use crate::sentinel::Watcher;
use crate::slot::Slot;

/// However the servers are arranged. Clones share their connections.
#[derive(Clone)]
pub(crate) enum Route {
    /// One server has everything. What its replicas are to confirm goes over the pool.
    One(Link, Option<Pool>),
    /// The primary that sentinels name has everything.
    Primary(Link, Option<Pool>),
    /// Each slot has a server.
    Cluster(Cluster),
}

impl Route {
    pub(crate) fn new(address: Address, settings: Settings) -> Self {
        match address.target {
            Target::One(place) => {
                let link = |settings| Link::new(place.clone(), address.dialer.clone(), settings);
                let pool = Pool::new(&settings, link);
                Self::One(link(settings), pool)
            }
            Target::Sentinel(sentinels) => {
                let span = settings.connect_deadline;
                let watcher = Watcher::new(sentinels, address.dialer.clone(), span);
                // A replica may be promoted at any moment, and then everybody waits for us.
                let (&min, &max) = (settings.backoff.start(), settings.backoff.end());
                let settings = Settings { backoff: min..=max.min(LONGEST_PAUSE), ..settings };
                let link = |aim, settings| Link::new(aim, address.dialer.clone(), settings);
                let pool =
                    Pool::new(&settings, |settings| link(Aim::Beside(watcher.clone()), settings));
                Self::Primary(link(Aim::Primary(watcher), settings), pool)
            }
            Target::Cluster(seeds) => Self::Cluster(Cluster::new(seeds, address.dialer, settings)),
        }
    }

    /// When a call that begins now must have its answer.
    pub(crate) fn deadline(&self) -> Instant {
        match self {
            Self::One(link, _) | Self::Primary(link, _) => link.deadline(),
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
            Self::One(link, _) => link.call_until(end, cmd).await,
            Self::Primary(link, _) => loop {
                let answer = link.call_until(end, cmd).await;
                if !fails_over(&answer, end).await {
                    return answer;
                }
            },
            Self::Cluster(cluster) => cluster.call_until(end, slot, cmd).await,
        }
    }

    /// The same of a command that writes, and who can confirm what it wrote; nobody if replicas are not
    /// asked.
    pub(crate) async fn write_until(
        &self,
        end: Instant,
        slot: Slot,
        cmd: &Cmd,
    ) -> Result<(Value, Option<Witness>), LinkError> {
        let answer = match self {
            Self::One(_, Some(pool)) => pool.call_until(end, cmd).await,
            Self::Primary(_, Some(pool)) => loop {
                let answer = pool.call_until(end, cmd).await;
                if !fails_over(&answer, end).await {
                    break answer;
                }
            },
            Self::Cluster(cluster) if cluster.confirmed_by() > 0 => {
                return cluster.write_until(end, slot, cmd).await;
            }
            _ => return Ok((self.call_until(end, slot, cmd).await?, None)),
        };
        answer.map(|(value, witness)| (value, Some(witness)))
    }

    /// How many replicas must have what was written before it counts.
    pub(crate) fn confirmed_by(&self) -> u32 {
        match self {
            Self::One(_, pool) | Self::Primary(_, pool) => pool.as_ref().map_or(0, Pool::replicas),
            Self::Cluster(cluster) => cluster.confirmed_by(),
        }
    }

    /// Waits for a connection to the server that has `slot`, on which one may write.
    pub(crate) async fn ready(&self, end: Instant, slot: Slot) -> Result<(), LinkError> {
        match self {
            Self::One(_, Some(pool)) | Self::Primary(_, Some(pool)) => pool.ready(end).await,
            Self::One(link, _) | Self::Primary(link, _) => link.ready(end).await,
            Self::Cluster(cluster) => cluster.ready(end, slot).await,
        }
    }

    /// May keys of several slots come in one command?
    pub(crate) fn spans_slots(&self) -> bool {
        match self {
            Self::One(..) | Self::Primary(..) => true,
            Self::Cluster(_) => false,
        }
    }

    /// Somebody serves, as far as is known.
    pub(crate) fn is_up(&self) -> bool {
        match self {
            Self::One(link, _) | Self::Primary(link, _) => link.is_up(),
            Self::Cluster(cluster) => cluster.is_up(),
        }
    }

    /// What a server should be otherwise, if one should.
    pub(crate) fn warning(&self) -> Option<Arc<str>> {
        match self {
            Self::One(link, pool) | Self::Primary(link, pool) => {
                link.warning().or_else(|| pool.as_ref()?.warning())
            }
            Self::Cluster(cluster) => cluster.warning(),
        }
    }

    /// The number of the server that has `slot`, by which it is told apart from others.
    pub(crate) fn number(&self, slot: Slot) -> usize {
        match self {
            Self::One(..) | Self::Primary(..) => 0,
            Self::Cluster(cluster) => cluster.number(slot),
        }
    }

    /// Who the server is that has `slot`, if it tells.
    pub(crate) fn life(&self, slot: Slot) -> Option<Arc<Life>> {
        match self {
            Self::One(link, _) | Self::Primary(link, _) => link.life(),
            Self::Cluster(cluster) => cluster.life(slot),
        }
    }

    /// Changes when the server that has `slot` may be another, or may have forgotten what it knew.
    pub(crate) fn generation(&self, slot: Slot) -> u64 {
        match self {
            Self::One(link, _) | Self::Primary(link, _) => link.generation(),
            Self::Cluster(cluster) => cluster.generation(slot),
        }
    }
}

/// Between attempts to reach a primary.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Is a failover under way? If so, pauses, and one may ask again. Only after an answer that says that
/// nothing was done: a server gives these before the command begins, or at the first write of a script,
/// and whatever a script of ours could stumble over comes before that.
async fn fails_over<T>(answer: &Result<T, LinkError>, end: Instant) -> bool {
    const PAUSE: Duration = Duration::from_millis(5);
    let Err(LinkError::Reply(error)) = answer else { return false };
    // As long as there is time for another answer: one that does not come leaves a doubt.
    let goes_on = Meaning::of(error).passes() && Instant::now() + 3 * PAUSE <= end;
    if goes_on {
        sleep(PAUSE).await;
    }
    goes_on
}
