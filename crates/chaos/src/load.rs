//! Open-loop load: calls start at a fixed rate, whether earlier calls have completed or not.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use testkit::timing::HANG;
use tidegate::{Limiter, Source};
use tidegate_model::TraceRng;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::log::{CallLog, CallResult, LoggedCall, micros};

const TICK: Duration = Duration::from_millis(1);
/// Upper bound of calls in flight, which protects the machine.
const MAX_PENDING: usize = 50_000;

/// Starts calls at a rate until it is stopped.
pub(crate) struct Load {
    stopped: Arc<AtomicBool>,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Counts {
    begun: AtomicU64,
    /// Numbers of the calls that have no decision yet.
    in_flight: Mutex<BTreeSet<u64>>,
    /// Latest start of a call that the store has decided.
    last_by_store: AtomicU64,
}

impl Counts {
    async fn undecided(&self) -> u64 {
        let before = self.begun.load(Ordering::Acquire);
        until(HANG, || self.in_flight().first().is_none_or(|oldest| *oldest > before)).await;
        self.in_flight().range(..=before).count() as u64
    }

    fn in_flight(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.in_flight.lock().unwrap()
    }
}

/// Limiter, keys and rate of a load.
#[derive(Clone)]
pub(crate) struct Callers {
    pub(crate) limiter: Limiter,
    /// Key numbers, chosen uniformly.
    pub(crate) keys: std::ops::Range<u32>,
    /// Calls per second.
    pub(crate) rate: u64,
    pub(crate) client: u8,
    pub(crate) seed: u64,
}

impl Callers {
    /// Name of the key with this number.
    pub(crate) fn name(key: u32) -> String {
        format!("key {key}")
    }
}

impl Load {
    pub(crate) fn start(callers: Callers, log: &CallLog) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Counts::default());
        let task =
            tokio::spawn(run(callers, log.clone(), Arc::clone(&stopped), Arc::clone(&counts)));
        Self { stopped, counts, task }
    }

    /// Stops, and returns the number of calls that hang.
    pub(crate) async fn stop(self) -> u64 {
        self.stopped.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        self.counts.undecided().await
    }

    /// Waits for the decisions of all calls started so far, and returns the number of calls that
    /// hang.
    pub(crate) async fn undecided(&self) -> u64 {
        self.counts.undecided().await
    }

    /// Waits until the store decides a call that started after this time of the log.
    pub(crate) async fn until_store_decides(&self, since: u64) {
        until(HANG, || self.counts.last_by_store.load(Ordering::Acquire) >= since).await;
    }

    /// Number of calls started so far.
    pub(crate) fn begun(&self) -> u64 {
        self.counts.begun.load(Ordering::Acquire)
    }
}

/// Waits for the condition. False if it does not hold within `timeout`.
pub(crate) async fn until(timeout: Duration, condition: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > timeout {
            return false;
        }
        sleep(2 * TICK).await;
    }
    true
}

async fn run(callers: Callers, log: CallLog, stopped: Arc<AtomicBool>, counts: Arc<Counts>) {
    let zero = Instant::now();
    let names: Arc<[String]> = callers.keys.clone().map(Callers::name).collect();
    let mut rng = TraceRng::new(callers.seed);
    let mut started = 0;
    for tick in 1.. {
        if stopped.load(Ordering::Relaxed) {
            return;
        }
        let due = micros(zero.elapsed()) * callers.rate / 1_000_000;
        while started < due {
            // On a busy machine the load falls behind. Calls that hang are counted at the end.
            if counts.in_flight().len() >= MAX_PENDING {
                break;
            }
            started += 1;
            counts.in_flight().insert(started);
            counts.begun.store(started, Ordering::Release);
            let nth = rng.below(names.len() as u64) as usize;
            let (limiter, client) = (callers.limiter.clone(), callers.client);
            let (names, log, counts) = (Arc::clone(&names), log.clone(), Arc::clone(&counts));
            let (key, number) = (callers.keys.start + nth as u32, started);
            tokio::spawn(async move {
                let begun = log.now();
                let result = CallResult::of(&limiter.check(&names[nth]).await);
                log.write(&LoggedCall { begun, ended: log.now(), key, cost: 1, client, result });
                if result.source() == Some(Source::Redis) {
                    counts.last_by_store.fetch_max(begun, Ordering::AcqRel);
                }
                counts.in_flight().remove(&number);
            });
        }
        sleep_until(zero + tick * TICK).await;
    }
}

/// Bare timers: their delay is the delay of the machine.
pub(crate) struct Timers {
    stopped: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Timers {
    const EVERY: Duration = Duration::from_millis(2);
    /// Duration of each timer without delay.
    pub(crate) const SPAN: Duration = Duration::from_millis(25);

    pub(crate) fn start(log: &CallLog) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let (stop, log) = (Arc::clone(&stopped), log.clone());
        let task = tokio::spawn(async move {
            let zero = Instant::now();
            for nth in 1.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let log = log.clone();
                tokio::spawn(async move {
                    let begun = log.now();
                    sleep(Self::SPAN).await;
                    let result = CallResult::NotCharged;
                    log.write(&LoggedCall {
                        begun,
                        ended: log.now(),
                        key: 0,
                        cost: 0,
                        client: 0,
                        result,
                    });
                });
                sleep_until(zero + nth * Self::EVERY).await;
            }
        });
        Self { stopped, task }
    }

    pub(crate) async fn stop(self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        sleep(2 * Self::SPAN).await;
    }
}
