//! Where a log comes from.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

/// A file, or standard input.
#[derive(Debug)]
pub struct Source {
    name: String,
    path: Option<PathBuf>,
    progress: Progress,
}

/// How far a log has been read. Clones tell the same.
#[derive(Clone, Default, Debug)]
pub struct Progress {
    read: Arc<AtomicU64>,
    total: Option<u64>,
}

impl Progress {
    /// Bytes that were read of the file, packed if it is.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Bytes that there are, if that is known.
    pub fn total(&self) -> Option<u64> {
        self.total
    }
}

impl Source {
    /// The log of this name; `-` is standard input.
    pub fn new(name: &str) -> Self {
        let path = (name != "-").then(|| PathBuf::from(name));
        let metadata = path.as_ref().and_then(|path| path.metadata().ok());
        let total = metadata.filter(|file| file.is_file()).map(|file| file.len());
        let name = if path.is_some() { name } else { "standard input" };
        Self { name: name.into(), path, progress: Progress { total, ..Progress::default() } }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How far it has been read, from now on.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// What it says. A log that begins like one is unpacked, all its parts.
    pub(super) fn open(self) -> io::Result<Box<dyn Read>> {
        const BUFFER: usize = 64 << 10;
        let from: Box<dyn Read> = match &self.path {
            Some(path) => Box::new(File::open(path)?),
            None => Box::new(io::stdin()),
        };
        let mut counted =
            BufReader::with_capacity(BUFFER, Counted { from, read: self.progress.read });
        let beginning = counted.fill_buf()?;
        if beginning.starts_with(&[0x1f, 0x8b]) {
            return Ok(Box::new(MultiGzDecoder::new(counted)));
        }
        Ok(Box::new(counted))
    }
}

struct Counted {
    from: Box<dyn Read>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(into)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
