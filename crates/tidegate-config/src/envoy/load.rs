//! Loads the files of a directory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::config::{DuplicateDomain, EnvoyConfig, EnvoyLoadOptions};
use super::descriptor::DescriptorReader;
use super::fields::{FieldLevel, LocatedFields};
use super::folder::{FolderFiles, problem};
use super::inherit::Inherited;
use super::lookup::Domain;
use super::rule_name::DescriptorPath;
use crate::environment::{Environment, OsEnvironment};
use crate::errors::problem::{self as problems, Problem, Problems};
use crate::errors::sources::SourceSpan;
use crate::parse::tree::QuotedText;
use crate::parse::yaml;

impl EnvoyConfig {
    /// Loads all files of a directory and its subdirectories.
    pub fn load(folder: impl AsRef<Path>, options: &EnvoyLoadOptions) -> Result<Self, Problems> {
        Self::load_from(folder, options, &OsEnvironment)
    }

    /// Like [`load`](Self::load), with files from `environment`.
    pub fn load_from(
        folder: impl AsRef<Path>,
        options: &EnvoyLoadOptions,
        environment: &dyn Environment,
    ) -> Result<Self, Problems> {
        let FolderFiles { paths, errors, warnings, .. } =
            FolderFiles::of(folder.as_ref(), environment);
        let mut loader = EnvoyLoader { file_errors: errors, ..EnvoyLoader::new(options) };
        for path in paths {
            match environment.read(&path, Self::MAX_BYTES) {
                Ok(bytes) => loader.file(&path.display().to_string(), bytes),
                Err(error) => {
                    loader.file_errors.push(problem(&path, format!("cannot be read: {error}")));
                }
            }
            loader.files.push(path);
        }
        let mut config = loader.finish()?;
        config.warnings.splice(0..0, warnings);
        config.warnings.truncate(Problems::MAX);
        Ok(config)
    }

    /// Loads a single file from text. Messages show `name` as the file.
    pub fn load_str(name: &str, text: &str) -> Result<Self, Problems> {
        Self::load_texts([(name, text)], &EnvoyLoadOptions::default())
    }

    /// Loads files from pairs of name and text.
    pub fn load_texts<'t>(
        texts: impl IntoIterator<Item = (&'t str, &'t str)>,
        options: &EnvoyLoadOptions,
    ) -> Result<Self, Problems> {
        EnvoyLoader::new(options).texts(texts)
    }

    /// Loads the resources of a control plane from pairs of name and text. Only the size of all of
    /// them is bounded: a domain is one resource, and cannot be split.
    pub fn load_resources<'t>(
        texts: impl IntoIterator<Item = (&'t str, &'t str)>,
        options: &EnvoyLoadOptions,
    ) -> Result<Self, Problems> {
        let max_file = Self::MAX_BYTES_IN_ALL;
        EnvoyLoader { max_file, ..EnvoyLoader::new(options) }.texts(texts)
    }
}

/// State while files are loaded.
struct EnvoyLoader<'o> {
    options: &'o EnvoyLoadOptions,
    reader: DescriptorReader,
    /// Errors of whole files.
    file_errors: Vec<Problem>,
    files: Vec<PathBuf>,
    /// Upper bound of the size of one file, in bytes.
    max_file: usize,
    /// Bytes of all files so far.
    bytes: usize,
    domains: HashMap<Box<str>, (Domain, Inherited, SourceSpan)>,
}

impl<'o> EnvoyLoader<'o> {
    fn new(options: &'o EnvoyLoadOptions) -> Self {
        Self {
            options,
            reader: DescriptorReader::new(options.windows),
            file_errors: Vec::new(),
            files: Vec::new(),
            max_file: EnvoyConfig::MAX_BYTES,
            bytes: 0,
            domains: HashMap::new(),
        }
    }

    fn texts<'t>(
        mut self,
        texts: impl IntoIterator<Item = (&'t str, &'t str)>,
    ) -> Result<EnvoyConfig, Problems> {
        for (name, text) in texts {
            self.file(name, text.into());
            self.files.push(name.into());
        }
        self.finish()
    }

    fn file(&mut self, name: &str, bytes: Vec<u8>) {
        let before = self.bytes;
        self.bytes += bytes.len();
        let too_long = if bytes.len() > self.max_file {
            "file larger than 1 MiB; split it"
        } else if self.bytes > EnvoyConfig::MAX_BYTES_IN_ALL {
            // Reported once.
            if before > EnvoyConfig::MAX_BYTES_IN_ALL {
                return;
            }
            "all files together exceed 16 MiB; use fewer"
        } else {
            ""
        };
        if !too_long.is_empty() {
            self.file_errors.push(Problem::of_file(name, too_long.into()));
            return;
        }
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(_) => {
                let message = "not UTF-8; save the file as UTF-8";
                self.file_errors.push(Problem::of_file(name, message.into()));
                return;
            }
        };
        let source = self.reader.sources.add(name, text);
        let before = self.reader.diagnostics.errors.len();
        let root =
            yaml::parse(source, &mut self.reader.sources, &mut self.reader.diagnostics.errors);
        match root {
            Some(root) if !root.is_nothing() => {
                let diagnostics = &mut self.reader.diagnostics;
                let fields = LocatedFields::of(&root, String::new(), FieldLevel::File, diagnostics);
                fields.iter().for_each(|fields| self.root(fields));
            }
            _ if self.reader.diagnostics.errors.len() == before => {
                let start = SourceSpan { source, start: 0, end: 0 };
                self.reader.diagnostics.error(start, "domain", "empty file; start with domain:");
            }
            _ => {}
        }
    }

    fn root(&mut self, fields: &LocatedFields<'_>) {
        let inherited = Inherited::new(self.options.on_store_failure)
            .with(fields, &mut self.reader.diagnostics);
        let name = &*fields.values.domain;
        let Some(span) = fields.value_span("domain").filter(|_| !name.is_empty()) else {
            if !fields.is_broken("domain") {
                let span = fields.name_span("domain");
                self.reader.diagnostics.error(span, "domain", "missing domain");
            }
            return;
        };
        let known = self.domains.remove(name);
        let (is_known, windows) = (known.is_some(), self.options.windows);
        let (mut domain, others, first) =
            known.unwrap_or_else(|| (Domain::new(name, inherited, windows), inherited, span));
        let duplicates = self.reader.duplicates;
        let mut path = DescriptorPath::new(name);
        let mut level = std::mem::take(&mut domain.level);
        let items = fields.items("descriptors");
        self.reader.descriptors(items, "descriptors", &mut path, inherited, &mut level);
        domain.level = level;
        if is_known {
            let can_merge = self.reader.duplicates == duplicates;
            self.known_domain(name, span, first, &inherited.differences(&others), can_merge);
        }
        self.domains.insert(name.into(), (domain, others, first));
    }

    /// Reports a domain that another file has too, unless both are merged. `different` are the
    /// settings in which they differ.
    fn known_domain(
        &mut self,
        name: &str,
        span: SourceSpan,
        first: SourceSpan,
        different: &[&str],
        can_merge: bool,
    ) {
        let place = self.reader.sources.place(first).map_or(String::new(), |at| at.to_string());
        let (what, settings) = (QuotedText(name), different.join(", "));
        let message = match self.options.same_domain {
            DuplicateDomain::Merge if different.is_empty() => return,
            DuplicateDomain::Merge => format!(
                "domain {what} has a different {settings} at {place}; use the same in all its files"
            ),
            DuplicateDomain::Refuse if !different.is_empty() => format!(
                "duplicate domain {what}, first at {place} with a different {settings}; use one file"
            ),
            DuplicateDomain::Refuse if can_merge => {
                format!("duplicate domain {what}, first at {place}; use one file, or --envoy-merge")
            }
            DuplicateDomain::Refuse => {
                format!("duplicate domain {what}, first at {place}; use one file")
            }
        };
        self.reader.diagnostics.error(span, "domain", message);
    }

    fn finish(mut self) -> Result<EnvoyConfig, Problems> {
        let files = self.files;
        if !self.reader.diagnostics.errors.is_empty() || !self.file_errors.is_empty() {
            let problems = Problems::new(self.reader.diagnostics.errors, &self.reader.sources);
            return Err(problems.with_first(self.file_errors).with_files(files));
        }
        self.reader.check_replaced();
        let warnings = problems::warnings(self.reader.diagnostics.warnings, &self.reader.sources);
        let domains = self.domains.into_iter().map(|(name, (domain, ..))| (name, domain));
        Ok(EnvoyConfig { domains: domains.collect(), files, warnings, is_pending: false })
    }
}
