//! What a policy is read from: files and variables.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Where files and the values of variables come from.
pub trait Surroundings {
    /// The bytes of a file, at most `most` and one more, to tell that there are more.
    fn read(&self, path: &Path, most: usize) -> io::Result<Vec<u8>>;

    /// What a folder holds, in no order.
    fn list(&self, _folder: &Path) -> io::Result<Vec<Item>> {
        Err(io::Error::other("no folders are read here"))
    }

    /// The same for all names of one file.
    fn identity(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }

    /// The value of a variable, if it is set.
    fn variable(&self, name: &str) -> Option<OsString>;
}

/// Something in a folder.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Item {
    /// Its path, beginning with that of the folder.
    pub path: PathBuf,
    /// What it is.
    pub kind: ItemKind,
}

/// What something in a folder is, or what the symlink leads to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ItemKind {
    /// A file, or a symlink that leads nowhere: reading it tells.
    File,
    /// A folder.
    Folder,
    /// A pipe or a device, which could be read for ever.
    Other,
}

/// The files and the environment of this process.
#[derive(Clone, Copy, Default, Debug)]
pub struct Machine;

impl Surroundings for Machine {
    fn read(&self, path: &Path, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(most as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Item>> {
        let item = |path: PathBuf| {
            let kind = match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => ItemKind::Folder,
                Ok(metadata) if !metadata.is_file() => ItemKind::Other,
                _ => ItemKind::File,
            };
            Item { path, kind }
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

/// No files and no variables: for text whose writer must not learn about this machine.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sealed;

impl Surroundings for Sealed {
    fn read(&self, _: &Path, _: usize) -> io::Result<Vec<u8>> {
        Err(io::Error::other("no other files are read here"))
    }

    fn variable(&self, _: &str) -> Option<OsString> {
        None
    }
}
