//! The client layer with threads and the system clock: no wake-up is lost and no call waits
//! forever. The test waits in real time, for a fraction of a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Request, Response};
use tidegate::{Limit, Limiter, Memory};
use tidegate_model::TraceRng;
use tidegate_tower::client::{BoxError, NotSent, OutgoingLayer};
use tower::{Layer, ServiceExt, service_fn};

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_call_that_may_wait_is_sent_after_a_hundred_pauses() {
    let own_limit: Limit = "20000/s burst 50".parse().unwrap();
    for layer in [
        OutgoingLayer::without_limit(),
        OutgoingLayer::new(Limiter::new(Memory::default(), own_limit)),
    ] {
        let count = Arc::new(AtomicU64::new(0));
        let upstream = service_fn({
            let count = count.clone();
            move |_: Request<()>| {
                let n = count.fetch_add(1, Ordering::Relaxed);
                async move {
                    tokio::task::yield_now().await;
                    let mut response = Response::builder();
                    // Only gRPC has pauses that are short enough for a test.
                    if n.is_multiple_of(20) {
                        response = response
                            .header("grpc-status", "14")
                            .header("grpc-retry-pushback-ms", "1");
                    }
                    response.body(()).map_err(BoxError::from)
                }
            }
        });
        let client = layer.wait(HOUR).layer(upstream);
        let calls: Vec<_> = (0..2_000)
            .map(|n| {
                let request = Request::get(format!("http://h{}/", n % 2)).body(()).unwrap();
                tokio::spawn(client.clone().oneshot(request))
            })
            .collect();
        let mut rng = TraceRng::new(3);
        for call in calls.iter().filter(|_| rng.one_in(5)) {
            tokio::task::yield_now().await;
            call.abort();
        }
        let (mut sent, mut cancelled) = (0, 0);
        for call in calls {
            // A lost wake-up would be a wait of an hour.
            match tokio::time::timeout(Duration::from_secs(20), call).await.unwrap() {
                Ok(response) => {
                    assert!(!response.is_err_and(|error| error.is::<NotSent>()));
                    sent += 1;
                }
                Err(aborted) => cancelled += u64::from(aborted.is_cancelled()),
            }
        }
        assert_eq!(sent + cancelled, 2_000);
        assert!(
            sent >= 1_000 && count.load(Ordering::Relaxed) >= sent,
            "{sent} sent, {cancelled} cancelled"
        );
    }
}
