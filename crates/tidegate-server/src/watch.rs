//! Reads the policy again when one of its files has changed.
//!
//! The files are looked at four times a second instead of being watched by the kernel: that works on
//! every file system, and no matter how a file is replaced. Kubernetes swaps a symlink above it,
//! editors rename a new file over it, and some file systems tell nobody.
//!
//! A file that somebody is writing is left alone until it looks the same twice: half of a policy, or
//! nothing yet, may be a policy too. What is compared is how a file was just before it was read, so
//! that a change while it was being read is found the next time.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate::{Clock, SystemClock};

use crate::config::{Config, Item, Machine, Surroundings};
use crate::drain::Drain;
use crate::policies::Policies;

/// How often the files are looked at.
pub const INTERVAL: Duration = Duration::from_millis(250);

/// Reads the policy again on change, until the server drains.
pub async fn watch(policies: Arc<Policies>, mut drain: Drain) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut before = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = drain.begun() => return,
        }
        let change = apart(&policies, Policies::change).await.flatten();
        if change.is_some() && change == before {
            reload(&policies).await;
            before = None;
        } else {
            before = change;
        }
    }
}

/// Reads the policy again.
pub async fn reload(policies: &Arc<Policies>) {
    // What went wrong is in the log and in health already.
    apart(policies, |policies| policies.reload().is_ok()).await;
}

/// Off the threads that answer: a disk can be slow.
async fn apart<T: Send + 'static>(
    policies: &Arc<Policies>,
    work: impl FnOnce(&Policies) -> T + Send + 'static,
) -> Option<T> {
    let policies = policies.clone();
    tokio::task::spawn_blocking(move || work(&policies)).await.ok()
}

/// The files of a policy, each as it was just before it was read.
#[derive(Default, Debug)]
pub struct Seen(Vec<(PathBuf, Sight)>);

/// How the files are now, if one of them is another than when it was read.
#[derive(PartialEq, Eq, Debug)]
pub struct Change(Vec<Option<Stamp>>);

impl Seen {
    /// Looks at the files again.
    pub fn change(&mut self) -> Option<Change> {
        let stamps = self.0.iter().map(|(path, _)| Stamp::of(path)).collect();
        let changed = self.0.iter_mut().any(|(path, sight)| sight.has_changed(path));
        changed.then_some(Change(stamps))
    }
}

/// Reads files, and keeps in mind what it saw.
#[derive(Default, Debug)]
pub struct Reader(RefCell<Vec<(PathBuf, Sight)>>);

impl Reader {
    /// What it saw.
    pub fn into_seen(self) -> Seen {
        Seen(self.0.into_inner())
    }
}

impl Surroundings for Reader {
    fn read(&self, path: &Path, most: usize) -> io::Result<Vec<u8>> {
        let (sight, bytes) = Sight::new(path, most);
        self.0.borrow_mut().push((path.to_path_buf(), sight));
        bytes
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Item>> {
        let (sight, items) = Sight::of_folder(folder);
        self.0.borrow_mut().push((folder.to_path_buf(), sight));
        items
    }

    fn identity(&self, path: &Path) -> PathBuf {
        Machine.identity(path)
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        Machine.variable(name)
    }
}

/// One look at a file, or at the names in a folder.
#[derive(Debug)]
struct Sight {
    stamp: Option<Stamp>,
    /// A hash of what was in it, as long as the stamp alone does not tell.
    content: Option<u64>,
}

impl Sight {
    fn new(path: &Path, most: usize) -> (Self, io::Result<Vec<u8>>) {
        let stamp = Stamp::of(path);
        let bytes = Machine.read(path, most);
        let is_fresh = stamp.as_ref().is_some_and(Stamp::is_fresh);
        let content = hash(&bytes).filter(|_| is_fresh);
        (Self { stamp, content }, bytes)
    }

    fn of_folder(path: &Path) -> (Self, io::Result<Vec<Item>>) {
        let stamp = Stamp::of(path);
        let items = Machine.list(path).map(|mut items| {
            items.sort();
            items
        });
        let is_fresh = stamp.as_ref().is_some_and(Stamp::is_fresh);
        let content = hash(&items).filter(|_| is_fresh);
        (Self { stamp, content }, items)
    }

    fn has_changed(&mut self, path: &Path) -> bool {
        if self.content.is_none() {
            return Stamp::of(path) != self.stamp;
        }
        let (now, content) = if path.is_dir() {
            let (now, items) = Self::of_folder(path);
            (now, hash(&items))
        } else {
            let (now, bytes) = Self::new(path, Config::MAX_BYTES);
            (now, hash(&bytes))
        };
        let changed = now.stamp != self.stamp || content != self.content;
        if !changed {
            // Once it is no longer fresh, the stamp will do.
            self.content = now.content;
        }
        changed
    }
}

fn hash(content: &io::Result<impl Hash>) -> Option<u64> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    content.as_ref().ok().map(|content| hasher.hash_one(content))
}

/// What tells one state of a file from another. The system sets the time of its last change, and
/// nobody can set it back.
#[derive(PartialEq, Eq, Debug)]
struct Stamp {
    modified: (i64, i64),
    changed: (i64, i64),
    len: u64,
    device: u64,
    inode: u64,
}

impl Stamp {
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

    /// Was it changed just now? File systems tell the time in steps of up to two seconds: another
    /// change within the same step would not show.
    fn is_fresh(&self) -> bool {
        let now = i64::try_from(SystemClock.now().get() / 1_000_000).unwrap_or(i64::MAX);
        self.changed.0 >= now - 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("tidegate-watch-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        path
    }

    fn read(path: &Path) -> Seen {
        let reader = Reader::default();
        let _ = reader.read(path, Config::MAX_BYTES);
        reader.into_seen()
    }

    #[test]
    fn another_text_of_the_same_length_at_the_same_instant_is_a_change() {
        let path = file("same", "5/s");
        let mut seen = read(&path);
        assert!(seen.change().is_none());
        fs::write(&path, "9/s").unwrap();
        // As if the clock of the file system had not moved on.
        seen.0[0].1.stamp = Stamp::of(&path);
        assert!(seen.change().is_some());
        assert_eq!(seen.change(), seen.change(), "and stays one until it is read");
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_name_that_comes_into_a_folder_at_the_same_instant_is_a_change() {
        let folder =
            std::env::temp_dir().join(format!("tidegate-watch-{}-folder", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let reader = Reader::default();
        assert_eq!(reader.list(&folder).unwrap(), []);
        let mut seen = reader.into_seen();
        assert!(seen.change().is_none());
        fs::write(folder.join("a.yaml"), "").unwrap();
        seen.0[0].1.stamp = Stamp::of(&folder);
        assert!(seen.change().is_some());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_has_rested_is_told_by_its_stamp() {
        let path = file("rested", "5/s");
        let mut seen = read(&path);
        seen.0[0].1.content = None;
        assert!(seen.change().is_none());
        let older = fs::metadata(&path).unwrap().modified().unwrap() - Duration::from_secs(60);
        fs::File::options().write(true).open(&path).unwrap().set_modified(older).unwrap();
        assert!(seen.change().is_some());
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_goes_or_comes_has_changed() {
        let path = file("comes", "5/s");
        let mut seen = read(&path);
        fs::remove_file(&path).unwrap();
        assert!(seen.change().is_some());
        let mut seen = read(&path);
        assert!(seen.change().is_none());
        fs::write(&path, "5/s").unwrap();
        assert!(seen.change().is_some());
        assert_eq!(seen.change(), seen.change(), "it rests");
        fs::write(&path, "50/s").unwrap();
        assert_ne!(seen.change(), {
            fs::write(&path, "500/s").unwrap();
            seen.change()
        });
        fs::remove_file(path).unwrap();
    }
}
