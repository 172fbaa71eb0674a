//! The end of the server: no new work, and none that has begun is dropped.

use std::time::Duration;

use tokio::sync::watch;

/// Tells when the server drains. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Drain(watch::Receiver<bool>);

/// Begins the drain.
#[derive(Debug)]
pub struct Drainer(watch::Sender<bool>);

/// A drain that has not begun, and what begins it.
pub fn channel() -> (Drainer, Drain) {
    let (sender, receiver) = watch::channel(false);
    (Drainer(sender), Drain(receiver))
}

impl Drainer {
    /// Begins it.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Completes when everybody who listened for it is gone.
    pub async fn finished(&self) {
        self.0.closed().await;
    }
}

impl Drain {
    /// Completes once it has begun; never if whoever could begin it is gone.
    pub async fn begun(&mut self) {
        if self.0.wait_for(|begun| *begun).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Completes a moment after it has begun, when all that had arrived before is known of.
    pub async fn noticed(&mut self) {
        self.begun().await;
        notice().await;
    }

    /// Has it begun?
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }
}

/// Longer than it takes the runtime to ask the system what has arrived.
const NOTICE: Duration = Duration::from_millis(5);

/// Waits until the runtime knows of what has arrived by now. A socket that it believes to be empty is not asked, and on a
/// busy machine may have had a request for a while.
pub async fn notice() {
    tokio::time::sleep(NOTICE).await;
}
