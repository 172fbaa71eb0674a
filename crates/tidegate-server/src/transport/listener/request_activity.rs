//! Requests in flight on one connection, for its idle and response timeouts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hyper::body::Body;

use super::guarded_body::GuardedBody;

/// Requests in flight on one connection.
///
/// The monitor of the connection calls [`RequestActivity::tick`] at intervals. A response that has
/// been in sending for more than one whole interval is stuck: an HTTP/2 client can block single
/// responses, each of which stays in memory, while the connection as a whole is not stalled.
#[derive(Debug, Default)]
pub(crate) struct RequestActivity {
    begun: AtomicU64,
    in_flight: AtomicUsize,
    /// Requests in flight whose response has no timeout.
    unbounded: AtomicUsize,
    ticks: AtomicUsize,
    /// Responses in sending, by whether they began at an even or an odd tick.
    sending: [AtomicUsize; 2],
    /// The client does not read what is written.
    stalled: AtomicBool,
}

impl RequestActivity {
    /// Number of requests since the start of the connection.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    /// No request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0
    }

    /// A request with a bounded response is in flight. Streams do not delay a shutdown.
    pub(crate) fn is_awaited(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) > self.unbounded.load(Ordering::Relaxed)
    }

    /// The client does not read what is written.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }

    /// A write is pending.
    pub(crate) fn note_stall(&self) {
        self.stalled.store(true, Ordering::Relaxed);
    }

    /// Everything was written.
    pub(crate) fn note_flush(&self) {
        self.stalled.store(false, Ordering::Relaxed);
    }

    pub(crate) fn begin(self: &Arc<Self>) -> InFlightRequest {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightRequest {
            activity: self.clone(),
            sending_since: None,
            timeout: ResponseTimeout::Bounded,
        }
    }

    /// Ends an interval, and returns whether a response is stuck.
    pub(crate) fn tick(&self) -> bool {
        // One task calls this. A response that begins meanwhile belongs to the tick before.
        let next = self.ticks.load(Ordering::Relaxed) + 1;
        let stuck = self.sending[next % 2].load(Ordering::Relaxed) > 0;
        self.ticks.store(next, Ordering::Relaxed);
        stuck
    }
}

/// Timeout of a response; an extension of the response.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum ResponseTimeout {
    /// The client has to read the response in time.
    #[default]
    Bounded,
    /// A stream without a timeout. Its handler bounds the number of such streams.
    Unbounded,
}

/// A request in flight; ends on drop.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    activity: Arc<RequestActivity>,
    /// Parity of the tick at which sending began.
    sending_since: Option<usize>,
    timeout: ResponseTimeout,
}

impl InFlightRequest {
    /// The request ends when the body is sent or dropped.
    pub(crate) fn guard_body<B: Body>(
        mut self,
        body: B,
        timeout: ResponseTimeout,
    ) -> GuardedBody<B, Self> {
        self.timeout = timeout;
        match timeout {
            ResponseTimeout::Unbounded => {
                self.activity.unbounded.fetch_add(1, Ordering::Relaxed);
            }
            ResponseTimeout::Bounded if body.is_end_stream() => {}
            ResponseTimeout::Bounded => {
                let parity = self.activity.ticks.load(Ordering::Relaxed) % 2;
                self.activity.sending[parity].fetch_add(1, Ordering::Relaxed);
                self.sending_since = Some(parity);
            }
        }
        GuardedBody::new(body, self)
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        if let Some(parity) = self.sending_since {
            self.activity.sending[parity].fetch_sub(1, Ordering::Relaxed);
        }
        if self.timeout == ResponseTimeout::Unbounded {
            self.activity.unbounded.fetch_sub(1, Ordering::Relaxed);
        }
        self.activity.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{Empty, Full};

    use super::*;

    #[test]
    fn an_unread_response_is_stuck_at_the_second_tick() {
        let activity = Arc::new(RequestActivity::default());
        assert!(activity.is_idle());
        let first = activity
            .begin()
            .guard_body(Full::new(Bytes::from_static(b"text")), ResponseTimeout::Bounded);
        assert!(!activity.is_idle() && activity.begun() == 1);
        assert!(!activity.tick());
        let second = activity
            .begin()
            .guard_body(Full::new(Bytes::from_static(b"text")), ResponseTimeout::Bounded);
        assert!(activity.tick(), "the first");
        drop(first);
        assert!(activity.tick(), "the second now, too");
        drop(second);
        assert!(!activity.tick() && activity.is_idle());
    }

    #[test]
    fn a_request_without_a_response_is_not_stuck() {
        let activity = Arc::new(RequestActivity::default());
        let request = activity.begin();
        assert!((0..10).all(|_| !activity.tick()) && !activity.is_idle());
        let empty = request.guard_body(Empty::<Bytes>::new(), ResponseTimeout::Bounded);
        assert!((0..10).all(|_| !activity.tick()));
        drop(empty);
        assert!(activity.is_idle());
    }

    #[test]
    fn an_unbounded_stream_is_neither_stuck_nor_awaited() {
        let activity = Arc::new(RequestActivity::default());
        let text = || Full::new(Bytes::from_static(b"text"));
        let stream = activity.begin().guard_body(text(), ResponseTimeout::Unbounded);
        assert!((0..10).all(|_| !activity.tick()));
        assert!(!activity.is_idle() && !activity.is_awaited());
        let request = activity.begin();
        assert!(activity.is_awaited());
        let response = request.guard_body(text(), ResponseTimeout::Bounded);
        assert!(activity.is_awaited());
        drop(stream);
        assert!(activity.is_awaited());
        drop(response);
        assert!(activity.is_idle() && !activity.is_awaited());
    }
}
