//! Input: file or standard input, plain or gzip; counts the bytes read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

/// A file, or standard input.
#[derive(Debug)]
pub(crate) struct LogInput {
    name: String,
    path: Option<PathBuf>,
    progress: ReadProgress,
}

/// Bytes read so far. Clones share the count.
#[derive(Clone, Default, Debug)]
pub(crate) struct ReadProgress {
    read: Arc<AtomicU64>,
    total: Option<u64>,
}

impl ReadProgress {
    /// Compressed bytes, if the file is compressed.
    pub(crate) fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Size of the file; `None` for standard input.
    pub(crate) fn total(&self) -> Option<u64> {
        self.total
    }
}

impl LogInput {
    /// `-` is standard input.
    pub(crate) fn new(name: &str) -> Self {
        let path = (name != "-").then(|| PathBuf::from(name));
        let metadata = path.as_ref().and_then(|path| path.metadata().ok());
        let total = metadata.filter(|file| file.is_file()).map(|file| file.len());
        let name = if path.is_some() { name } else { "standard input" };
        Self {
            name: name.into(),
            path,
            progress: ReadProgress { total, ..ReadProgress::default() },
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn progress(&self) -> ReadProgress {
        self.progress.clone()
    }

    /// Opens the log. Gzip is detected by its magic number; all members are decompressed.
    pub(crate) fn open(self) -> io::Result<Box<dyn Read>> {
        const BUFFER: usize = 64 << 10;
        let from: Box<dyn Read> = match &self.path {
            Some(path) => Box::new(File::open(path)?),
            None => Box::new(io::stdin()),
        };
        let mut counted =
            BufReader::with_capacity(BUFFER, CountingRead { from, read: self.progress.read });
        let beginning = counted.fill_buf()?;
        if beginning.starts_with(&[0x1f, 0x8b]) {
            return Ok(Box::new(MultiGzDecoder::new(counted)));
        }
        Ok(Box::new(counted))
    }
}

struct CountingRead {
    from: Box<dyn Read>,
    read: Arc<AtomicU64>,
}

impl Read for CountingRead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(into)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
