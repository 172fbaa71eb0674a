//! The end of the server: no new work, and none that has begun is dropped.

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

    /// Has it begun?
    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }
}
