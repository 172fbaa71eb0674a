//! Tests of the source tree itself: who imports whom, what types are called, how long functions
//! are, how texts are written in both languages, where links lead.

#![expect(clippy::unwrap_used, reason = "a test")]

mod chinese;
mod functions;
mod imports;
mod links;
mod modules;
mod names;
mod prose;

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below a folder, in a stable order, build output and generated code left out.
fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            let is_hidden = name.starts_with('.') && name != ".github";
            if !matches!(name, "target" | "proto") && !is_hidden {
                found.extend(files(&path, extensions));
            }
        } else if extensions
            .iter()
            .any(|extension| path.extension().is_some_and(|e| e == *extension))
        {
            found.push(path);
        }
    }
    found
}

/// The folders of `crates/`, with their names.
fn crates() -> Vec<(String, PathBuf)> {
    let mut crates: Vec<_> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .collect();
    crates.sort();
    crates
}
