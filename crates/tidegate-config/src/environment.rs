//! Where files and variables come from.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Source of files and variables.
pub trait Environment {
    /// Reads a file up to `max_bytes` + 1 bytes; the extra byte shows that the file is longer.
    fn read(&self, path: &Path, max_bytes: usize) -> io::Result<Vec<u8>>;

    /// Lists a directory, in any order.
    fn list(&self, _folder: &Path) -> io::Result<Vec<DirEntry>> {
        Err(io::Error::other("directories cannot be read here"))
    }

    /// A path that is the same for all names of one file.
    fn identity(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }

    /// The value of a variable; `None` if it is not set.
    fn variable(&self, name: &str) -> Option<OsString>;
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DirEntry {
    /// Path of the entry, including that of the directory.
    pub path: PathBuf,
    /// Its type, after following symlinks.
    pub kind: DirEntryKind,
}

/// Type of a directory entry, or of the target of a symlink.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum DirEntryKind {
    /// A file, or a broken symlink, which fails when it is read.
    File,
    /// A directory.
    Folder,
    /// A pipe or a device; reading it might never end.
    Other,
}

/// The file system and the environment of this process.
#[derive(Clone, Copy, Default, Debug)]
pub struct OsEnvironment;

impl Environment for OsEnvironment {
    fn read(&self, path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<DirEntry>> {
        let item = |path: PathBuf| {
            let kind = match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => DirEntryKind::Folder,
                Ok(metadata) if !metadata.is_file() => DirEntryKind::Other,
                _ => DirEntryKind::File,
            };
            DirEntry { path, kind }
        };
        fs::read_dir(folder)?.map(|entry| entry.map(|entry| item(entry.path()))).collect()
    }

    fn identity(&self, path: &Path) -> PathBuf {
        path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }
}

/// No files and no variables, for untrusted text.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct IsolatedEnvironment;

impl Environment for IsolatedEnvironment {
    fn read(&self, _: &Path, _: usize) -> io::Result<Vec<u8>> {
        Err(io::Error::other("other files cannot be read here"))
    }

    fn variable(&self, _: &str) -> Option<OsString> {
        None
    }
}
