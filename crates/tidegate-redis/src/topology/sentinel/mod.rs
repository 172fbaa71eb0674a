//! Finds the primary through Sentinel. Imports: deployment.
//!
//! Each sentinel has its own task, so that none waits for another. The task polls it every second
//! and subscribes to its events. `messages` parses both, and `quorum` finds the majority.
//!
//! Sentinels report a new primary late. The leader of a failover polls the promoted replica once a
//! second, and names it only after that. But it publishes its choice earlier. So the watcher polls
//! the chosen replica itself, and switches as soon as that reports to be a primary.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{PushInfo, RedisResult};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::connection::dial::{Dialer, RawConnection};
use crate::connection::endpoint::Endpoint;
use crate::connection::error::ConnectFailure;
use crate::connection::role::is_primary;
use crate::connection::supervisor::{PrimaryLocation, PrimaryLocator};
use crate::connection::timing::{jittered, race};
use crate::topology::deployment::SentinelConfig;
use messages::FailoverEvent;
use quorum::{SentinelReport, SentinelVotes};

/// How often a sentinel is polled when nothing happens.
const PERIOD: Duration = Duration::from_secs(1);
/// Shortest interval between polls, while the primary is suspected to have moved.
const MIN_PERIOD: Duration = Duration::from_millis(50);
/// Shortest and longest pause between attempts to connect to a sentinel.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Interval between polls of a chosen replica.
const PROMOTION_POLL: Duration = Duration::from_millis(25);
/// How long a chosen replica is polled, and how long reports that name the previous primary are
/// ignored.
const FAILOVER: Duration = Duration::from_secs(10);
/// How long reports that name a server are ignored after it turned out to be a replica.
const REFUTED: Duration = Duration::from_secs(1);

/// Keeps the location of the primary up to date while it runs. Clones share it.
#[derive(Clone)]
pub(crate) struct SentinelWatcher(Arc<WatcherInner>);

struct WatcherInner {
    sentinels: SentinelConfig,
    /// Connects to the monitored servers.
    dialer: Dialer,
    /// For connecting, and for every reply.
    deadline: Duration,
    votes: Mutex<SentinelVotes>,
    location: watch::Sender<PrimaryLocation>,
    /// Changes when the primary may have moved.
    suspected: watch::Sender<()>,
    /// The replica that is to become the primary.
    chosen: watch::Sender<Option<Endpoint>>,
}

impl SentinelWatcher {
    pub(crate) fn new(sentinels: SentinelConfig, dialer: Dialer, deadline: Duration) -> Self {
        let text = format!("no sentinel has named the primary of {:?} yet", sentinels.master);
        Self(Arc::new(WatcherInner {
            votes: Mutex::new(SentinelVotes::new(sentinels.endpoints.len())),
            location: watch::Sender::new(Err(ConnectFailure(text + "; retry").into())),
            suspected: watch::Sender::new(()),
            chosen: watch::Sender::new(None),
            sentinels,
            dialer,
            deadline,
        }))
    }

    /// Never completes.
    async fn watch(&self) {
        loop {
            let mut tasks = JoinSet::new();
            for index in 0..self.0.sentinels.endpoints.len() {
                let inner = Arc::clone(&self.0);
                tasks.spawn(async move { inner.run_sentinel(index).await });
            }
            let inner = Arc::clone(&self.0);
            tasks.spawn(async move { inner.follow_promotion().await });
            // A task ends only by a panic.
            tasks.join_next().await;
            drop(tasks);
            sleep(PAUSES.1).await;
        }
    }
}

impl PrimaryLocator for SentinelWatcher {
    fn master_name(&self) -> &str {
        &self.0.sentinels.master
    }

    fn subscribe(&self) -> watch::Receiver<PrimaryLocation> {
        self.0.location.subscribe()
    }

    fn suspect(&self) {
        self.0.suspected.send_replace(());
    }

    fn refute(&self, endpoint: &Endpoint) {
        self.0.votes().ignore_until(endpoint.clone(), Instant::now() + REFUTED);
    }

    fn run(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.watch())
    }
}

impl WatcherInner {
    /// Connects to one of the sentinels and polls it, again and again.
    async fn run_sentinel(self: Arc<Self>, index: usize) {
        let (min, max) = PAUSES;
        let mut pause = min;
        loop {
            let why = match timeout(self.deadline, self.connect(index)).await {
                Ok(Ok(connection)) => {
                    let made = Instant::now();
                    let why = self.poll_sentinel(index, connection).await;
                    if made.elapsed() > max {
                        pause = min;
                    }
                    why
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => self.timeout_text(),
            };
            self.record_report(index, SentinelReport::NoReply(why));
            sleep(jittered(pause)).await;
            pause = max.min(pause.saturating_mul(2));
        }
    }

    /// A connection to a sentinel with a subscription to its events.
    async fn connect(self: &Arc<Self>, index: usize) -> RedisResult<RawConnection> {
        let inner = Arc::clone(self);
        let on_push = Arc::new(move |message| inner.on_message(message));
        let dialer = self.sentinels.dialer.clone().with_push_handler(on_push);
        let mut connection = dialer.dial(&self.sentinels.endpoints[index]).await?;
        // Without the permission to subscribe, polling finds the same, only later. One by one: a
        // second confirmation would be taken for the reply to the next command.
        for channel in [FailoverEvent::MOVED, FailoverEvent::CHOSEN] {
            let _ = connection.subscribe(channel).await;
        }
        Ok(connection)
    }

    /// Polls until there is no reply, and returns the reason.
    async fn poll_sentinel(&self, index: usize, mut connection: RawConnection) -> String {
        let mut suspected = self.suspected.subscribe();
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("get-master-addr-by-name").arg(&self.sentinels.master);
        loop {
            let reply = timeout(self.deadline, connection.send_packed_command(&cmd)).await;
            match reply.map(|reply| reply.and_then(messages::report)) {
                Ok(Ok(report)) => self.record_report(index, report),
                Ok(Err(error)) => return error.to_string(),
                Err(_) => return self.timeout_text(),
            }
            sleep(MIN_PERIOD).await;
            let _ = timeout(jittered(PERIOD), suspected.changed()).await;
        }
    }

    fn timeout_text(&self) -> String {
        format!("no reply within {:?}", self.deadline)
    }

    /// Counts the report of a sentinel, and publishes the majority.
    fn record_report(&self, index: usize, report: SentinelReport) {
        let now = Instant::now();
        let mut votes = self.votes();
        votes.record(index, report, now);
        let present = self.location.borrow().clone().ok();
        match votes.majority(present.as_ref(), now) {
            Some(endpoint) => self.publish_primary(endpoint.clone()),
            None if present.is_none() => {
                let failure = votes.failure(&self.sentinels);
                let _ = self.location.send_replace(Err(failure.into()));
            }
            // Missing reports do not change a known location.
            None => {}
        }
    }

    /// Handles an event that a sentinel publishes.
    fn on_message(&self, message: PushInfo) {
        match messages::event(&message, &self.sentinels.master) {
            Some(FailoverEvent::Moved { from, to }) => {
                // The leader of a failover publishes its end last, possibly after the next one.
                let present = self.location.borrow().clone().ok();
                let is_late = self.votes().is_ignored(&to, Instant::now());
                if !is_late || present == Some(from) {
                    self.set_primary(to);
                }
            }
            Some(FailoverEvent::Chosen(endpoint)) => {
                drop(self.chosen.send_replace(Some(endpoint)));
            }
            None => {}
        }
    }

    /// Polls each chosen replica until it is promoted.
    async fn follow_promotion(&self) {
        let mut chosen = self.chosen.subscribe();
        loop {
            let endpoint = chosen.borrow_and_update().clone();
            let another = async {
                let _ = chosen.changed().await;
            };
            match endpoint {
                Some(endpoint) => race(another, self.await_promotion(&endpoint)).await,
                None => another.await,
            }
        }
    }

    /// Switches to the server once it is a primary. Gives up after [`FAILOVER`]: a failover may be
    /// aborted.
    async fn await_promotion(&self, endpoint: &Endpoint) {
        let promoted = async {
            loop {
                let dialed = timeout(self.deadline, self.dialer.dial(endpoint)).await;
                if let Ok(Ok(connection)) = dialed
                    && self.is_promoted(&connection).await
                {
                    return;
                }
                // A promotion ends all connections.
                sleep(jittered(PROMOTION_POLL)).await;
            }
        };
        if timeout(FAILOVER, promoted).await.is_ok() {
            self.set_primary(endpoint.clone());
        }
        self.chosen.send_if_modified(|chosen| {
            let is_same = chosen.as_ref() == Some(endpoint);
            if is_same {
                *chosen = None;
            }
            is_same
        });
    }

    /// True once the server is a primary; false if the connection ends before.
    async fn is_promoted(&self, connection: &RawConnection) -> bool {
        loop {
            match timeout(self.deadline, is_primary(connection.clone())).await {
                Ok(Ok(true)) => return true,
                Ok(Ok(false)) => sleep(jittered(PROMOTION_POLL)).await,
                Ok(Err(_)) | Err(_) => return false,
            }
        }
    }

    /// A failover has moved the primary to `endpoint`, whatever other sentinels still report.
    fn set_primary(&self, endpoint: Endpoint) {
        let mut votes = self.votes();
        let present = self.location.borrow().clone().ok();
        if let Some(present) = present.filter(|present| *present != endpoint) {
            votes.ignore_until(present, Instant::now() + FAILOVER);
        }
        self.publish_primary(endpoint);
    }

    fn publish_primary(&self, endpoint: Endpoint) {
        self.location.send_if_modified(|location| {
            let moves = location.as_ref().ok() != Some(&endpoint);
            if moves {
                *location = Ok(endpoint);
            }
            moves
        });
    }

    fn votes(&self) -> MutexGuard<'_, SentinelVotes> {
        self.votes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) mod messages;
pub(crate) mod quorum;

#[cfg(test)]
mod tests;
