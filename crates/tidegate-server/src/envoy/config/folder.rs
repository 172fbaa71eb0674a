//! Which files of a folder are read.
//!
//! All that end in `.yaml` or `.yml`, in folders below too, in the order of their paths. What
//! begins with a dot is left alone: that is where Kubernetes keeps the files to which the visible
//! names are symlinks, and they would be read twice.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::EnvoyConfig;
use crate::config::{Item, ItemKind, Problem, Surroundings};

/// The files of a folder.
#[derive(Default, Debug)]
pub(super) struct Files {
    pub(super) paths: Vec<PathBuf>,
    pub(super) wrong: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
    /// Folders that have been looked at, so that a symlink to one above does not lead round and
    /// round.
    seen: HashSet<PathBuf>,
}

impl Files {
    pub(super) fn of(folder: &Path, surroundings: &dyn Surroundings) -> Self {
        let mut files = Self::default();
        files.look(folder, 0, surroundings);
        if files.paths.is_empty() && files.wrong.is_empty() {
            let message = "no .yaml files; nothing is limited";
            files.warnings.push(warning(folder, message));
        }
        files
    }

    fn look(&mut self, folder: &Path, depth: usize, surroundings: &dyn Surroundings) {
        if depth > EnvoyConfig::MAX_FOLDERS {
            let message = format!("more than {} folders deep", EnvoyConfig::MAX_FOLDERS);
            self.wrong.push(problem(folder, message));
            return;
        }
        if !self.seen.insert(surroundings.identity(folder)) {
            return;
        }
        let mut items = match surroundings.list(folder) {
            Ok(items) => items,
            Err(error) => {
                self.wrong.push(problem(folder, format!("cannot be read: {error}")));
                return;
            }
        };
        items.sort_by(|a, b| a.path.cmp(&b.path));
        for Item { path, kind } in items {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with('.') {
                continue;
            }
            match kind {
                ItemKind::Folder => self.look(&path, depth + 1, surroundings),
                ItemKind::File if self.paths.len() == EnvoyConfig::MAX_FILES => {
                    let message = format!("more than {} files; use fewer", EnvoyConfig::MAX_FILES);
                    self.wrong.push(problem(folder, message));
                    return;
                }
                ItemKind::File if name.ends_with(".yaml") || name.ends_with(".yml") => {
                    self.paths.push(path);
                }
                ItemKind::File | ItemKind::Other if self.warnings.len() < MOST_WARNINGS => {
                    let message = "not read: only files that end in .yaml or .yml are";
                    self.warnings.push(warning(&path, message));
                }
                ItemKind::File | ItemKind::Other => {}
            }
        }
    }
}

/// Nobody reads more of them.
const MOST_WARNINGS: usize = 20;

pub(super) fn problem(path: &Path, message: impl Into<String>) -> Problem {
    Problem::of_file(&path.display().to_string(), message.into())
}

fn warning(path: &Path, message: &str) -> Problem {
    problem(path, format!("warning: {message}"))
}
