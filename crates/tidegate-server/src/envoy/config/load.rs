//! From files to domains.

use std::collections::{HashMap, HashSet};
use std::path::{Path as FilePath, PathBuf};

use super::domain::Domain;
use super::fields::Fields;
use super::folder::{Files, problem};
use super::inherit::{self, Inherited};
use super::name::Path;
use super::{EnvoyConfig, Options, SameDomain};
use crate::config::problem::{self as problems, Found};
use crate::config::source::{Sources, Span};
use crate::config::tree::Name;
use crate::config::{Problem, Problems, Surroundings, yaml};

/// Reads the files of a folder.
pub(super) fn folder(
    folder: &FilePath,
    options: &Options,
    surroundings: &dyn Surroundings,
) -> Result<EnvoyConfig, Problems> {
    let Files { paths, wrong, warnings, .. } = Files::of(folder, surroundings);
    let mut loader = Loader { unplaced: wrong, ..Loader::new(options) };
    for path in paths {
        match surroundings.read(&path, EnvoyConfig::MAX_BYTES) {
            Ok(bytes) => loader.file(&path.display().to_string(), bytes),
            Err(error) => {
                loader.unplaced.push(problem(&path, format!("cannot be read: {error}")));
            }
        }
        loader.files.push(path);
    }
    let mut config = loader.finish()?;
    config.warnings.splice(0..0, warnings);
    config.warnings.truncate(Problems::MAX);
    Ok(config)
}

/// Reads texts.
pub(super) fn texts<'t>(
    texts: impl IntoIterator<Item = (&'t str, &'t str)>,
    options: &Options,
) -> Result<EnvoyConfig, Problems> {
    let mut loader = Loader::new(options);
    for (name, text) in texts {
        loader.file(name, text.into());
        loader.files.push(name.into());
    }
    loader.finish()
}

pub(super) struct Loader<'o> {
    options: &'o Options,
    pub(super) sources: Sources,
    pub(super) notes: Notes,
    /// What is wrong with whole files.
    unplaced: Vec<Problem>,
    files: Vec<PathBuf>,
    bytes: usize,
    domains: HashMap<Box<str>, (Domain, Inherited, Span)>,
    /// The descriptors by their identity, and the rules by their name.
    pub(super) seen: HashMap<String, Span>,
    pub(super) names: HashMap<String, Span>,
    pub(super) descriptor_count: usize,
    pub(super) rule_count: usize,
    /// The names of limits in their domains, and those that are to be replaced.
    named: HashSet<(Box<str>, Box<str>)>,
    replaced: Vec<(Box<str>, Box<str>, Span)>,
}

/// What was found on the way.
#[derive(Default, Debug)]
pub(super) struct Notes {
    found: Vec<Found>,
    warnings: Vec<Found>,
}

/// When so much is wrong, no more is looked at.
const MOST_FOUND: usize = 10_000;
/// Nobody reads more warnings.
const MOST_WARNINGS: usize = 1_000;

impl Notes {
    /// Something that cannot be obeyed.
    pub(super) fn wrong(&mut self, span: Span, field: &str, message: impl Into<String>) {
        self.add(Found::new(span, field, message));
    }

    /// Something that can be obeyed, and is perhaps not what was meant.
    pub(super) fn odd(&mut self, span: Span, field: &str, message: impl Into<String>) {
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(Found::new(span, field, message));
        }
    }

    pub(super) fn add(&mut self, found: Found) {
        self.found.push(found);
    }

    pub(super) fn wrong_count(&self) -> usize {
        self.found.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.found.len() >= MOST_FOUND
    }
}

impl<'o> Loader<'o> {
    fn new(options: &'o Options) -> Self {
        Self {
            options,
            sources: Sources::default(),
            notes: Notes::default(),
            unplaced: Vec::new(),
            files: Vec::new(),
            bytes: 0,
            domains: HashMap::new(),
            seen: HashMap::new(),
            names: HashMap::new(),
            descriptor_count: 0,
            rule_count: 0,
            named: HashSet::new(),
            replaced: Vec::new(),
        }
    }

    /// Reads one file.
    fn file(&mut self, name: &str, bytes: Vec<u8>) {
        let before = self.bytes;
        self.bytes += bytes.len();
        let too_long = if bytes.len() > EnvoyConfig::MAX_BYTES {
            "longer than 1 MiB; split it"
        } else if self.bytes > EnvoyConfig::MAX_BYTES_IN_ALL {
            // Told once.
            if before > EnvoyConfig::MAX_BYTES_IN_ALL {
                return;
            }
            "with this file they are longer than 16 MiB in all; use fewer"
        } else {
            ""
        };
        if !too_long.is_empty() {
            self.unplaced.push(Problem::of_file(name, too_long.into()));
            return;
        }
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(_) => {
                let message = "not UTF-8; save the file as UTF-8";
                self.unplaced.push(Problem::of_file(name, message.into()));
                return;
            }
        };
        let source = self.sources.add(name, text);
        let before = self.notes.wrong_count();
        let root = yaml::parse(source, &mut self.sources, &mut self.notes.found);
        match root {
            Some(root) if !root.is_nothing() => {
                if let Some(fields) = Fields::of(&root, String::new(), &mut self.notes) {
                    self.root(&fields);
                }
            }
            _ if self.notes.wrong_count() == before => {
                let start = Span { source, start: 0, end: 0 };
                self.notes.wrong(start, "domain", "the file is empty; begin with domain:");
            }
            _ => {}
        }
    }

    fn root(&mut self, fields: &Fields<'_>) {
        let meant = fields
            .only(&[&["domain", "descriptors"], &inherit::FIELDS[..]].concat(), &mut self.notes);
        let inherited = Inherited::new(self.options.on_store_failure).with(fields, &mut self.notes);
        let items = fields.list("descriptors", &mut self.notes);
        let name = fields.text("domain", &mut self.notes);
        let Some(name) = name.filter(|name| !name.text.is_empty()) else {
            let is_missing = fields.entry("domain").is_none_or(|domain| domain.value.is_text());
            if is_missing && !meant.contains(&"domain") {
                let span = fields.name_span("domain").unwrap_or(fields.start);
                self.notes.wrong(span, "domain", "a file needs a domain; add one");
            }
            return;
        };
        let known = self.domains.remove(name.text);
        if let Some((_, others, first)) = &known {
            let place = self.sources.place(*first).map_or(String::new(), |at| at.to_string());
            let what = Name(name.text);
            let message = match self.options.same_domain {
                SameDomain::Refuse => format!(
                    "a second file for domain {what}, the first at {place}; put them together, or \
                     ask for merging"
                ),
                SameDomain::Merge if *others != inherited => format!(
                    "domain {what} has other {} at {place}; write the same in all its files",
                    inherit::FIELDS.join(", ")
                ),
                SameDomain::Merge => String::new(),
            };
            if !message.is_empty() {
                self.notes.wrong(name.span, "domain", message);
            }
        }
        let (mut domain, others, first) =
            known.unwrap_or_else(|| (Domain::new(name.text, inherited), inherited, name.span));
        let mut path = Path::new(name.text);
        let mut level = std::mem::take(&mut domain.level);
        self.descriptors(items, "descriptors", &mut path, inherited, &mut level);
        domain.level = level;
        self.domains.insert(name.text.into(), (domain, others, first));
    }

    /// Remembers the name of a limit, and those that it replaces.
    pub(super) fn references(
        &mut self,
        path: &Path,
        name: Option<&str>,
        replaces: &[(Box<str>, Span)],
    ) {
        let domain = || Box::<str>::from(&*path.domain);
        self.named.extend(name.map(|name| (domain(), name.into())));
        let replaced = replaces.iter().map(|(name, span)| (domain(), name.clone(), *span));
        self.replaced.extend(replaced);
    }

    fn finish(mut self) -> Result<EnvoyConfig, Problems> {
        let files = self.files;
        if !self.notes.found.is_empty() || !self.unplaced.is_empty() {
            let problems = Problems::new(self.notes.found, &self.sources);
            return Err(problems.with_first(self.unplaced).with_files(files));
        }
        for (domain, name, span) in self.replaced {
            let named = (domain, name);
            if !self.named.contains(&named) {
                let message = format!("no limit of this domain is named {}", Name(&named.1));
                self.notes.odd(span, "replaces", message);
            }
        }
        let warnings = problems::warnings(self.notes.warnings, &self.sources);
        let domains = self.domains.into_iter().map(|(name, (domain, ..))| (name, domain));
        Ok(EnvoyConfig { domains: domains.collect(), files, warnings })
    }
}
