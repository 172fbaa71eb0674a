//! Long computations for one request: one at a time, on a thread for blocking work.

use std::time::Duration;

use http::StatusCode;
use tokio::sync::Semaphore;

use super::problem::HttpProblem;

/// Time that a request waits for the one before it.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs `work` alone under `permits`. `what` names it in errors.
pub(crate) async fn run_blocking<T: Send + 'static>(
    permits: &'static Semaphore,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, HttpProblem> {
    let unavailable = |detail| HttpProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail);
    let permit = tokio::time::timeout(QUEUE_TIMEOUT, permits.acquire()).await;
    let permit = permit.ok().and_then(Result::ok);
    let permit =
        permit.ok_or_else(|| unavailable(format!("another {what} is running; retry later")))?;
    // The task holds the permit: a caller that disconnects does not start a second computation.
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    done.await.map_err(|_| unavailable(format!("the {what} failed")))
}
