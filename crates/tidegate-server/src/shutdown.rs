//! Graceful shutdown: the signal shared by all tasks, and the wait for requests in flight.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{info, warn};

/// How long the drain waits for requests in flight: slightly longer than the longest `wait_ms`.
const DRAIN_DEADLINE: Duration = Duration::from_secs(65);

/// Receives the shutdown signal. Each clone delays the end of the drain until it is dropped.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<bool>);

/// Sends the shutdown signal.
#[derive(Debug)]
pub struct ShutdownTrigger(watch::Sender<bool>);

/// A trigger and its signal.
pub fn channel() -> (ShutdownTrigger, Shutdown) {
    let (sender, receiver) = watch::channel(false);
    (ShutdownTrigger(sender), Shutdown(receiver))
}

impl ShutdownTrigger {
    /// Ends the tasks that accept connections, then waits for the requests in flight.
    pub async fn drain(self, accepting: impl IntoIterator<Item = JoinHandle<()>>) {
        info!("draining: not accepting connections, finishing requests in flight");
        self.begin();
        for task in accepting {
            let _ = task.await;
        }
        match tokio::time::timeout(DRAIN_DEADLINE, self.finished()).await {
            Ok(()) => info!("drained"),
            Err(_) => warn!("drain timeout: aborting requests in flight"),
        }
    }

    /// Every [`Shutdown`] completes.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Completes when every [`Shutdown`] is dropped.
    pub async fn finished(&self) {
        self.0.closed().await;
    }
}

impl Shutdown {
    /// Completes once the drain has begun; never if the trigger is dropped before.
    pub async fn begun(&mut self) {
        if self.0.wait_for(|begun| *begun).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Completes after [`Shutdown::begun`] and [`poll_grace`].
    pub async fn noticed(&mut self) {
        self.begun().await;
        poll_grace().await;
    }

    /// Whether the drain has begun.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }
}

/// Longer than the runtime takes to poll the sockets.
const POLL_GRACE: Duration = Duration::from_millis(5);

/// Waits until the runtime has polled the sockets. It does not read a socket that it believes to be
/// empty, and on a busy machine that socket may have had a request for a while.
pub(crate) async fn poll_grace() {
    tokio::time::sleep(POLL_GRACE).await;
}
