//! Requests that are dropped at any point leave no slot, hold or timer.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use tidegate::{Clock, Engine, Limiter, ManualClock, Sleep};
use tidegate_model::TraceRng;
use tidegate_tower::{Global, RateLimitLayer, Settlement};
use tokio::task::JoinHandle;
use tower::{Layer, ServiceExt, service_fn};

use testkit::engines::SlowEngine;
use testkit::http::{memory, rule};

const REQUESTS: u64 = 1_000;
const SLOTS: u64 = 5;
const LIMITS: [&str; 2] = ["fixed-window 1000000/d", "concurrency 5 lease 20ms"];

/// Counts of the requests in the service.
#[derive(Clone, Default)]
struct Log(Arc<Counts>);

#[derive(Default)]
struct Counts {
    entered: AtomicU64,
    inside: AtomicU64,
    max_inside: AtomicU64,
}

impl Log {
    fn enter(&self) -> InServiceGuard {
        self.0.entered.fetch_add(1, Ordering::SeqCst);
        let inside = self.0.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.max_inside.fetch_max(inside, Ordering::SeqCst);
        InServiceGuard(self.clone())
    }
}

struct InServiceGuard(Log);

impl Drop for InServiceGuard {
    fn drop(&mut self) {
        self.0.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A body of some frames, one every two milliseconds.
struct PacedBody {
    clock: ManualClock,
    frames: u64,
    sleep: Option<Sleep>,
    _inside: InServiceGuard,
}

impl http_body::Body for PacedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.frames == 0 {
            return Poll::Ready(None);
        }
        let sleep = this.sleep.get_or_insert_with(|| sleep(&this.clock, 2));
        ready!(sleep.as_mut().poll(cx));
        this.sleep = None;
        this.frames -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"frame")))))
    }
}

fn sleep(clock: &ManualClock, millis: u64) -> Sleep {
    clock.sleep_until(clock.elapsed().saturating_add(Duration::from_millis(millis).into()))
}

async fn run_tasks() {
    for _ in 0..30 {
        tokio::task::yield_now().await;
    }
}

/// Sends random requests, of which half are dropped at random points. Returns the limiter and the
/// counts when all have ended.
async fn send_requests(
    seed: u64,
    clock: &ManualClock,
    engine: impl Engine,
    change: fn(RateLimitLayer) -> RateLimitLayer,
) -> (Limiter, Log) {
    let limiter = Limiter::with_rules(engine, [rule("api", &LIMITS)]).unwrap();
    let layer = change(RateLimitLayer::new(limiter.clone(), Global));
    let (log, service_clock) = (Log::default(), clock.clone());
    let service_log = log.clone();
    let service = layer.layer(service_fn(move |request: Request<u64>| {
        let (log, clock, mut rng) =
            (service_log.clone(), service_clock.clone(), TraceRng::new(*request.body()));
        async move {
            let inside = log.enter();
            sleep(&clock, rng.below(10)).await;
            let body = PacedBody { clock, frames: rng.below(6), sleep: None, _inside: inside };
            Ok::<_, Infallible>(Response::new(Body::new(body)))
        }
    }));
    let mut rng = TraceRng::new(seed);
    let mut in_flight: Vec<(u64, JoinHandle<()>)> = Vec::new();
    let mut sent = 0;
    for milli in 0.. {
        for _ in 0..rng.below(4).min(REQUESTS - sent) {
            sent += 1;
            let request = Request::new(rng.any());
            let service = service.clone();
            let task = tokio::spawn(async move {
                let response = service.oneshot(request).await.unwrap();
                // Denied or not, the body is read to the end.
                response.into_body().collect().await.unwrap();
            });
            let timeout = if rng.one_in(2) { rng.below(40) } else { u64::MAX / 2 };
            in_flight.push((milli + timeout, task));
        }
        in_flight.retain(|(until, task)| {
            if *until <= milli {
                task.abort();
            }
            !task.is_finished()
        });
        run_tasks().await;
        if in_flight.is_empty() && sent == REQUESTS {
            break;
        }
        clock.advance(Duration::from_millis(1));
        run_tasks().await;
    }
    // The dropped slots and holds are released, which takes a slow engine some milliseconds.
    for _ in 0..10 {
        run_tasks().await;
        clock.advance(Duration::from_millis(1));
    }
    run_tasks().await;
    (limiter, log)
}

async fn check(
    name: &str,
    change: fn(RateLimitLayer) -> RateLimitLayer,
    charged: fn(&Counts) -> u64,
) {
    for (seed, slow) in [(1, false), (2, true), (3, false), (4, true)] {
        let clock = ManualClock::default();
        let (limiter, log) = if slow {
            send_requests(seed, &clock, SlowEngine::new(memory(&clock), &clock), change).await
        } else {
            send_requests(seed, &clock, memory(&clock), change).await
        };
        let what = format!("{name}, seed {seed}, slow {slow}");
        let found = limiter.inspect(tidegate::Key::of(&[])).await.unwrap();
        assert_eq!(found[1].standing.held, 0, "{what}: slots");
        assert_eq!(found[0].standing.held, 0, "{what}: reservations");
        assert_eq!(clock.next_wake(), None, "{what}: no task waits, and nothing is renewed");
        let counts = &*log.0;
        assert_eq!(found[0].standing.used, charged(counts), "{what}: charged");
        assert_eq!(counts.inside.load(Ordering::SeqCst), 0, "{what}");
        assert_eq!(counts.max_inside.load(Ordering::SeqCst), SLOTS, "{what}: all slots were used");
        assert!(counts.entered.load(Ordering::SeqCst) > 50, "{what}: and many entered");
    }
}

fn entered(counts: &Counts) -> u64 {
    counts.entered.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_thousand_requests_dropped_anywhere_leave_no_state() {
    check("denied at once", |layer| layer, entered).await;
}

#[tokio::test]
async fn a_thousand_that_wait_leave_no_state_and_only_admitted_ones_are_charged() {
    check("waiting", |layer| layer.wait(Duration::from_millis(30)), entered).await;
}

#[tokio::test]
async fn a_thousand_that_are_charged_afterwards_leave_no_state() {
    let afterwards = |layer: RateLimitLayer| layer.settle(Settlement::from_response(|_| Some(1)));
    // Requests that were dropped before the response are charged their hold.
    check("settled", afterwards, entered).await;
}
