//! Streams, messages and callers of one limit, on a clock of the test.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::{Clock, Key, ManualClock, Micros, Wait};
use tidegate_config::envoy::ShareLimit;

use super::registry::{BucketMessage, LimitKey, QuotaShares, StreamId};
use crate::observe::metrics::Metrics;
use crate::shares::allocator::Message;
use crate::transport::envoy::proto::BucketId;

struct QuotaFixture {
    clock: ManualClock,
    shares: QuotaShares,
    found: (LimitKey, ShareLimit),
}

impl QuotaFixture {
    /// A server that has just started, with a limit of 10 a second and a burst of 20.
    fn start() -> Self {
        let clock = ManualClock::default();
        let shares = QuotaShares::new(Arc::new(clock.clone()), Arc::new(Metrics::default()));
        let limit = ShareLimit::of_rate(20, 10, Micros::from_secs(1)).unwrap();
        Self { clock, shares, found: (LimitKey::new("rule", Key::from("key")), limit) }
    }

    fn pass(&self, seconds: u64) {
        for _ in 0..seconds {
            self.clock.advance(Duration::from_secs(1));
            self.shares.tick();
        }
    }

    fn messages(&self, stream: StreamId) -> Vec<BucketMessage> {
        match self.shares.poll_messages(stream, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(messages) => messages,
            Poll::Pending => Vec::new(),
        }
    }

    /// Bursts that were assigned; 0 for a message to deny.
    fn bursts(&self, stream: StreamId) -> Vec<u64> {
        let burst = |(_, message): BucketMessage| match message {
            Message::Assign(assignment) => assignment.share.burst,
            Message::DenyAll => 0,
        };
        self.messages(stream).into_iter().map(burst).collect()
    }

    fn takes(&self, tokens: u64) -> bool {
        self.shares.take(&self.found.0, self.found.1, tokens).allowed
    }
}

#[test]
fn a_server_that_starts_lends_nothing_until_earlier_shares_have_ended() {
    let server = QuotaFixture::start();
    let stream = server.shares.connect();
    let holder = server.shares.join(stream, server.found.clone(), BucketId::default()).unwrap();
    assert!(!server.takes(1));
    server.pass(9);
    assert!(server.shares.report(holder, &server.found, 1));
    server.pass(1);
    assert_eq!(server.bursts(stream), []);
    assert!(!server.takes(1), "it starts empty");
    let denied = server.shares.take(&server.found.0, server.found.1, 1);
    assert!(matches!(denied.retry_after, Wait::For(wait) if wait <= Micros::from_millis(100)));
    server.pass(1);
    assert!(server.bursts(stream).iter().sum::<u64>() > 0);
}

#[test]
fn holders_and_callers_of_the_central_bucket_share_one_limit() {
    let server = QuotaFixture::start();
    server.pass(60);
    assert!(server.takes(12));
    let stream = server.shares.connect();
    server.shares.join(stream, server.found.clone(), BucketId::default()).unwrap();
    assert_eq!(server.bursts(stream), [8], "what is left of 20");
    assert!(!server.takes(1));
    // The share ends without a report, and its tokens with it.
    server.shares.disconnect(stream, std::iter::empty());
    server.pass(12);
    assert!(server.takes(1));
}

#[test]
fn a_message_that_is_not_written_in_time_is_dropped() {
    let server = QuotaFixture::start();
    server.pass(60);
    let stream = server.shares.connect();
    let holder = server.shares.join(stream, server.found.clone(), BucketId::default()).unwrap();
    server.clock.advance(Duration::from_millis(900));
    assert!(server.shares.report(holder, &server.found, 50));
    server.clock.advance(Duration::from_millis(200));
    assert_eq!(server.bursts(stream), [], "the first is late, and the second builds on it");
    // Its bucket starts full, and is paid for again: nothing is left of 20 but what was refilled.
    assert!(server.shares.report(holder, &server.found, 50));
    let renewed: u64 = server.bursts(stream).iter().sum();
    assert!(renewed <= 2, "{renewed}");
}

#[test]
fn a_wall_clock_that_is_set_back_changes_nothing() {
    let server = QuotaFixture::start();
    server.pass(60);
    let stream = server.shares.connect();
    server.shares.join(stream, server.found.clone(), BucketId::default()).unwrap();
    assert_eq!(server.bursts(stream), [20]);
    let now = server.clock.now();
    server.clock.set(now.saturating_sub(Micros::from_secs(3_600)));
    server.pass(9);
    assert!(!server.takes(1), "lent for 10 s");
    server.pass(2);
    assert_eq!(server.bursts(stream).first(), Some(&0), "told to deny before it is lent anew");
}
