//! Timeouts of an HTTP connection: idle connections and unread responses.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use tokio::time::{Instant, sleep};
use tower::BoxError;

use super::request_activity::RequestActivity;
use super::timed_stream::HttpVersion;
use super::timeouts::Timeouts;
use crate::shutdown::Shutdown;

/// Number of checks within the idle timeout.
const IDLE_CHECKS: u32 = 10;
/// Number of checks after which a connection without any request is closed.
const IDLE_CHECKS_FIRST: u32 = 2;

/// Ends a connection that is idle, or whose client does not read its responses.
pub(super) struct ConnectionMonitor {
    pub(super) activity: Arc<RequestActivity>,
    pub(super) deadlines: Timeouts,
    pub(super) version: HttpVersion,
    pub(super) drain: Shutdown,
}

impl ConnectionMonitor {
    /// Polls the connection until it ends or times out. Calls `shut` for a graceful end when the
    /// connection is idle or the server drains.
    pub(super) async fn until_done<C: Future<Output = Result<(), hyper::Error>>>(
        self,
        connection: C,
        shut: impl Fn(Pin<&mut C>),
    ) -> Result<(), BoxError> {
        let mut connection = pin!(connection);
        let interval = self.deadlines.idle / IDLE_CHECKS;
        let mut next = pin!(sleep(interval));
        let mut drain = self.drain.clone();
        let mut drained = pin!(drain.noticed());
        let mut stall = None;
        let (mut shutting, mut begun, mut idle_checks) = (false, 0, 0);
        loop {
            tokio::select! {
                biased;
                done = connection.as_mut() => return Ok(done?),
                () = drained.as_mut(), if !shutting => idle_checks = IDLE_CHECKS,
                // Polled whenever the connection was.
                () = poll_fn(|context| {
                    if !self.activity.is_stalled() {
                        stall = None;
                        return Poll::Pending;
                    }
                    let new = || Box::pin(sleep(self.deadlines.response));
                    stall.get_or_insert_with(new).as_mut().poll(context)
                }) => return Err("responses not read in time".into()),
                () = next.as_mut() => {
                    if self.activity.tick() {
                        return Err("response not read in time".into());
                    }
                    let is_idle = self.activity.is_idle() && self.activity.begun() == begun;
                    idle_checks = if is_idle { idle_checks + 1 } else { 0 };
                    begun = self.activity.begun();
                    if shutting && !self.activity.is_awaited() {
                        return Ok(());
                    }
                }
            }
            let max = if begun == 0 { IDLE_CHECKS_FIRST } else { IDLE_CHECKS };
            if !shutting && idle_checks >= max {
                if self.version == HttpVersion::Http1 && !self.drain.has_begun() {
                    return Ok(());
                }
                shutting = true;
                shut(connection.as_mut());
            }
            // A client that does not close after a graceful end gets less time.
            let wait = if shutting { interval.min(self.deadlines.request) } else { interval };
            next.as_mut().reset(Instant::now() + wait);
        }
    }
}
