//! Files that include files.

use std::path::{Path, PathBuf};

use super::Config;
use super::load::{Loader, TOO_LONG};
use super::mask;
use super::problem::Found;
use super::source::escaped;
use super::tree::{self, Entry, Kind, Node, Shown};

/// A file among those that include it.
pub(super) struct Frame<'f> {
    pub(super) path: &'f Path,
    pub(super) name: &'f str,
    pub(super) identity: PathBuf,
    /// The file that includes it; nothing for the main one.
    pub(super) from: Option<&'f Frame<'f>>,
    /// What its rules inherit from the files around it.
    pub(super) defaults: Vec<Entry>,
}

impl Frame<'_> {
    /// The files from the main one to this.
    fn chain(&self) -> Vec<&Self> {
        let mut chain = vec![self];
        while let Some(from) = chain.last().and_then(|frame| frame.from) {
            chain.push(from);
        }
        chain.reverse();
        chain
    }
}

const MOST_SHOWN: usize = 200;

impl Loader<'_> {
    /// Reads a file that another includes.
    pub(super) fn include(&mut self, frame: &Frame<'_>, item: &Node, written: &str) {
        let Kind::Scalar(scalar) = &item.kind else { return };
        let path = frame.path.parent().unwrap_or(Path::new("")).join(written);
        // The value of a variable is not printed, so the file goes by what is written.
        let name = match scalar.shown {
            Shown::Yes => path.display().to_string(),
            Shown::Secret => mask::MASK.into(),
            Shown::Filled => {
                let source = self.sources.text(item.span.source);
                let written = source.get(item.span.start..item.span.end).unwrap_or("");
                match tree::shown(written) {
                    Shown::Yes => written.trim_matches(['"', '\'']).to_string(),
                    Shown::Filled | Shown::Secret => mask::MASK.into(),
                }
            }
        };
        let name = brief(name);
        let identity = self.surroundings.identity(&path);
        if let Some(message) = self.include_fault(frame, &identity, &name) {
            self.found.push(Found::new(item.span, "include", message));
            return;
        }
        self.included.insert(identity.clone(), Some(item.span));
        let bytes = match self.surroundings.read(&path, Config::MAX_BYTES) {
            Ok(bytes) if bytes.len() > Config::MAX_BYTES => Err(TOO_LONG.to_string()),
            Ok(bytes) => Ok(bytes),
            Err(error) => Err(format!("cannot be read: {error}")),
        };
        match bytes {
            Ok(bytes) => {
                let defaults = frame.defaults.clone();
                let next =
                    Frame { path: &path, name: &name, identity, from: Some(frame), defaults };
                self.file(&next, bytes);
            }
            Err(message) => {
                self.files.push(path);
                let message = format!("{} {message}", escaped(&name));
                self.found.push(Found::new(item.span, "include", message));
            }
        }
    }

    fn include_fault(&self, frame: &Frame<'_>, identity: &Path, name: &str) -> Option<String> {
        let chain = frame.chain();
        let names: Vec<String> =
            chain.iter().map(|frame| frame.name).chain([name]).map(escaped).collect();
        let route = names.join(" -> ");
        if chain.iter().any(|frame| frame.identity == identity) {
            return Some(format!("the file includes itself: {route}"));
        }
        if let Some(first) = self.included.get(identity) {
            let first = first.and_then(|first| self.sources.place(first));
            let first = first.map_or(String::new(), |first| format!(", first at {first}"));
            return Some(format!("the file is included twice{first}; remove one"));
        }
        if chain.len() > Config::MAX_INCLUDES {
            return Some(format!("more than {} files deep: {route}", Config::MAX_INCLUDES));
        }
        if self.files.len() >= Config::MAX_FILES {
            return Some(format!("more than {} files: {route}", Config::MAX_FILES));
        }
        None
    }
}

/// As long as a path commonly is, for a message.
fn brief(name: String) -> String {
    match name.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name,
    }
}
