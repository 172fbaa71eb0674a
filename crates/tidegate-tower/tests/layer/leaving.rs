//! Requests that are dropped on their way: nothing of them is left.

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
use tidegate_model::Rng;
use tidegate_tower::{Everyone, RateLimitLayer, Settle};
use tokio::task::JoinHandle;
use tower::{Layer, ServiceExt, service_fn};

use crate::engines::Slow;
use crate::site::{memory, rule};

const REQUESTS: u64 = 1_000;
const PLACES: u64 = 5;
const LIMITS: [&str; 2] = ["fixed-window 1000000/d", "concurrency 5 lease 20ms"];

/// What has happened in the service.
#[derive(Clone, Default)]
struct Log(Arc<Counts>);

#[derive(Default)]
struct Counts {
    entered: AtomicU64,
    inside: AtomicU64,
    most: AtomicU64,
}

impl Log {
    fn enter(&self) -> Inside {
        self.0.entered.fetch_add(1, Ordering::SeqCst);
        let inside = self.0.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most.fetch_max(inside, Ordering::SeqCst);
        Inside(self.clone())
    }
}

struct Inside(Log);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A body of some frames, one every two milliseconds.
struct Paced {
    clock: ManualClock,
    frames: u64,
    sleep: Option<Sleep>,
    _inside: Inside,
}

impl http_body::Body for Paced {
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
        let sleep = this.sleep.get_or_insert_with(|| asleep(&this.clock, 2));
        ready!(sleep.as_mut().poll(cx));
        this.sleep = None;
        this.frames -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"frame")))))
    }
}

fn asleep(clock: &ManualClock, millis: u64) -> Sleep {
    clock.sleep_until(clock.elapsed().saturating_add(Duration::from_millis(millis).into()))
}

async fn settled() {
    for _ in 0..30 {
        tokio::task::yield_now().await;
    }
}

/// Lets a crowd come, of whom a half goes away at some point. What is left is checked by the caller.
async fn crowd(
    seed: u64,
    clock: &ManualClock,
    engine: impl Engine,
    change: fn(RateLimitLayer) -> RateLimitLayer,
) -> (Limiter, Log) {
    let limiter = Limiter::with_rules(engine, [rule("api", &LIMITS)]).unwrap();
    let layer = change(RateLimitLayer::new(limiter.clone(), Everyone));
    let (log, told) = (Log::default(), clock.clone());
    let seen = log.clone();
    let service = layer.layer(service_fn(move |request: Request<u64>| {
        let (log, clock, mut rng) = (seen.clone(), told.clone(), Rng::new(*request.body()));
        async move {
            let inside = log.enter();
            asleep(&clock, rng.below(10)).await;
            let body = Paced { clock, frames: rng.below(6), sleep: None, _inside: inside };
            Ok::<_, Infallible>(Response::new(Body::new(body)))
        }
    }));
    let mut rng = Rng::new(seed);
    let mut coming: Vec<(u64, JoinHandle<()>)> = Vec::new();
    let mut come = 0;
    for milli in 0.. {
        for _ in 0..rng.below(4).min(REQUESTS - come) {
            come += 1;
            let request = Request::new(rng.any());
            let service = service.clone();
            let task = tokio::spawn(async move {
                let response = service.oneshot(request).await.unwrap();
                // Denied or not, it is read to the end.
                response.into_body().collect().await.unwrap();
            });
            let patience = if rng.one_in(2) { rng.below(40) } else { u64::MAX / 2 };
            coming.push((milli + patience, task));
        }
        coming.retain(|(until, task)| {
            if *until <= milli {
                task.abort();
            }
            !task.is_finished()
        });
        settled().await;
        if coming.is_empty() && come == REQUESTS {
            break;
        }
        clock.advance(Duration::from_millis(1));
        settled().await;
    }
    // What they have let go is given back, which takes a slow engine some milliseconds.
    for _ in 0..10 {
        settled().await;
        clock.advance(Duration::from_millis(1));
    }
    settled().await;
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
            crowd(seed, &clock, Slow::new(memory(&clock), &clock), change).await
        } else {
            crowd(seed, &clock, memory(&clock), change).await
        };
        let what = format!("{name}, seed {seed}, slow {slow}");
        let found = limiter.inspect(tidegate::Key::of(&[])).await.unwrap();
        assert_eq!(found[1].standing.held, 0, "{what}: places");
        assert_eq!(found[0].standing.held, 0, "{what}: reservations");
        assert_eq!(clock.next_wake(), None, "{what}: nobody waits, and nothing is renewed");
        let counts = &*log.0;
        assert_eq!(found[0].standing.used, charged(counts), "{what}: charged");
        assert_eq!(counts.inside.load(Ordering::SeqCst), 0, "{what}");
        assert_eq!(counts.most.load(Ordering::SeqCst), PLACES, "{what}: it was full");
        assert!(counts.entered.load(Ordering::SeqCst) > 50, "{what}: and busy");
    }
}

fn entered(counts: &Counts) -> u64 {
    counts.entered.load(Ordering::SeqCst)
}

#[tokio::test]
async fn a_thousand_requests_dropped_anywhere_leave_nothing() {
    check("denied at once", |layer| layer, entered).await;
}

#[tokio::test]
async fn a_thousand_that_wait_leave_nothing_and_only_those_let_in_are_charged() {
    check("waiting", |layer| layer.wait(Duration::from_millis(30)), entered).await;
}

#[tokio::test]
async fn a_thousand_that_are_charged_afterwards_leave_nothing() {
    let afterwards = |layer: RateLimitLayer| layer.settle(Settle::from_response(|_| Some(1)));
    // Those who went away before the response are charged what was set aside.
    check("settled", afterwards, entered).await;
}
