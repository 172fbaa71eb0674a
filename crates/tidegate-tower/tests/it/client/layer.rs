//! The client layer with an upstream in the same process, on a manual clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use tidegate::{Clock, Limit, Limited, Limiter, ManualClock, Memory};
use tidegate_model::TraceRng;
use tidegate_tower::client::{BoxError, Hint, NotSent, Outgoing, OutgoingLayer};
use tower::{Layer, ServiceExt};

use testkit::tasks::ManualTasks;
use testkit::upstream::UpstreamReply::{After, Failure, Never, Now};
use testkit::upstream::{ScriptedUpstream, UpstreamReply, response};

const HOUR: Duration = Duration::from_secs(3_600);

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

// --- local limit --------------------------------------------------------------------------------

#[test]
fn calls_are_sent_at_the_local_rate_in_the_order_of_their_arrival() {
    let mut bench = Bench::limited("10/s burst 1", |layer| layer, |_, _| Now(response(200, &[])));
    for call in 0..5 {
        bench.call(&format!("http://a/{call}"));
    }
    bench.tasks.run_until_idle();
    let due: Vec<(u64, String)> = (0..5).map(|n| (n * 100, format!("http://a/{n}"))).collect();
    assert_eq!(bench.upstream.log(), due);
}

#[test]
fn a_call_that_gets_no_permit_in_time_is_not_sent() {
    for wait in [Duration::ZERO, millis(999)] {
        let mut bench =
            Bench::limited("1/s burst 1", |layer| layer.wait(wait), |_, _| Now(response(200, &[])));
        bench.call("http://a/");
        let late = bench.call("http://a/");
        match bench.error(late) {
            (0, NotSent::Limited { key, limited: Limited::Denied(_) }) => assert_eq!(key, "a"),
            other => panic!("{other:?}"),
        }
        let (_, not_sent) = bench.error(late);
        assert_eq!(not_sent.retry_after(), Some(secs(1)));
        assert_eq!(
            not_sent.to_string(),
            r#"not sent to "a": local limit: rate limited; retry after 1s"#
        );
        assert_eq!(bench.upstream.times(), [0], "{wait:?}");
    }
}

#[test]
fn upstreams_are_limited_separately_and_one_may_have_many_names() {
    let mut bench = Bench::limited("1/s burst 1", |layer| layer, |_, _| Now(response(200, &[])));
    for uri in ["http://a/", "http://b/", "http://A:80/x", "http://a:81/"] {
        bench.call(uri);
    }
    bench.tasks.run_until_idle();
    assert_eq!(bench.upstream.times(), [0, 0, 0, 1_000]);
    assert_eq!(bench.upstream.log()[3].1, "http://A:80/x");
}

#[test]
fn key_and_cost_can_be_chosen_by_request() {
    let choose = |layer: OutgoingLayer| {
        layer
            .key(|head| format!("{} {}", head.method(), head.uri().path()))
            .cost(|head| head.headers().get("x-cost").map_or(1, |_| 3))
    };
    let mut bench = Bench::limited("1/s burst 3", choose, |_, _| Now(response(200, &[])));
    let mut call = |request: http::request::Builder| bench.send(request.body(()).unwrap());
    call(Request::get("http://a/x").header("x-cost", "1"));
    call(Request::get("http://b/x"));
    call(Request::post("http://a/x"));
    call(Request::get("http://a/y"));
    bench.tasks.run_until_idle();
    let log: Vec<(u64, &str)> = vec![
        (0, "http://a/x"),
        (0, "http://a/x"),
        (0, "http://a/y"),
        // The first call took all three permits of `GET /x`, on any host.
        (1_000, "http://b/x"),
    ];
    let seen = bench.upstream.log();
    assert_eq!(seen.iter().map(|(at, uri)| (*at, &**uri)).collect::<Vec<_>>(), log);
}

#[test]
fn being_ready_takes_no_permit() {
    let mut bench = Bench::limited("1/h burst 1", |layer| layer, |_, _| Now(response(200, &[])));
    let client = bench.client.clone();
    let ready = async move {
        for _ in 0..100 {
            let mut client = client.clone();
            client.ready().await.unwrap();
        }
        Ok(response(204, &[]))
    };
    let ready = bench.tasks.start(ready);
    assert_eq!(bench.status(ready), Some((0, 204)));
    let call = bench.call("http://a/");
    assert_eq!(bench.status(call), Some((0, 200)));
}

#[test]
fn a_call_that_leaves_the_queue_of_the_local_limit_takes_no_permit() {
    let mut bench = Bench::limited("1/s burst 1", |layer| layer, |_, _| Now(response(200, &[])));
    let calls: Vec<usize> = (0..5).map(|n| bench.call(&format!("http://a/{n}"))).collect();
    assert!(bench.tasks.drop_task(calls[1]) && bench.tasks.drop_task(calls[3]));
    bench.tasks.run_until_idle();
    assert_eq!(bench.upstream.times(), [0, 1_000, 2_000]);
}

// --- pauses ------------------------------------------------------------------------------------

#[test]
fn calls_wait_for_the_end_of_a_pause_and_other_hosts_do_not() {
    for (status, lines, hint) in [
        (429, ["retry-after: 5"], Hint::RetryAfter),
        (503, ["retry-after: 5"], Hint::RetryAfter),
        (200, [r#"ratelimit: "a";r=0;t=5"#], Hint::RateLimit),
    ] {
        let mut bench = Bench::without_limit(
            |layer| layer,
            move |n, _| Now(if n == 0 { response(status, &lines) } else { response(200, &[]) }),
        );
        let first = bench.call("http://a/0");
        assert_eq!(bench.status(first), Some((0, status)), "the response is passed on");
        bench.call("http://a/1");
        bench.call("http://b/2");
        bench.tasks.run_for(millis(4_999));
        assert_eq!(bench.upstream.times(), [0, 0], "{hint}");
        bench.tasks.run_until_idle();
        assert_eq!(bench.upstream.times(), [0, 0, 5_000], "{hint}");
        assert_eq!(bench.upstream.log()[1].1, "http://b/2");
    }
}

#[test]
fn a_call_that_cannot_wait_for_the_end_fails_at_once_and_reports_the_pause() {
    let refuse_first = |n: usize, _: &Request<()>| {
        Now(if n == 0 { response(429, &["retry-after: 5"]) } else { response(200, &[]) })
    };
    for (wait, waits) in
        [(Duration::ZERO, false), (millis(3_999), false), (millis(4_000), true), (HOUR, true)]
    {
        let mut bench = Bench::without_limit(|layer| layer.wait(wait), refuse_first);
        bench.call("http://a/");
        bench.tasks.run_for(secs(1));
        let call = bench.call("http://a/");
        if waits {
            bench.tasks.run_until_idle();
            assert_eq!(bench.status(call), Some((5_000, 200)), "{wait:?}");
            continue;
        }
        let (at, not_sent) = bench.error(call);
        assert_eq!(at, 1_000, "{wait:?}");
        assert_eq!(
            not_sent.to_string(),
            "not sent to \"a\": paused for 4s by its Retry-After; retry later, or raise the wait"
        );
        match not_sent {
            NotSent::Paused { key, retry_after, hint } => {
                assert_eq!((&**key, *retry_after), ("a", secs(4)));
                assert_eq!(*hint, Some(Hint::RetryAfter));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn no_response_shortens_a_pause_in_any_order_of_arrival() {
    let refusal = |seconds: u64| response(429, &[&format!("retry-after: {seconds}")]);
    // Five calls in flight together; responses arrive after 1, 2, .. s.
    let responses = [
        refusal(10),
        refusal(3),
        response(200, &[]),
        response(200, &[r#"ratelimit: "a";r=9;t=1"#]),
        response(503, &[]),
    ];
    let script = move |n: usize, _: &Request<()>| match responses.get(n) {
        Some(response) => After(secs(n as u64 + 1), copy(response)),
        None => Now(response(200, &[])),
    };
    let mut bench = Bench::without_limit(|layer| layer.wait(HOUR), script);
    for _ in 0..5 {
        bench.call("http://a/");
    }
    bench.tasks.run_for(secs(6));
    bench.call("http://a/late");
    bench.tasks.run_until_idle();
    assert_eq!(bench.upstream.times(), [0, 0, 0, 0, 0, 11_000]);
}

#[test]
fn a_waiting_call_fails_at_once_when_a_pause_becomes_too_long() {
    let script = |n: usize, _: &Request<()>| match n {
        0 => After(secs(1), response(429, &["retry-after: 4"])),
        1 => After(secs(2), response(429, &["retry-after: 20"])),
        _ => Now(response(200, &[])),
    };
    let mut layer = None;
    let mut bench = Bench::without_limit(|given| layer.insert(given.wait(HOUR)).clone(), script);
    bench.call("http://a/");
    bench.call("http://a/");
    bench.tasks.run_for(millis(1_500));
    let patient = bench.call("http://a/");
    bench.client = layer.unwrap().wait(secs(10)).layer(bench.upstream.clone());
    let impatient: Vec<usize> = (0..3).map(|_| bench.call("http://a/")).collect();
    bench.tasks.run_until_idle();
    for call in impatient {
        let (at, not_sent) = bench.error(call);
        assert_eq!((at, not_sent.retry_after()), (2_000, Some(secs(20))));
    }
    assert_eq!(bench.status(patient), Some((22_000, 200)));
}

#[test]
fn a_call_that_waits_for_a_permit_fails_at_once_when_a_pause_begins() {
    let script = |_: usize, _: &Request<()>| After(secs(1), response(429, &["retry-after: 60"]));
    let mut bench = Bench::limited("1/10s burst 1", |layer| layer.wait(secs(15)), script);
    bench.call("http://a/");
    let call = bench.call("http://a/");
    bench.tasks.run_until_idle();
    let (at, not_sent) = bench.error(call);
    assert_eq!((at, not_sent.retry_after()), (1_000, Some(secs(60))));
}

#[test]
fn no_upstream_pauses_calls_for_longer_than_max_pause() {
    for lines in [
        ["retry-after: 99999999999999999999999"],
        ["retry-after: Fri, 31 Dec 9999 23:59:59 GMT"],
        [r#"ratelimit: "a";r=0;t=999999999999999"#],
    ] {
        for (max_pause, due) in [(None, 3_600_000), (Some(secs(7)), 7_000), (Some(secs(0)), 0)] {
            let set = |layer: OutgoingLayer| {
                let layer = layer.wait(Duration::MAX);
                max_pause.into_iter().fold(layer, OutgoingLayer::max_pause)
            };
            let script = move |n: usize, _: &Request<()>| {
                Now(if n == 0 { response(429, &lines) } else { response(200, &[]) })
            };
            let mut bench = Bench::without_limit(set, script);
            bench.call("http://a/");
            bench.call("http://a/");
            bench.tasks.run_until_idle();
            assert_eq!(bench.upstream.times(), [0, due], "{lines:?} {max_pause:?}");
        }
    }
}

#[test]
fn with_no_pause_allowed_refusals_change_nothing() {
    let script = |_: usize, _: &Request<()>| After(millis(100), response(503, &[]));
    let mut bench = Bench::without_limit(|layer| layer.max_pause(Duration::ZERO), script);
    for _ in 0..2 {
        bench.call("http://a/");
        bench.call("http://a/");
        bench.tasks.run_until_idle();
    }
    assert_eq!(bench.upstream.times(), [0, 0, 100, 100]);
}

#[test]
fn hints_of_served_responses_can_be_ignored() {
    let script = |n: usize, _: &Request<()>| match n {
        0..=2 => Now(response(200, &[r#"ratelimit: "a";r=0;t=5"#])),
        3 => Now(response(429, &[r#"ratelimit: "a";r=0;t=5"#])),
        _ => Now(response(200, &[])),
    };
    let mut bench = Bench::without_limit(OutgoingLayer::only_after_rejection, script);
    for _ in 0..5 {
        bench.call("http://a/");
    }
    bench.tasks.run_until_idle();
    assert_eq!(bench.upstream.times(), [0, 0, 0, 0, 5_000]);
}

// --- refusals without a hint -------------------------------------------------------------------

#[test]
fn refusals_without_a_hint_double_the_pause_until_a_call_is_served() {
    let script = |n: usize, _: &Request<()>| match n {
        0..=7 => Now(response(if n.is_multiple_of(2) { 429 } else { 503 }, &[])),
        8 => Now(response(404, &[])),
        9 => Now(response(503, &[])),
        _ => Now(response(200, &[])),
    };
    let mut bench = Bench::without_limit(|layer| layer.wait(HOUR), script);
    for _ in 0..11 {
        bench.call("http://a/");
        bench.tasks.run_until_idle();
    }
    let times = bench.upstream.times();
    let pauses = times.windows(2).map(|pair| pair[1] - pair[0]);
    for (n, (pause, seconds)) in pauses.zip([1, 2, 4, 8, 16, 32, 60, 60, 0, 1]).enumerate() {
        let due = seconds * 1_000;
        assert!((due..=due * 3 / 2).contains(&pause), "{n}: {pause} ms where {due} are due");
    }
}

#[test]
fn calls_that_are_refused_together_are_one_refusal() {
    let script = |n: usize, _: &Request<()>| match n {
        0..=99 => After(millis(n as u64 + 1), response(503, &[])),
        _ => Now(response(200, &[])),
    };
    let mut bench = Bench::without_limit(|layer| layer.wait(HOUR), script);
    for _ in 0..100 {
        bench.call("http://a/");
    }
    bench.tasks.run_for(millis(200));
    bench.call("http://a/");
    bench.tasks.run_until_idle();
    let retried = bench.upstream.times()[100];
    assert!((1_001..=1_501).contains(&retried), "{retried}");
}

#[test]
fn the_error_reports_a_pause_without_a_hint() {
    let mut bench =
        Bench::without_limit(|layer| layer.wait(millis(1)), |_, _| Now(response(503, &[])));
    bench.call("http://a/");
    let call = bench.call("http://a/");
    let (_, not_sent) = bench.error(call);
    assert!(matches!(not_sent, NotSent::Paused { hint: None, .. }), "{not_sent:?}");
    assert!(not_sent.to_string().contains("after rejected calls"), "{not_sent}");
}

// --- after a pause -----------------------------------------------------------------------------

#[test]
fn waiting_calls_are_sent_as_one_and_then_two_for_each_response() {
    let script = |n: usize, _: &Request<()>| match n {
        0 => Now(response(429, &["retry-after: 5"])),
        _ => After(millis(100), response(200, &[])),
    };
    let mut bench = Bench::without_limit(|layer| layer.wait(HOUR), script);
    let waiting = 3_000;
    for n in 0..=waiting {
        bench.call(&format!("http://a/{n}"));
    }
    bench.tasks.run_until_idle();
    let log = bench.upstream.log();
    let order: Vec<String> = (0..=waiting).map(|n| format!("http://a/{n}")).collect();
    assert!(log.iter().map(|(_, uri)| uri).eq(&order), "in the order of their arrival");
    let mut waves: Vec<(u64, u64)> = Vec::new();
    for (at, _) in &log[1..] {
        match waves.last_mut().filter(|(last, _)| last == at) {
            Some((_, count)) => *count += 1,
            None => waves.push((*at, 1)),
        }
    }
    for (n, (at, count)) in waves.iter().enumerate().take(11) {
        assert_eq!((*at, *count), (5_000 + 100 * n as u64, 1 << n));
    }
    assert_eq!(waves.iter().map(|(_, count)| count).sum::<u64>(), waiting);
    // Once all waiting calls are sent, later calls are sent at once.
    let before = bench.upstream.times().len();
    for _ in 0..50 {
        bench.call("http://a/");
    }
    assert_eq!(bench.upstream.times().len() - before, 50);
}

#[test]
fn the_first_call_after_a_pause_delays_the_others_by_a_second_at_most() {
    for (first, next) in [(Failure, 5_000), (Never, 6_000)] {
        let mut first = Some(first);
        let script = move |n: usize, _: &Request<()>| match n {
            0 => Now(response(429, &["retry-after: 5"])),
            1 => first.take().unwrap(),
            _ => After(millis(10), response(200, &[])),
        };
        let mut bench = Bench::without_limit(|layer| layer.wait(HOUR), script);
        for _ in 0..3 {
            bench.call("http://a/");
        }
        bench.tasks.run_until_idle();
        assert_eq!(bench.upstream.times()[..3], [0, 5_000, next]);
    }
}

#[test]
fn a_failing_upstream_gets_one_call_at_a_time() {
    let script = |n: usize, _: &Request<()>| match n {
        0 => Now(response(429, &["retry-after: 5"])),
        1..=3 => After(millis(100), response(500, &[])),
        _ => After(millis(100), response(200, &[])),
    };
    let mut bench = Bench::without_limit(|layer| layer.wait(HOUR), script);
    for _ in 0..8 {
        bench.call("http://a/");
    }
    bench.tasks.run_until_idle();
    let due = [0, 5_000, 5_100, 5_200, 5_300, 5_400, 5_400, 5_500];
    assert_eq!(bench.upstream.times(), due);
}

#[test]
fn a_call_that_leaves_the_queue_of_a_pause_delays_no_other() {
    let script = |n: usize, _: &Request<()>| match n {
        0 => Now(response(429, &["retry-after: 5"])),
        1 => Never,
        _ => Now(response(200, &[])),
    };
    let mut bench = Bench::without_limit(|layer| layer.wait(HOUR), script);
    let calls: Vec<usize> = (0..6).map(|n| bench.call(&format!("http://a/{n}"))).collect();
    bench.tasks.run_for(secs(1));
    assert!(bench.tasks.drop_task(calls[1]), "the first in line");
    assert!(bench.tasks.drop_task(calls[3]), "one in the middle");
    bench.tasks.run_for(millis(4_500));
    assert_eq!(bench.upstream.times(), [0, 5_000]);
    assert!(bench.tasks.drop_task(calls[2]), "the one in flight");
    bench.tasks.run_until_idle();
    assert_eq!(bench.upstream.times(), [0, 5_000, 5_500, 5_500]);
}

#[test]
fn a_refusal_after_a_pause_begins_another_pause() {
    let script = |n: usize, _: &Request<()>| match n {
        0 | 1 => After(millis(100), response(429, &["retry-after: 5"])),
        _ => Now(response(200, &[])),
    };
    let mut bench = Bench::without_limit(|layer| layer.wait(HOUR), script);
    bench.call("http://a/");
    bench.tasks.run_for(millis(100));
    for _ in 0..3 {
        bench.call("http://a/");
    }
    bench.tasks.run_until_idle();
    assert_eq!(bench.upstream.times(), [0, 5_100, 10_200, 10_200]);
}

#[test]
fn permits_are_neither_spent_nor_saved_up_during_a_pause() {
    let script = |n: usize, _: &Request<()>| match n {
        0 => After(millis(500), response(429, &["retry-after: 10"])),
        _ => Now(response(200, &[])),
    };
    let mut bench = Bench::limited("fixed-window 20/h", |layer| layer.wait(HOUR), script);
    for _ in 0..10 {
        bench.call("http://a/");
    }
    bench.tasks.run_until_idle();
    let used = 20 - bench.limiter().check("a").peek().now().unwrap().remaining();
    assert_eq!(used, 10);

    let script = |n: usize, _: &Request<()>| match n {
        0 => After(millis(1_500), response(429, &["retry-after: 10"])),
        _ => Now(response(200, &[])),
    };
    let mut bench = Bench::limited("1/s burst 1", |layer| layer.wait(HOUR), script);
    for n in 0..6 {
        bench.call(&format!("http://a/{n}"));
    }
    bench.tasks.run_until_idle();
    let log = bench.upstream.log();
    let due = [0, 1_000, 11_500, 12_500, 13_500, 14_500];
    let due: Vec<(u64, String)> =
        due.into_iter().zip(0..).map(|(at, n)| (at, format!("http://a/{n}"))).collect();
    assert_eq!(log, due, "in the order of their arrival, at the local rate");
}

#[test]
fn the_wait_bounds_pauses_and_permits_together() {
    let script = |n: usize, _: &Request<()>| match n {
        0 => Now(response(429, &["retry-after: 3"])),
        _ => Now(response(200, &[])),
    };
    let mut bench = Bench::limited("1/10s burst 1", |layer| layer.wait(secs(9)), script);
    bench.call("http://a/");
    let call = bench.call("http://a/");
    bench.tasks.run_until_idle();
    // Six seconds remain after the pause, and the next permit is due after seven.
    let (at, not_sent) = bench.error(call);
    assert_eq!((at, not_sent.retry_after()), (3_000, Some(secs(7))));
    assert!(matches!(not_sent, NotSent::Limited { .. }), "{not_sent:?}");
}

// --- tower -------------------------------------------------------------------------------------

#[test]
fn errors_of_the_inner_client_are_returned_unchanged() {
    let mut bench = Bench::without_limit(|layer| layer, |_, _| Failure);
    let call = bench.call("http://a/");
    let (_, error) = bench.tasks.done(call).unwrap();
    let error = error.as_ref().unwrap_err();
    assert_eq!(error.downcast_ref::<std::io::Error>().unwrap().to_string(), "connection refused");
}

#[test]
fn the_client_that_was_ready_is_the_one_that_is_called() {
    /// Panics when it is called without having been ready. Its clones are not ready.
    #[derive(Default)]
    struct Strict(bool);

    impl Clone for Strict {
        fn clone(&self) -> Self {
            Self(false)
        }
    }

    impl tower::Service<Request<()>> for Strict {
        type Response = Response<()>;
        type Error = std::io::Error;
        type Future = std::future::Ready<std::io::Result<Response<()>>>;

        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            self.0 = true;
            std::task::Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            assert!(std::mem::take(&mut self.0), "called without being ready");
            std::future::ready(Ok(response(200, &[])))
        }
    }

    let clock = ManualClock::default();
    let mut client = OutgoingLayer::new(limiter("1/s burst 1", &clock)).layer(Strict::default());
    let mut tasks = ManualTasks::new(&clock);
    let calls = tasks.start(async move {
        for _ in 0..3 {
            let request = Request::get("http://a/").body(()).unwrap();
            tower::Service::call(client.ready().await.unwrap(), request).await.unwrap();
        }
    });
    tasks.run_until_idle();
    assert_eq!(tasks.done(calls).map(|(at, ())| *at), Some(2_000));
}

#[test]
fn services_of_one_layer_share_their_pauses() {
    let clock = ManualClock::default();
    let upstream = ScriptedUpstream::new(&clock, |_, _| Now(response(429, &["retry-after: 5"])));
    let layer = OutgoingLayer::without_limit().clock(clock.clone()).wait(Duration::ZERO);
    let mut tasks = ManualTasks::new(&clock);
    for (client, is_sent) in
        [(layer.layer(upstream.clone()), true), (layer.clone().layer(upstream.clone()), false)]
    {
        let request = Request::get("http://a/").body(()).unwrap();
        let call = tasks.start(client.oneshot(request));
        assert_eq!(tasks.done(call).unwrap().1.is_ok(), is_sent);
    }
}

// --- random traffic -----------------------------------------------------------------------------

/// Upstreams reply, refuse, fail and do not reply at random; calls wait, time out and are dropped.
/// No host is called during a pause, and no call waits longer than its bound.
#[test]
fn under_random_traffic_no_host_is_called_in_a_pause_and_no_call_waits_too_long() {
    for seed in 0..200 {
        let local_limit = ["50/s burst 5", "fixed-window 30/s", "leaky-bucket 20/s queue"];
        let local_limit = local_limit.get(seed as usize % 4);
        let mut rng = TraceRng::new(seed);
        let clock = ManualClock::default();
        let start = clock.elapsed();
        let elapsed = {
            let clock = clock.clone();
            move || clock.elapsed().saturating_sub(start).get()
        };
        // When the pause of each host ends, by the responses that callers have received.
        let pauses: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
        let violations: Arc<Mutex<Vec<String>>> = Arc::default();
        let script = {
            let (pauses, violations) = (pauses.clone(), violations.clone());
            let (elapsed, mut rng) = (elapsed.clone(), TraceRng::new(seed + 1_000));
            move |_: usize, request: &Request<()>| {
                let (host, now) = (request.uri().host().unwrap(), elapsed());
                let until = pauses.lock().unwrap().get(host).copied().unwrap_or(0);
                if now < until {
                    violations.lock().unwrap().push(format!("{host} at {now}, not before {until}"));
                }
                draw_reply(&mut rng)
            }
        };
        let wait = millis(rng.below(8_000));
        let set = |layer: OutgoingLayer| layer.wait(wait);
        let mut bench = match local_limit {
            Some(notation) => Bench::limited_on(&clock, notation, set, script),
            None => Bench::without_limit_on(&clock, set, script),
        };
        let mut calls = Vec::new();
        for _ in 0..150 {
            let host = format!("h{}", rng.below(3));
            let (pauses, elapsed) = (pauses.clone(), elapsed.clone());
            let call = bench.call_and_note(&format!("http://{host}/"), move |response| {
                let Some(value) = response.headers().get("retry-after") else { return };
                let seconds: u64 = value.to_str().unwrap().parse().unwrap();
                let mut pauses = pauses.lock().unwrap();
                let until = pauses.entry(host).or_default();
                *until = (*until).max(elapsed() + seconds * 1_000_000);
            });
            calls.push((bench.tasks.now(), call));
            if rng.one_in(10) {
                let (_, dropped) = calls[rng.below(calls.len() as u64) as usize];
                bench.tasks.drop_task(dropped);
            }
            bench.tasks.run_for(millis(rng.magnitude(300)));
        }
        bench.tasks.run_until_idle();
        assert_eq!(*violations.lock().unwrap(), Vec::<String>::new(), "seed {seed}");
        for (arrived, call) in calls {
            if let Some((at, Err(error))) = bench.tasks.done(call)
                && error.is::<NotSent>()
            {
                let latest = arrived + wait.as_millis() as u64 + 1;
                assert!(*at <= latest, "seed {seed}: not sent at {at}, not by {latest}: {error}");
            }
        }
    }
}

fn draw_reply(rng: &mut TraceRng) -> UpstreamReply {
    let latency = millis(rng.magnitude(2_000));
    match rng.below(20) {
        0 => Never,
        1 => Failure,
        2 => After(latency, response(503, &[])),
        3..=5 => {
            let line = format!("retry-after: {}", rng.between(1, 4));
            After(latency, response(429, &[&line]))
        }
        6 => After(latency, response(500, &[])),
        _ => After(latency, response(200, &[])),
    }
}

// --- test bench ---------------------------------------------------------------------------------

/// A client with the layer in front of an upstream, and its calls.
struct Bench {
    tasks: ManualTasks<Result<Response<()>, BoxError>>,
    upstream: ScriptedUpstream,
    client: Outgoing<ScriptedUpstream>,
    limiter: Option<Limiter>,
}

impl Bench {
    fn limited(
        notation: &str,
        set: impl FnOnce(OutgoingLayer) -> OutgoingLayer,
        script: impl FnMut(usize, &Request<()>) -> UpstreamReply + Send + 'static,
    ) -> Self {
        Self::limited_on(&ManualClock::default(), notation, set, script)
    }

    fn limited_on(
        clock: &ManualClock,
        notation: &str,
        set: impl FnOnce(OutgoingLayer) -> OutgoingLayer,
        script: impl FnMut(usize, &Request<()>) -> UpstreamReply + Send + 'static,
    ) -> Self {
        let limiter = limiter(notation, clock);
        let layer = set(OutgoingLayer::new(limiter.clone()));
        Self { limiter: Some(limiter), ..Self::new(clock, &layer, script) }
    }

    fn without_limit(
        set: impl FnOnce(OutgoingLayer) -> OutgoingLayer,
        script: impl FnMut(usize, &Request<()>) -> UpstreamReply + Send + 'static,
    ) -> Self {
        Self::without_limit_on(&ManualClock::default(), set, script)
    }

    fn without_limit_on(
        clock: &ManualClock,
        set: impl FnOnce(OutgoingLayer) -> OutgoingLayer,
        script: impl FnMut(usize, &Request<()>) -> UpstreamReply + Send + 'static,
    ) -> Self {
        Self::new(clock, &set(OutgoingLayer::without_limit().clock(clock.clone())), script)
    }

    fn new(
        clock: &ManualClock,
        layer: &OutgoingLayer,
        script: impl FnMut(usize, &Request<()>) -> UpstreamReply + Send + 'static,
    ) -> Self {
        let upstream = ScriptedUpstream::new(clock, script);
        let client = layer.layer(upstream.clone());
        Self { tasks: ManualTasks::new(clock), upstream, client, limiter: None }
    }

    fn call(&mut self, uri: &str) -> usize {
        self.send(Request::get(uri).body(()).unwrap())
    }

    fn send(&mut self, request: Request<()>) -> usize {
        self.tasks.start(self.client.clone().oneshot(request))
    }

    /// Passes the response to `note` as soon as the caller has it.
    fn call_and_note(&mut self, uri: &str, note: impl FnOnce(&Response<()>) + 'static) -> usize {
        let request = Request::get(uri).body(()).unwrap();
        let call = self.client.clone().oneshot(request);
        self.tasks.start(async move {
            let result = call.await;
            if let Ok(response) = &result {
                note(response);
            }
            result
        })
    }

    fn limiter(&self) -> &Limiter {
        self.limiter.as_ref().unwrap()
    }

    /// When the call ended, in milliseconds, and its status.
    fn status(&self, call: usize) -> Option<(u64, u16)> {
        let (at, response) = self.tasks.done(call)?;
        Some((*at, response.as_ref().unwrap().status().as_u16()))
    }

    /// When the call failed, in milliseconds, and the reason.
    fn error(&self, call: usize) -> (u64, &NotSent) {
        let (at, response) = self.tasks.done(call).unwrap();
        (*at, response.as_ref().unwrap_err().downcast_ref().unwrap())
    }
}

fn limiter(notation: &str, clock: &ManualClock) -> Limiter {
    let engine = Memory::builder().clock(clock.clone()).build();
    Limiter::new(engine, notation.parse::<Limit>().unwrap())
}

fn copy(response: &Response<()>) -> Response<()> {
    let mut copy = Response::new(());
    *copy.status_mut() = response.status();
    *copy.headers_mut() = response.headers().clone();
    copy
}
