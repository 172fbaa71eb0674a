//! Finds the files of a directory.
//!
//! These are all files that end in `.yaml` or `.yml`, also in subdirectories, sorted by path. Names
//! that begin with a dot are skipped: Kubernetes mounts the files there and symlinks to them, so
//! they would be read twice.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::config::EnvoyConfig;
use crate::environment::{DirEntry, DirEntryKind, Environment};
use crate::errors::problem::Problem;

/// The files of a directory.
#[derive(Default, Debug)]
pub(crate) struct FolderFiles {
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) errors: Vec<Problem>,
    pub(crate) warnings: Vec<Problem>,
    /// Directories that have been listed, so that a symlink to a parent does not loop.
    seen: HashSet<PathBuf>,
}

impl FolderFiles {
    pub(crate) fn of(folder: &Path, environment: &dyn Environment) -> Self {
        let mut files = Self::default();
        files.collect(folder, 0, environment);
        if files.paths.is_empty() && files.errors.is_empty() {
            let message = "no .yaml files: nothing would be limited; add a file, or leave out \
                           --envoy-config";
            files.errors.push(problem(folder, message));
        }
        files
    }

    fn collect(&mut self, folder: &Path, depth: usize, environment: &dyn Environment) {
        if depth > EnvoyConfig::MAX_FOLDERS {
            let message = format!("directories nested more than {} deep", EnvoyConfig::MAX_FOLDERS);
            self.errors.push(problem(folder, message));
            return;
        }
        if !self.seen.insert(environment.identity(folder)) {
            return;
        }
        let mut items = match environment.list(folder) {
            Ok(items) => items,
            Err(error) => {
                self.errors.push(problem(folder, format!("cannot be read: {error}")));
                return;
            }
        };
        items.sort_by(|a, b| a.path.cmp(&b.path));
        for DirEntry { path, kind } in items {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with('.') {
                continue;
            }
            match kind {
                DirEntryKind::Folder => self.collect(&path, depth + 1, environment),
                DirEntryKind::File if self.paths.len() == EnvoyConfig::MAX_FILES => {
                    let message = format!("more than {} files; use fewer", EnvoyConfig::MAX_FILES);
                    self.errors.push(problem(folder, message));
                    return;
                }
                DirEntryKind::File if is_yaml(&name) => {
                    self.paths.push(path);
                }
                // In the place of a file, it would take the limits of the file away.
                DirEntryKind::Other if is_yaml(&name) => {
                    self.errors.push(problem(&path, "not a regular file"));
                }
                DirEntryKind::File | DirEntryKind::Other if self.warnings.len() < MAX_WARNINGS => {
                    let message = "skipped: only .yaml and .yml files are read";
                    self.warnings.push(warning(&path, message));
                }
                DirEntryKind::File | DirEntryKind::Other => {}
            }
        }
    }
}

fn is_yaml(name: &str) -> bool {
    name.ends_with(".yaml") || name.ends_with(".yml")
}

/// Upper bound of the warnings about skipped files.
const MAX_WARNINGS: usize = 20;

pub(crate) fn problem(path: &Path, message: impl Into<String>) -> Problem {
    Problem::of_file(&path.display().to_string(), message.into())
}

fn warning(path: &Path, message: &str) -> Problem {
    problem(path, format!("warning: {message}"))
}
