//! Files that include files: names in messages, and checks for cycles, depth and count.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::errors::redact;
use crate::errors::sources::{SourceFiles, SourceSpan, escaped};
use crate::parse::tree::{self, MapEntry, Scalar, Visibility};

/// Upper bound of the files of one policy.
pub(crate) const MAX_FILES: usize = 100;
/// Upper bound of the nesting of includes.
pub(crate) const MAX_INCLUDES: usize = 8;
/// Upper bound of the characters of a file name in a message.
const MAX_SHOWN: usize = 200;

/// A file and the chain of files that include it.
pub(crate) struct IncludeFrame<'f> {
    pub(crate) path: &'f Path,
    pub(crate) name: &'f str,
    pub(crate) identity: PathBuf,
    /// The file that includes it; `None` for the main file.
    pub(crate) from: Option<&'f IncludeFrame<'f>>,
    /// Defaults that its rules inherit from the files above it.
    pub(crate) defaults: Vec<MapEntry>,
}

impl IncludeFrame<'_> {
    /// The files from the main file to this one.
    fn chain(&self) -> Vec<&Self> {
        let mut chain = vec![self];
        while let Some(from) = chain.last().and_then(|frame| frame.from) {
            chain.push(from);
        }
        chain.reverse();
        chain
    }

    /// Why this file must not include the file with `identity`. `included` has the files included
    /// so far and where; `files` is the number of files read so far.
    pub(crate) fn include_error(
        &self,
        identity: &Path,
        name: &str,
        included: &HashMap<PathBuf, Option<SourceSpan>>,
        files: usize,
        sources: &SourceFiles,
    ) -> Option<String> {
        let chain = self.chain();
        let names: Vec<String> =
            chain.iter().map(|frame| frame.name).chain([name]).map(escaped).collect();
        let route = names.join(" -> ");
        if chain.iter().any(|frame| frame.identity == identity) {
            return Some(format!("include cycle: {route}"));
        }
        if let Some(first) = included.get(identity) {
            let first = first.and_then(|first| sources.place(first));
            let first = first.map_or(String::new(), |first| format!(", first at {first}"));
            return Some(format!("file included twice{first}; remove one"));
        }
        if chain.len() > MAX_INCLUDES {
            return Some(format!("includes nested more than {MAX_INCLUDES} deep: {route}"));
        }
        if files >= MAX_FILES {
            return Some(format!("more than {MAX_FILES} files: {route}"));
        }
        None
    }
}

/// The name of an included file in messages. Values of variables are not shown, so a path with
/// variables is shown as it is in the file.
pub(crate) fn shown_name(
    path: &Path,
    scalar: &Scalar,
    span: SourceSpan,
    sources: &SourceFiles,
) -> String {
    let name = match scalar.shown {
        Visibility::Yes => path.display().to_string(),
        Visibility::Secret => redact::MASK.into(),
        Visibility::Filled => {
            let written = sources.text(span.source).get(span.start..span.end).unwrap_or("");
            match tree::shown(written) {
                Visibility::Yes => written.trim_matches(['"', '\'']).to_string(),
                Visibility::Filled | Visibility::Secret => redact::MASK.into(),
            }
        }
    };
    match name.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name,
    }
}
