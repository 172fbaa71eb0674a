//! What a policy is read from: files and variables.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Where files and the values of variables come from.
pub trait Surroundings {
    /// The bytes of a file, at most `most` and one more, to tell that there are more.
    fn read(&self, path: &Path, most: usize) -> io::Result<Vec<u8>>;

    /// The same for all names of one file.
    fn identity(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }

    /// The value of a variable, if it is set.
    fn variable(&self, name: &str) -> Option<OsString>;
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
