//! Tasks that ask without end, the raw log of what they were answered, and what can be said of it.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{Write as _, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use tidegate::{EngineError, Limiter};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// What every engine of these tests hashes subjects with.
pub(crate) const SECRET: &str = "the same for all tests";

/// One call as its caller saw it.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) subject: usize,
    /// Which of the limiters was asked.
    pub(crate) limiter: usize,
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    pub(crate) said: Said,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    Allow,
    Deny,
    /// Nothing was charged.
    Nothing(String),
    /// Perhaps it was.
    Perhaps(String),
}

impl Entry {
    pub(crate) fn is_good(&self) -> bool {
        matches!(self.said, Said::Allow | Said::Deny)
    }
}

impl Said {
    pub(crate) fn of(answer: Result<bool, EngineError>) -> Self {
        match answer {
            Ok(true) => Self::Allow,
            Ok(false) => Self::Deny,
            Err(EngineError::Ambiguous(why)) => Self::Perhaps(why.to_string()),
            Err(error) => Self::Nothing(error.to_string()),
        }
    }
}

/// A task for each subject, which asks every limiter in turn.
pub(crate) struct Traffic {
    tasks: JoinSet<Vec<Entry>>,
    over: Arc<AtomicBool>,
}

impl Traffic {
    pub(crate) fn begin(limiters: &[Limiter], subjects: &[String], pause: Duration) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for (subject, name) in subjects.iter().cloned().enumerate() {
            let (limiters, over) = (limiters.to_vec(), Arc::clone(&over));
            tasks.spawn(async move {
                let mut log = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let mut good = true;
                    for (limiter, asked) in limiters.iter().enumerate() {
                        let begun = Instant::now();
                        let answer = asked.check(&name).await.map(|decision| decision.allowed());
                        let (ended, said) = (Instant::now(), Said::of(answer));
                        log.push(Entry { subject, limiter, begun, ended, said });
                        good &= log[log.len() - 1].is_good();
                    }
                    // Whoever has no answer is in a hurry.
                    sleep(if good { pause } else { Duration::from_millis(2) }).await;
                }
                log
            });
        }
        Self { tasks, over }
    }

    /// What all of them saw. A task that is stuck fails the test.
    pub(crate) async fn end(self) -> Vec<Entry> {
        self.over.store(true, Ordering::Relaxed);
        let logs = timeout(Duration::from_secs(20), self.tasks.join_all()).await;
        logs.expect("a task is stuck").concat()
    }
}

/// How many of these there are in a log.
pub(crate) fn count(log: &[Entry], so: impl Fn(&Entry) -> bool) -> u64 {
    log.iter().filter(|entry| so(entry)).count() as u64
}

/// The errors, each with its number, without what differs from one to the next.
pub(crate) fn errors(log: &[Entry]) -> String {
    let mut kinds = std::collections::BTreeMap::<String, u64>::new();
    for entry in log {
        if let Said::Nothing(why) | Said::Perhaps(why) = &entry.said {
            let why: String = why.chars().filter(|c| !c.is_ascii_digit()).take(90).collect();
            *kinds.entry(why).or_default() += 1;
        }
    }
    kinds.iter().map(|(why, count)| format!("\n    {count} x {why}")).collect()
}

/// The median, the 99th of a hundred and the longest.
pub(crate) fn quantiles(spans: &mut [Duration]) -> [Duration; 3] {
    spans.sort_unstable();
    let at = |per_cent: usize| {
        let place = (spans.len() * per_cent).div_ceil(100).clamp(1, spans.len().max(1)) - 1;
        spans.get(place).copied().unwrap_or_default()
    };
    [at(50), at(99), at(100)]
}

/// Where everything about a subject lies: what stands between the braces.
pub(crate) fn tag(subject: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    mac.update(&(subject.len() as u64).to_be_bytes());
    mac.update(subject.as_bytes());
    mac.finalize().into_bytes()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Past the harness, which would swallow it.
pub(crate) fn say(line: &str) {
    writeln!(stderr().lock(), "{line}").unwrap();
}

pub(crate) fn long() -> bool {
    std::env::var_os("TIDEGATE_LONG").is_some_and(|long| long == "1")
}
