//! Log of every decision as its caller saw it. It is a file, so that a long run needs no more
//! memory than a short one.

use std::env;
use std::fs::{self, File};
use std::io::{BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::{Decision, EngineError, Source};
use tokio::time::Instant;

/// One call as its caller saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LoggedCall {
    /// Microseconds since the start of the log. The decision was made between `begun` and `ended`.
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    pub(crate) key: u32,
    pub(crate) cost: u32,
    /// Number of the client.
    pub(crate) client: u8,
    pub(crate) result: CallResult,
}

/// Result of a call as its caller saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallResult {
    Allow(Source),
    Deny(Source),
    /// No decision, nothing charged.
    NotCharged,
    /// No decision, maybe charged.
    MaybeCharged,
    Refused,
}

impl CallResult {
    pub(crate) fn of(result: &Result<Decision, EngineError>) -> Self {
        match result {
            Ok(decision) if decision.allowed() => Self::Allow(decision.source),
            Ok(decision) => Self::Deny(decision.source),
            Err(EngineError::Unavailable(_)) => Self::NotCharged,
            Err(EngineError::Ambiguous(_)) => Self::MaybeCharged,
            Err(_) => Self::Refused,
        }
    }

    /// Source of the decision; `None` without one.
    pub(crate) fn source(self) -> Option<Source> {
        match self {
            Self::Allow(source) | Self::Deny(source) => Some(source),
            _ => None,
        }
    }
}

impl LoggedCall {
    pub(crate) fn took(&self) -> u64 {
        self.ended - self.begun
    }

    pub(crate) fn is_from(&self, source: Source) -> bool {
        self.result.source() == Some(source)
    }

    fn bytes(&self) -> [u8; Self::LEN] {
        let (kind, source) = match self.result {
            CallResult::Allow(source) => (0, source),
            CallResult::Deny(source) => (1, source),
            CallResult::NotCharged => (2, SOURCES[0]),
            CallResult::MaybeCharged => (3, SOURCES[0]),
            CallResult::Refused => (4, SOURCES[0]),
        };
        let place = SOURCES.iter().position(|known| *known == source).unwrap();
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.begun.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.ended.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.key.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.cost.to_le_bytes());
        bytes[24..27].copy_from_slice(&[self.client, kind, u8::try_from(place).unwrap()]);
        bytes
    }

    fn read(bytes: &[u8]) -> Self {
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let source = SOURCES[usize::from(bytes[26])];
        let result = match bytes[25] {
            0 => CallResult::Allow(source),
            1 => CallResult::Deny(source),
            2 => CallResult::NotCharged,
            3 => CallResult::MaybeCharged,
            _ => CallResult::Refused,
        };
        let (begun, ended, key, cost) = (long(0), long(8), short(16), short(20));
        Self { begun, ended, key, cost, client: bytes[24], result }
    }

    const LEN: usize = 28;
}

pub(crate) const SOURCES: [Source; 6] = [
    Source::Memory,
    Source::Redis,
    Source::Lease,
    Source::DenyCache,
    Source::Fallback,
    Source::Policy,
];

/// Clones write to the same file.
#[derive(Clone)]
pub(crate) struct CallLog(Arc<Inner>);

struct Inner {
    zero: Instant,
    file: Mutex<BufWriter<File>>,
}

impl CallLog {
    /// An empty log. The file is unlinked, so nothing remains on disk however the process ends.
    pub(crate) fn new() -> Self {
        Self::since(Instant::now())
    }

    /// Another log with the same start.
    pub(crate) fn sibling(&self) -> Self {
        Self::since(self.0.zero)
    }

    fn since(zero: Instant) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = directory().join(format!("tidegate-chaos-{}-{count}", process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let file = Mutex::new(BufWriter::with_capacity(1 << 16, file));
        Self(Arc::new(Inner { zero, file }))
    }

    /// Microseconds since the start.
    pub(crate) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    pub(crate) fn at(&self, instant: Instant) -> u64 {
        micros(instant.saturating_duration_since(self.0.zero))
    }

    pub(crate) fn write(&self, entry: &LoggedCall) {
        self.0.file.lock().unwrap().write_all(&entry.bytes()).unwrap();
    }

    /// All calls so far, roughly in the order in which they ended.
    pub(crate) fn read(&self) -> Vec<LoggedCall> {
        let mut file = self.0.file.lock().unwrap();
        file.flush().unwrap();
        let file = file.get_mut();
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes.chunks_exact(LoggedCall::LEN).map(LoggedCall::read).collect()
    }
}

pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap()
}

/// In memory where possible: a busy disk must not affect the figures.
fn directory() -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared.to_owned() } else { env::temp_dir() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_calls_are_read_back() {
        let log = CallLog::new();
        let result = SOURCES.into_iter().flat_map(|s| [CallResult::Allow(s), CallResult::Deny(s)]);
        let result =
            result.chain([CallResult::NotCharged, CallResult::MaybeCharged, CallResult::Refused]);
        let entry = |(nth, result)| {
            let key = u32::MAX - nth;
            LoggedCall {
                begun: u64::MAX - 9,
                ended: u64::MAX - 3,
                key,
                cost: 7 + nth,
                client: 9,
                result,
            }
        };
        let entries: Vec<LoggedCall> = (0..).zip(result).map(entry).collect();
        for (nth, entry) in entries.iter().enumerate() {
            log.write(entry);
            assert_eq!(log.read(), entries[..=nth]);
        }
    }
}
