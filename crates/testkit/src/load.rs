//! Tasks that check continuously, the log of their results, and figures about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use tidegate::{EngineError, Limiter};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::engine::TEST_SECRET;
use crate::ledger::ObservedResult;
use crate::timing::HANG;

/// One call as its caller saw it.
#[derive(Clone, Debug)]
pub struct LoadEntry {
    pub subject: usize,
    /// Index of the limiter.
    pub limiter: usize,
    pub start: Instant,
    pub end: Instant,
    pub result: ObservedResult,
}

impl LoadEntry {
    pub fn is_decision(&self) -> bool {
        self.result.is_decision()
    }
}

/// A refusal counts as not charged.
pub fn observed(result: Result<bool, EngineError>) -> ObservedResult {
    match result {
        Ok(true) => ObservedResult::Allow,
        Ok(false) => ObservedResult::Deny,
        Err(EngineError::Ambiguous(error)) => ObservedResult::MaybeCharged(error.to_string()),
        Err(error) => ObservedResult::NotCharged(error.to_string()),
    }
}

/// One task per subject, which checks with every limiter in turn.
pub struct BackgroundLoad {
    tasks: JoinSet<Vec<LoadEntry>>,
    stopped: Arc<AtomicBool>,
}

impl BackgroundLoad {
    pub fn start(limiters: &[Limiter], subjects: &[String], pause: Duration) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for (subject, name) in subjects.iter().cloned().enumerate() {
            let (limiters, stopped) = (limiters.to_vec(), Arc::clone(&stopped));
            tasks.spawn(async move {
                let mut log = Vec::new();
                while !stopped.load(Ordering::Relaxed) {
                    let mut decided = true;
                    for (index, limiter) in limiters.iter().enumerate() {
                        let start = Instant::now();
                        let allowed = limiter.check(&name).await.map(|decision| decision.allowed());
                        let (end, result) = (Instant::now(), observed(allowed));
                        log.push(LoadEntry { subject, limiter: index, start, end, result });
                        decided &= log[log.len() - 1].is_decision();
                    }
                    // Retry soon after an error.
                    sleep(if decided { pause } else { Duration::from_millis(2) }).await;
                }
                log
            });
        }
        Self { tasks, stopped }
    }

    /// Stops the tasks and returns their log. Panics if a task is stuck.
    pub async fn stop(self) -> Vec<LoadEntry> {
        self.stopped.store(true, Ordering::Relaxed);
        let logs = timeout(HANG, self.tasks.join_all()).await;
        logs.expect("a task is stuck").concat()
    }
}

/// Number of entries for which the condition holds.
pub fn count(log: &[LoadEntry], condition: impl Fn(&LoadEntry) -> bool) -> u64 {
    log.iter().filter(|entry| condition(entry)).count() as u64
}

/// Counts of the errors, grouped by their texts without digits.
pub fn errors(log: &[LoadEntry]) -> String {
    let mut kinds = std::collections::BTreeMap::<String, u64>::new();
    for entry in log {
        if let Some(why) = entry.result.error() {
            let why: String = why.chars().filter(|c| !c.is_ascii_digit()).take(90).collect();
            *kinds.entry(why).or_default() += 1;
        }
    }
    kinds.iter().map(|(why, count)| format!("\n    {count} x {why}")).collect()
}

/// p50, p99 and the maximum.
pub fn quantiles(spans: &mut [Duration]) -> [Duration; 3] {
    spans.sort_unstable();
    let at = |per_cent: usize| {
        let place = (spans.len() * per_cent).div_ceil(100).clamp(1, spans.len().max(1)) - 1;
        spans.get(place).copied().unwrap_or_default()
    };
    [at(50), at(99), at(100)]
}

/// Hash tag of a subject's keys: the text between the braces.
pub fn hash_tag(subject: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(TEST_SECRET.as_bytes()).unwrap();
    mac.update(&(subject.len() as u64).to_be_bytes());
    mac.update(subject.as_bytes());
    mac.finalize().into_bytes()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn is_long_run() -> bool {
    std::env::var_os("TIDEGATE_LONG").is_some_and(|long| long == "1")
}
