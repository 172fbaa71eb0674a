//! A run and its workers: schedule, requests and measurements.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate::simulate::{KeyDistribution, Rng};
use tidegate::{Clock, Micros, SystemClock};
use tokio::sync::Notify;

use super::client::BenchClient;
use super::client::response::{BenchResponse, RequestError};
use super::load::{LoadModel, LoadPlan};
use super::measurements::{Measurements, RequestTimes};
use super::rate::RequestRate;
use super::target::BenchTarget;

/// Shared by all workers.
pub(crate) struct BenchRun {
    pub(crate) target: Arc<BenchTarget>,
    pub(crate) plan: LoadPlan,
    keys: KeyDistribution,
    /// When the first request is due.
    pub(crate) begin: Micros,
    /// End of the warm-up: requests due from here on are measured.
    pub(crate) measured_from: Micros,
    /// No request is due from here on, in microseconds.
    end: AtomicU64,
    /// One per worker of an open loop.
    pub(crate) wakes: Vec<Notify>,
    /// Sharded, so that workers rarely wait for a lock.
    measurements: Vec<Mutex<Measurements>>,
}

/// Requests that were due before the end are sent up to this long after it.
const GRACE: Micros = Micros::from_secs(1);
const MAX_SHARDS: usize = 16;

pub(crate) fn now() -> Micros {
    SystemClock.elapsed()
}

impl BenchRun {
    /// A run that begins now.
    pub(crate) fn new(target: Arc<BenchTarget>, plan: LoadPlan) -> Self {
        let keys = KeyDistribution::new(plan.keys, plan.zipf);
        let workers = plan.connections as usize;
        let (begin, wakes) = (
            now(),
            match plan.load {
                LoadModel::Closed => Vec::new(),
                LoadModel::Open(_) => (0..workers).map(|_| Notify::new()).collect(),
            },
        );
        let measured_from = begin.saturating_add(plan.warmup);
        let end = AtomicU64::new(measured_from.saturating_add(plan.duration).get());
        let shards = 0..workers.min(MAX_SHARDS);
        let measurements = shards.map(|_| Mutex::new(Measurements::new())).collect();
        Self { target, plan, keys, begin, measured_from, end, wakes, measurements }
    }

    pub(crate) fn end(&self) -> Micros {
        Micros::new(self.end.load(Ordering::Relaxed))
    }

    /// Ends the run now, unless it has ended.
    pub(crate) fn stop(&self) {
        self.end.fetch_min(now().get(), Ordering::Relaxed);
        self.wakes.iter().for_each(Notify::notify_one);
    }

    /// Requests done so far, warm-up excluded.
    pub(crate) fn requests(&self) -> u64 {
        self.measurements.iter().map(|shard| lock(shard).requests()).sum()
    }

    /// Measurements of all workers.
    pub(crate) fn measurements(&self) -> Measurements {
        let mut all = Measurements::new();
        self.measurements.iter().for_each(|shard| all.merge(lock(shard).clone()));
        all
    }
}

fn lock(shard: &Mutex<Measurements>) -> std::sync::MutexGuard<'_, Measurements> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends requests over one connection.
pub(crate) struct Worker {
    run: Arc<BenchRun>,
    /// Number of the worker, from 0.
    nth: usize,
    client: Option<BenchClient>,
    rng: Rng,
    chosen: Vec<u32>,
    responses: Vec<BenchResponse>,
    /// Wait before the next attempt after an error.
    pause: Micros,
}

impl Worker {
    const FIRST_PAUSE: Micros = Micros::from_millis(10);
    const MAX_PAUSE: Micros = Micros::from_secs(1);

    pub(crate) fn new(run: Arc<BenchRun>, nth: usize, client: Option<BenchClient>) -> Self {
        // Adjacent seeds would give correlated random streams.
        let mut seeds = Rng::new(run.plan.seed ^ (nth as u64).rotate_left(32));
        let rng = Rng::new(seeds.any());
        let (chosen, responses) = (Vec::new(), Vec::new());
        Self { run, nth, client, rng, chosen, responses, pause: Self::FIRST_PAUSE }
    }

    /// Sends requests until the end of the run.
    pub(crate) async fn drive(mut self) {
        match self.run.plan.load {
            LoadModel::Closed => self.drive_closed().await,
            LoadModel::Open(rate) => self.drive_open(rate).await,
        }
    }

    async fn drive_closed(&mut self) {
        let mut due = vec![Micros::ZERO; self.run.plan.pipeline as usize];
        loop {
            let now = now();
            if now >= self.run.end() {
                return;
            }
            due.fill(now);
            self.send_due(&due).await;
        }
    }

    /// Each of n workers sends every n-th request of the schedule.
    async fn drive_open(&mut self, rate: RequestRate) {
        let (run, step) = (self.run.clone(), self.run.wakes.len() as u64);
        let due_at = |nth: u64| run.begin.saturating_add(rate.due(nth));
        let first = rate.due_before(run.measured_from.saturating_sub(run.begin));
        let skip_warmup = |nth: u64| nth + first.saturating_sub(nth).div_ceil(step) * step;
        let (mut next, mut due) = (self.nth as u64, Vec::new());
        loop {
            let (now, end) = (now(), run.end());
            if now >= run.measured_from {
                // A backlog of the warm-up must not delay measured requests.
                next = skip_warmup(next);
            }
            if due_at(next) >= end {
                return;
            }
            if now < due_at(next) {
                run.wakes[self.nth].notified().await;
                continue;
            }
            if now >= end.saturating_add(GRACE) {
                self.drop_overdue(rate, skip_warmup(next), now);
                return;
            }
            due.clear();
            while due.len() < run.plan.pipeline as usize
                && due_at(next) <= now
                && due_at(next) < end
            {
                due.push(due_at(next));
                next += step;
            }
            self.send_due(&due).await;
        }
    }

    /// Counts the requests from `next` on that were due before the end as unsent.
    fn drop_overdue(&self, rate: RequestRate, next: u64, now: Micros) {
        let (run, step) = (&self.run, self.run.wakes.len() as u64);
        let until = rate.due_before(run.end().saturating_sub(run.begin));
        let count = until.saturating_sub(next).div_ceil(step);
        let due_at = |nth: u64| run.begin.saturating_add(rate.due(next + nth * step));
        let waited = |nth: u64| now.saturating_sub(due_at(nth));
        self.record(|measured| measured.add_unsent(count, waited));
    }

    /// Sends one request per due time and records the results.
    async fn send_due(&mut self, due: &[Micros]) {
        self.chosen.clear();
        self.chosen.extend(due.iter().map(|_| self.run.keys.draw(&mut self.rng)));
        self.responses.clear();
        let (target, timeout) = (&*self.run.target, self.run.plan.timeout);
        let deadline = target.deadline(timeout);
        let sent = now();
        let exchange = send(&mut self.client, target, &self.chosen, &mut self.responses);
        let failed = match tokio::time::timeout(deadline, exchange).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(timeout_error(timeout)),
        };
        let done = now();
        if let Some(error) = &failed {
            self.client = None;
            self.responses.resize(due.len(), BenchResponse::Error(error.clone()));
        }
        let responses = std::mem::take(&mut self.responses);
        self.record(|measured| {
            for (due, response) in due.iter().copied().zip(&responses) {
                match due < self.run.measured_from {
                    true => measured.warmup += 1,
                    false => measured.add(RequestTimes { due, sent, done }, response.clone()),
                }
            }
        });
        self.responses = responses;
        match failed {
            Some(_) => self.back_off(done).await,
            None => self.pause = Self::FIRST_PAUSE,
        }
    }

    fn record(&self, add: impl FnOnce(&mut Measurements)) {
        let shards = &self.run.measurements;
        add(&mut lock(&shards[self.nth % shards.len()]));
    }

    /// Waits before the next attempt, doubling the wait up to [`Worker::MAX_PAUSE`].
    async fn back_off(&mut self, now: Micros) {
        let until = match self.run.plan.load {
            LoadModel::Closed => self.run.end(),
            LoadModel::Open(_) => self.run.end().saturating_add(GRACE),
        };
        tokio::time::sleep(self.pause.min(until.saturating_sub(now)).into()).await;
        self.pause = self.pause.saturating_add(self.pause).min(Self::MAX_PAUSE);
    }
}

/// Checks these keys, over a new connection if there is none.
pub(crate) async fn send(
    client: &mut Option<BenchClient>,
    target: &BenchTarget,
    keys: &[u32],
    responses: &mut Vec<BenchResponse>,
) -> Result<(), RequestError> {
    let client = match client.take().filter(|client| !client.is_closed()) {
        Some(present) => client.insert(present),
        None => client.insert(target.connect().await?),
    };
    client.check(keys, responses).await
}

pub(crate) fn timeout_error(timeout: Micros) -> RequestError {
    RequestError::new("timeout", format_args!("no response within {timeout}"))
}
