//! The loaded domains, and how they are loaded.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tidegate::OnStoreFailure;

use super::descriptor_limit::DescriptorLimit;
use super::lookup::Domain;
use super::unit::EnvoyWindows;
use crate::errors::problem::Problem;

/// The domains of a directory with files of envoyproxy/ratelimit, or of a control plane.
#[derive(Default, Debug)]
pub struct EnvoyConfig {
    pub(crate) domains: HashMap<Box<str>, Domain>,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) warnings: Vec<Problem>,
    pub(crate) is_pending: bool,
}

/// How a directory is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EnvoyLoadOptions {
    /// What happens if two files have the same domain.
    pub same_domain: DuplicateDomain,
    /// What descriptors without their own setting do while the store is unavailable.
    pub on_store_failure: OnStoreFailure,
    /// Which algorithm a `rate_limit` stands for.
    pub windows: EnvoyWindows,
}

/// What happens if two files have the same domain.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum DuplicateDomain {
    /// Loading fails.
    #[default]
    Refuse,
    /// The descriptors are merged, as with `MERGE_DOMAIN_CONFIG=true` of envoyproxy/ratelimit.
    Merge,
}

impl EnvoyConfig {
    /// Upper bound of the size of one file, in bytes.
    pub const MAX_BYTES: usize = 1 << 20;
    /// Upper bound of the size of all files together, in bytes.
    pub const MAX_BYTES_IN_ALL: usize = 16 << 20;
    /// Upper bound of the files.
    pub const MAX_FILES: usize = 1_000;
    /// Upper bound of the nesting of directories.
    pub const MAX_FOLDERS: usize = 8;
    /// Upper bound of the descriptors with a limit.
    pub const MAX_RULES: usize = tidegate::Policy::MAX_RULES;
    /// Upper bound of the descriptors.
    pub const MAX_DESCRIPTORS: usize = 100_000;

    /// Stands for the configuration of a control plane until it arrives.
    pub fn pending() -> Self {
        Self { is_pending: true, ..Self::default() }
    }

    /// Whether the configuration has not arrived yet. Then nothing can be decided.
    pub fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// The domain with this name.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// All domains, in any order.
    pub fn domains(&self) -> impl ExactSizeIterator<Item = &Domain> {
        self.domains.values()
    }

    /// The limits of all domains. Each has its own rule, unless it is `unlimited`.
    pub fn leaves(&self) -> impl Iterator<Item = &DescriptorLimit> {
        self.domains().flat_map(Domain::leaves)
    }

    /// All files that were read.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }

    /// Probable errors that do not prevent loading, at most
    /// [`Problems::MAX`](crate::Problems::MAX).
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }
}
