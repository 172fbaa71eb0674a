//! Callers, in an open loop: they come at their rate, whether those before them were answered or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::Limiter;
use tidegate_model::Rng;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::log::{Entry, Log, Said, micros};
use crate::stack::DEADLINE;

const MOMENT: Duration = Duration::from_millis(1);
/// So many calls at a time and no more, or a harness with a hole would eat the machine.
const MOST_PENDING: u64 = 50_000;

/// Calls at a rate, until it is ended.
pub(crate) struct Load {
    over: Arc<AtomicBool>,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Counts {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Who asks for what.
#[derive(Clone)]
pub(crate) struct Callers {
    pub(crate) limiter: Limiter,
    /// The numbers of the keys, each as likely as the others.
    pub(crate) keys: std::ops::Range<u32>,
    /// A second.
    pub(crate) rate: u64,
    pub(crate) client: u8,
    pub(crate) seed: u64,
}

impl Callers {
    /// What the key of this number is called.
    pub(crate) fn name(key: u32) -> String {
        format!("key {key}")
    }
}

impl Load {
    pub(crate) fn begin(callers: Callers, log: &Log) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let counts = Arc::new(Counts::default());
        let task = tokio::spawn(come(callers, log.clone(), Arc::clone(&over), Arc::clone(&counts)));
        Self { over, counts, task }
    }

    /// No more calls come. How many of those that came are still without an answer a second later:
    /// they hang.
    pub(crate) async fn end(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        let pending = || {
            let ended = self.counts.ended.load(Ordering::Acquire);
            self.counts.begun.load(Ordering::Acquire) - ended
        };
        for _ in 0..1000 {
            if pending() == 0 {
                return 0;
            }
            sleep(MOMENT).await;
        }
        pending()
    }

    /// How many came so far.
    pub(crate) fn begun(&self) -> u64 {
        self.counts.begun.load(Ordering::Acquire)
    }
}

async fn come(callers: Callers, log: Log, over: Arc<AtomicBool>, counts: Arc<Counts>) {
    let zero = Instant::now();
    let names: Arc<[String]> = callers.keys.clone().map(Callers::name).collect();
    let mut rng = Rng::new(callers.seed);
    let mut come = 0;
    for moment in 1.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let due = micros(zero.elapsed()) * callers.rate / 1_000_000;
        while come < due {
            come += 1;
            let pending = come - counts.ended.load(Ordering::Acquire);
            assert!(pending < MOST_PENDING, "{pending} calls are without an answer");
            counts.begun.fetch_add(1, Ordering::AcqRel);
            let nth = rng.below(names.len() as u64) as usize;
            let (limiter, client) = (callers.limiter.clone(), callers.client);
            let (names, log, counts) = (Arc::clone(&names), log.clone(), Arc::clone(&counts));
            let key = callers.keys.start + nth as u32;
            tokio::spawn(async move {
                let begun = log.now();
                let said = Said::of(&limiter.check(&names[nth]).await);
                log.write(&Entry { begun, ended: log.now(), key, cost: 1, client, said });
                counts.ended.fetch_add(1, Ordering::AcqRel);
            });
        }
        sleep_until(zero + moment * MOMENT).await;
    }
}

/// Timers and nothing else, as long as a call may take: how late they are is how late the machine is.
pub(crate) struct Timers {
    over: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Timers {
    const EVERY: Duration = Duration::from_millis(2);
    /// How long each takes, if nothing is late.
    pub(crate) const SPAN: Duration = DEADLINE;

    /// What they take is written to `log`.
    pub(crate) fn begin(log: &Log) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (ended, log) = (Arc::clone(&over), log.clone());
        let task = tokio::spawn(async move {
            let zero = Instant::now();
            for nth in 1.. {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let log = log.clone();
                tokio::spawn(async move {
                    let begun = log.now();
                    sleep(Self::SPAN).await;
                    let said = Said::Nothing;
                    log.write(&Entry { begun, ended: log.now(), key: 0, cost: 0, client: 0, said });
                });
                sleep_until(zero + nth * Self::EVERY).await;
            }
        });
        Self { over, task }
    }

    pub(crate) async fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
        sleep(2 * Self::SPAN).await;
    }
}
