//! Requests that wait for a permit. The clock is manual.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use http::header::RETRY_AFTER;
use http::{Request, Response};
use http_body_util::BodyExt;
use tidegate::{Clock, Limiter, ManualClock};
use tidegate_tower::{Global, RateLimitLayer};
use tower::{Layer, ServiceExt, service_fn};

use testkit::engines::{RacingEngine, SlowEngine};
use testkit::http::{BodySender, ChannelBody};
use testkit::http::{limiter, memory, rule};
use testkit::tasks::ManualTasks;

struct Bench {
    clock: ManualClock,
    layer: RateLimitLayer,
    tasks: ManualTasks<(u16, Option<String>)>,
    /// When requests were served, in milliseconds, and their numbers.
    served: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Bench {
    fn new(limits: &[&str], change: impl FnOnce(RateLimitLayer) -> RateLimitLayer) -> Self {
        let clock = ManualClock::default();
        Self::over(limiter(&clock, limits), clock, change)
    }

    fn over(
        limiter: Limiter,
        clock: ManualClock,
        change: impl FnOnce(RateLimitLayer) -> RateLimitLayer,
    ) -> Self {
        let layer = change(RateLimitLayer::new(limiter, Global));
        Self { tasks: ManualTasks::new(&clock), clock, layer, served: Arc::default() }
    }

    /// Sends the request with this number.
    fn send(&mut self, nth: u64) -> usize {
        let (served, clock) = (self.served.clone(), self.clock.clone());
        let service = service_fn(move |request: Request<u64>| {
            let passed = clock.now().saturating_sub(ManualClock::default().now());
            let at = passed.get() / 1_000;
            served.lock().unwrap().push((at, *request.body()));
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::empty())))
        });
        let service = self.layer.layer(service);
        self.tasks.start(async move {
            let response = service.oneshot(Request::new(nth)).await.unwrap();
            let retry_after = response.headers().get(RETRY_AFTER);
            (
                response.status().as_u16(),
                retry_after.map(|value| value.to_str().unwrap().to_owned()),
            )
        })
    }

    fn served(&self) -> Vec<(u64, u64)> {
        self.served.lock().unwrap().clone()
    }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn requests_pass_in_the_order_of_arrival_and_dropped_ones_are_not_charged() {
    let mut bench = Bench::new(&["10/s burst 1"], |layer| layer.wait(millis(10_000)));
    let tasks: Vec<usize> = (0..7).map(|nth| bench.send(nth)).collect();
    bench.tasks.run_for(millis(150));
    assert!(bench.tasks.drop_task(tasks[3]) && bench.tasks.drop_task(tasks[5]));
    bench.tasks.run_until_idle();
    assert_eq!(bench.served(), [(0, 0), (100, 1), (200, 2), (300, 4), (400, 6)]);
    assert_eq!(bench.tasks.done(tasks[6]), Some(&(400, (200, None))));
    assert_eq!(bench.clock.next_wake(), None);
}

#[test]
fn a_request_whose_turn_is_too_late_is_denied_at_once() {
    let mut bench = Bench::new(&["1/s burst 1"], |layer| layer.wait(millis(2_000)));
    let tasks: Vec<usize> = (0..4).map(|nth| bench.send(nth)).collect();
    let denied = bench.tasks.done(tasks[3]).unwrap();
    assert_eq!(denied, &(0, (429, Some("3".into()))), "it does not wait for the third second");
    bench.tasks.run_until_idle();
    assert_eq!(bench.served(), [(0, 0), (1_000, 1), (2_000, 2)]);
    // A limit without slots can never admit the request, so it is denied at once.
    let mut bench = Bench::new(&["concurrency 0"], |layer| layer.wait(millis(2_000)));
    let never = bench.send(0);
    assert_eq!(bench.tasks.done(never), Some(&(0, (429, None))));
}

#[test]
fn a_request_that_waits_for_a_slot_gets_it_when_a_body_ends() {
    let clock = ManualClock::default();
    let limiter = limiter(&clock, &["concurrency 1"]);
    let layer = RateLimitLayer::new(limiter, Global).wait(millis(1_000));
    let senders: Rc<RefCell<Vec<BodySender>>> = Rc::default();
    let stored = senders.clone();
    let service = layer.layer(service_fn(move |_: Request<()>| {
        let (sender, body) = ChannelBody::new();
        stored.borrow_mut().push(sender);
        std::future::ready(Ok::<_, Infallible>(Response::new(Body::new(body))))
    }));
    let mut tasks = ManualTasks::new(&clock);
    let send = || {
        let service = service.clone();
        async move {
            let response = service.oneshot(Request::new(())).await.unwrap();
            let status = response.status().as_u16();
            response.into_body().collect().await.unwrap();
            status
        }
    };
    let (first, second) = (tasks.start(send()), tasks.start(send()));
    tasks.run_for(millis(700));
    let third = tasks.start(send());
    assert_eq!(senders.borrow().len(), 1, "one is in flight");
    senders.borrow_mut().clear();
    tasks.run_for(millis(0));
    assert_eq!(tasks.done(first), Some(&(700, 200)));
    assert_eq!(senders.borrow().len(), 1, "the next one enters at once");
    tasks.run_for(millis(1_000));
    assert_eq!(tasks.done(second), None);
    assert_eq!(tasks.done(third), Some(&(1_700, 429)), "it has waited its second");
    senders.borrow_mut().clear();
    tasks.run_for(millis(0));
    assert_eq!(tasks.done(second), Some(&(1_700, 200)));
    assert_eq!(clock.next_wake(), None);
}

#[test]
fn a_queue_releases_requests_one_by_one() {
    let queue = "leaky-bucket 10/s capacity 3 queue";
    for (change, denied_at) in [
        ((|layer| layer) as fn(RateLimitLayer) -> RateLimitLayer, 0),
        (|layer| layer.wait(millis(250)), 0),
    ] {
        let mut bench = Bench::new(&[queue], change);
        let tasks: Vec<usize> = (0..6).map(|nth| bench.send(nth)).collect();
        bench.tasks.run_until_idle();
        assert_eq!(bench.served(), [(0, 0), (100, 1), (200, 2)], "no more than the capacity");
        for denied in &tasks[3..] {
            let (at, (status, _)) = bench.tasks.done(*denied).unwrap();
            assert_eq!((*at, *status), (denied_at, 429));
        }
    }
    // No request waits for the turn of a dropped request.
    let mut bench = Bench::new(&[queue], |layer| layer.wait(millis(1_000)));
    let tasks: Vec<usize> = (0..4).map(|nth| bench.send(nth)).collect();
    bench.tasks.drop_task(tasks[1]);
    bench.tasks.run_until_idle();
    assert_eq!(bench.served(), [(0, 0), (100, 2), (200, 3)]);
}

#[test]
fn a_request_waits_for_its_turn_also_after_a_slow_decision() {
    let clock = ManualClock::default();
    let rules = [rule("api", &["leaky-bucket 10/s capacity 3 queue"])];
    let engine = SlowEngine::new(memory(&clock), &clock);
    let calls = engine.calls();
    let limiter = Limiter::with_rules(engine, rules).unwrap();
    let mut bench = Bench::over(limiter, clock, |layer| layer);
    for nth in 0..3 {
        bench.send(nth);
    }
    bench.tasks.run_until_idle();
    let served: Vec<u64> = bench.served().iter().map(|(at, _)| at / 100).collect();
    assert_eq!(served, [0, 1, 2], "{:?}", bench.served());
    assert_eq!(calls.load(Ordering::SeqCst), 3, "one engine call per request");
}

/// Another request may take the turn between the peek and the charge. The request then waits for
/// the new turn, once more.
#[test]
fn a_request_does_not_wait_twice_for_its_turn() {
    let clock = ManualClock::default();
    let engine = RacingEngine::new(memory(&clock));
    let rules = [rule("api", &["leaky-bucket 10/s capacity 9 queue"])];
    let limiter = Limiter::with_rules(engine, rules).unwrap();
    let mut bench = Bench::over(limiter, clock, |layer| layer.wait(millis(5_000)));
    bench.send(0);
    bench.tasks.run_until_idle();
    assert_eq!(bench.served(), [(100, 0)]);
}

#[test]
fn a_layer_in_shadow_mode_delays_no_request() {
    for limit in ["1/s burst 1", "leaky-bucket 1/s capacity 9 queue", "concurrency 0"] {
        let mut bench = Bench::new(&[limit], |layer| layer.wait(millis(5_000)).shadow());
        let tasks: Vec<usize> = (0..3).map(|nth| bench.send(nth)).collect();
        assert_eq!(bench.served(), [(0, 0), (0, 1), (0, 2)], "{limit}");
        assert_eq!(bench.tasks.done(tasks[2]), Some(&(0, (200, None))));
        assert_eq!(bench.clock.next_wake(), None);
    }
}
