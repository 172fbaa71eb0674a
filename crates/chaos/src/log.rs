//! The raw log: every decision as its caller saw it, in a file, so that a long run needs no more memory
//! than a short one.

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
pub(crate) struct Entry {
    /// Microseconds since the log began. The decision fell in between.
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    pub(crate) key: u32,
    pub(crate) cost: u32,
    /// Which of several clients asked.
    pub(crate) client: u8,
    pub(crate) said: Said,
}

/// What the caller was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    Allow(Source),
    Deny(Source),
    /// No answer, nothing charged.
    Nothing,
    /// No answer, perhaps charged.
    Perhaps,
    Refused,
}

impl Said {
    pub(crate) fn of(answer: &Result<Decision, EngineError>) -> Self {
        match answer {
            Ok(decision) if decision.allowed() => Self::Allow(decision.source),
            Ok(decision) => Self::Deny(decision.source),
            Err(EngineError::Unavailable(_)) => Self::Nothing,
            Err(EngineError::Ambiguous(_)) => Self::Perhaps,
            Err(_) => Self::Refused,
        }
    }

    /// Where it was decided; none without a decision.
    pub(crate) fn source(self) -> Option<Source> {
        match self {
            Self::Allow(source) | Self::Deny(source) => Some(source),
            _ => None,
        }
    }
}

impl Entry {
    pub(crate) fn took(&self) -> u64 {
        self.ended - self.begun
    }

    pub(crate) fn is_from(&self, source: Source) -> bool {
        self.said.source() == Some(source)
    }

    fn bytes(&self) -> [u8; Self::LEN] {
        let (kind, source) = match self.said {
            Said::Allow(source) => (0, source),
            Said::Deny(source) => (1, source),
            Said::Nothing => (2, SOURCES[0]),
            Said::Perhaps => (3, SOURCES[0]),
            Said::Refused => (4, SOURCES[0]),
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
        let said = match bytes[25] {
            0 => Said::Allow(source),
            1 => Said::Deny(source),
            2 => Said::Nothing,
            3 => Said::Perhaps,
            _ => Said::Refused,
        };
        let (begun, ended, key, cost) = (long(0), long(8), short(16), short(20));
        Self { begun, ended, key, cost, client: bytes[24], said }
    }

    const LEN: usize = 28;
}

/// All there are.
pub(crate) const SOURCES: [Source; 6] = [
    Source::Memory,
    Source::Redis,
    Source::Lease,
    Source::DenyCache,
    Source::Fallback,
    Source::Policy,
];

/// Clones write into the same file.
#[derive(Clone)]
pub(crate) struct Log(Arc<Inner>);

struct Inner {
    zero: Instant,
    file: Mutex<BufWriter<File>>,
}

impl Log {
    /// An empty one. Nothing is left of it on the disk, however this process ends.
    pub(crate) fn new() -> Self {
        Self::since(Instant::now())
    }

    /// Another one, by the same clock.
    pub(crate) fn beside(&self) -> Self {
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

    /// Microseconds since it began.
    pub(crate) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    pub(crate) fn at(&self, instant: Instant) -> u64 {
        micros(instant.saturating_duration_since(self.0.zero))
    }

    pub(crate) fn write(&self, entry: &Entry) {
        self.0.file.lock().unwrap().write_all(&entry.bytes()).unwrap();
    }

    /// Everything so far, in the order in which it ended, nearly.
    pub(crate) fn read(&self) -> Vec<Entry> {
        let mut file = self.0.file.lock().unwrap();
        file.flush().unwrap();
        let file = file.get_mut();
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes.chunks_exact(Entry::LEN).map(Entry::read).collect()
    }
}

pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap()
}

/// In memory where there is such a place: a busy disk must not come into the figures.
fn directory() -> PathBuf {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { shared.to_owned() } else { env::temp_dir() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let log = Log::new();
        let said = SOURCES.into_iter().flat_map(|s| [Said::Allow(s), Said::Deny(s)]);
        let said = said.chain([Said::Nothing, Said::Perhaps, Said::Refused]);
        let entry = |(nth, said)| {
            let key = u32::MAX - nth;
            Entry { begun: u64::MAX - 9, ended: u64::MAX - 3, key, cost: 7 + nth, client: 9, said }
        };
        let entries: Vec<Entry> = (0..).zip(said).map(entry).collect();
        for (nth, entry) in entries.iter().enumerate() {
            log.write(entry);
            assert_eq!(log.read(), entries[..=nth]);
        }
    }
}
