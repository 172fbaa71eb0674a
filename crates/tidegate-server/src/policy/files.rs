//! Versions of files: what was read, and whether it has changed since.
//!
//! A version describes a file just before it was read, so that a change during the read is found by
//! the next comparison.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tidegate::{Clock, SystemClock};
use tidegate_config::{DirEntry, Environment, OsEnvironment, PolicyLoader};

/// The files that were read, each with its version just before that.
#[derive(Default, Debug)]
pub struct FileVersions(Vec<(PathBuf, FileVersion)>);

/// The current state of the files, after at least one of them has changed.
#[derive(PartialEq, Eq, Debug)]
pub struct FileChange(Vec<Option<FileStamp>>);

impl FileVersions {
    /// Compares the files with the versions that were read; `None` if none has changed.
    pub fn next_change(&mut self) -> Option<FileChange> {
        let stamps = self.0.iter().map(|(path, _)| FileStamp::of(path)).collect();
        let changed = self.0.iter_mut().any(|(path, version)| version.has_changed(path));
        changed.then_some(FileChange(stamps))
    }
}

/// Reads files and records the version of each.
#[derive(Default, Debug)]
pub struct RecordingReader {
    versions: RefCell<Vec<(PathBuf, FileVersion)>>,
    reads_pipes: bool,
}

impl RecordingReader {
    /// Also reads pipes, and waits for their end. A pipe can be read once, so no version of it is
    /// recorded. Any other reader refuses what is not a regular file.
    pub fn with_pipes() -> Self {
        Self { reads_pipes: true, ..Self::default() }
    }

    /// The versions of the files that were read.
    pub fn into_versions(self) -> FileVersions {
        FileVersions(self.versions.into_inner())
    }
}

impl Environment for RecordingReader {
    fn read(&self, path: &Path, limit: usize) -> io::Result<Vec<u8>> {
        let is_pipe = || fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
        if self.reads_pipes && is_pipe() {
            return OsEnvironment.read(path, limit);
        }
        let (version, bytes) = FileVersion::new(path, limit);
        self.versions.borrow_mut().push((path.to_path_buf(), version));
        bytes
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<DirEntry>> {
        let (version, items) = FileVersion::of_folder(folder);
        self.versions.borrow_mut().push((folder.to_path_buf(), version));
        items
    }

    fn identity(&self, path: &Path) -> PathBuf {
        OsEnvironment.identity(path)
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        OsEnvironment.variable(name)
    }
}

/// One version of a file, or of the names in a folder.
#[derive(Debug)]
struct FileVersion {
    stamp: Option<FileStamp>,
    /// A hash of the content, while the stamp is too recent to be sufficient.
    content: Option<u64>,
}

impl FileVersion {
    fn new(path: &Path, limit: usize) -> (Self, io::Result<Vec<u8>>) {
        let stamp = FileStamp::of(path);
        let bytes = read_regular_file(path, limit);
        let is_fresh = stamp.as_ref().is_some_and(FileStamp::is_fresh);
        let content = hash(&bytes).filter(|_| is_fresh);
        (Self { stamp, content }, bytes)
    }

    fn of_folder(path: &Path) -> (Self, io::Result<Vec<DirEntry>>) {
        let stamp = FileStamp::of(path);
        let items = OsEnvironment.list(path).map(|mut items| {
            items.sort();
            items
        });
        let is_fresh = stamp.as_ref().is_some_and(FileStamp::is_fresh);
        let content = hash(&items).filter(|_| is_fresh);
        (Self { stamp, content }, items)
    }

    fn has_changed(&mut self, path: &Path) -> bool {
        if self.content.is_none() {
            return FileStamp::of(path) != self.stamp;
        }
        let (now, content) = if path.is_dir() {
            let (now, items) = Self::of_folder(path);
            (now, hash(&items))
        } else {
            let (now, bytes) = Self::new(path, PolicyLoader::MAX_BYTES);
            (now, hash(&bytes))
        };
        let changed = now.stamp != self.stamp || content != self.content;
        if !changed {
            // `None` once the file is no longer fresh: from then on the stamp is enough.
            self.content = now.content;
        }
        changed
    }
}

/// Reads at most `limit` + 1 bytes. Never blocks: a pipe without a writer is opened, and refused.
fn read_regular_file(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file; a pipe is read at the start only"));
    }
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn hash(content: &io::Result<impl Hash>) -> Option<u64> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    content.as_ref().ok().map(|content| hasher.hash_one(content))
}

/// Metadata that differs between versions of a file. The kernel sets `changed` (ctime), and no
/// program can set it back.
#[derive(PartialEq, Eq, Debug)]
struct FileStamp {
    modified: (i64, i64),
    changed: (i64, i64),
    len: u64,
    device: u64,
    inode: u64,
}

impl FileStamp {
    /// Follows symlinks, so that swapping one of them is a change.
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Self {
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            len: metadata.len(),
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    /// Whether the file changed within the last 3 s. File systems store times in steps of up to two
    /// seconds, so a second change within the same step has the same stamp.
    fn is_fresh(&self) -> bool {
        let now = i64::try_from(SystemClock.now().get() / 1_000_000).unwrap_or(i64::MAX);
        self.changed.0 >= now - 3
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn file(name: &str, text: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("tidegate-watch-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        path
    }

    fn read(path: &Path) -> FileVersions {
        let reader = RecordingReader::default();
        let _ = reader.read(path, PolicyLoader::MAX_BYTES);
        reader.into_versions()
    }

    #[test]
    fn another_text_of_the_same_length_at_the_same_instant_is_a_change() {
        let path = file("same", "5/s");
        let mut versions = read(&path);
        assert!(versions.next_change().is_none());
        fs::write(&path, "9/s").unwrap();
        // As if the clock of the file system had not advanced.
        versions.0[0].1.stamp = FileStamp::of(&path);
        assert!(versions.next_change().is_some());
        assert_eq!(
            versions.next_change(),
            versions.next_change(),
            "the change remains until the file is read"
        );
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_new_name_in_a_folder_at_the_same_instant_is_a_change() {
        let folder =
            std::env::temp_dir().join(format!("tidegate-watch-{}-folder", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let reader = RecordingReader::default();
        assert_eq!(reader.list(&folder).unwrap(), []);
        let mut versions = reader.into_versions();
        assert!(versions.next_change().is_none());
        fs::write(folder.join("a.yaml"), "").unwrap();
        versions.0[0].1.stamp = FileStamp::of(&folder);
        assert!(versions.next_change().is_some());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_is_not_fresh_is_compared_by_its_stamp() {
        let path = file("stable", "5/s");
        let mut versions = read(&path);
        versions.0[0].1.content = None;
        assert!(versions.next_change().is_none());
        let older = fs::metadata(&path).unwrap().modified().unwrap() - Duration::from_secs(60);
        fs::File::options().write(true).open(&path).unwrap().set_modified(older).unwrap();
        assert!(versions.next_change().is_some());
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_is_removed_or_created_has_changed() {
        let path = file("created", "5/s");
        let mut versions = read(&path);
        fs::remove_file(&path).unwrap();
        assert!(versions.next_change().is_some());
        let mut versions = read(&path);
        assert!(versions.next_change().is_none());
        fs::write(&path, "5/s").unwrap();
        assert!(versions.next_change().is_some());
        assert_eq!(versions.next_change(), versions.next_change(), "the file is stable");
        fs::write(&path, "50/s").unwrap();
        assert_ne!(versions.next_change(), {
            fs::write(&path, "500/s").unwrap();
            versions.next_change()
        });
        fs::remove_file(path).unwrap();
    }
}
