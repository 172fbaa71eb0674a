//! The YAML of envoyproxy/ratelimit: reading it, and telling what is wrong with it.
//!
//! ```
//! use tidegate_server::envoy::config::EnvoyConfig;
//! let config = EnvoyConfig::load_str("edge.yaml", r#"
//! domain: edge_proxy_per_ip
//! descriptors:
//!   - key: remote_address
//!     rate_limit: { unit: second, requests_per_unit: 10 }
//!   - key: remote_address
//!     value: 50.0.0.5
//!     rate_limit: { unit: second, requests_per_unit: 0 }
//!   - key: api_key                        # beyond theirs
//!     limits: ["sliding-window 1000/h", "100/s burst 20"]
//! "#)?;
//! assert_eq!(config.leaves().count(), 3);
//!
//! let text = "domain: edge\ndescriptors: [{ key: ip, rate_limit: { unit: parsec } }]";
//! let problems = EnvoyConfig::load_str("edge.yaml", text).unwrap_err();
//! assert!(problems.to_string().starts_with(r#"edge.yaml:2:46: unknown unit "parsec"; use "#));
//! # Ok::<(), tidegate_server::config::Problems>(())
//! ```
//!
//! What envoyproxy/ratelimit accepts is accepted, with a warning where it has no effect or another
//! one than it seems to have.
//!
//! # Layout
//!
//! - `folder`: which files are read. `load`: from files to domains, and what clashes between them.
//! - `fields`: the fields of a map. `descriptor`: one descriptor. `limits`: what it is limited to.
//!   `inherit`: what it has from the descriptors around it. `metadata`: what is only passed on.
//! - [`Leaf`]: a limit with all that is said about it. `name`: what its rule goes by. [`Unit`]: its
//!   span.
//! - [`Domain`]: the limits of a domain, and those that come with requests.

mod descriptor;
mod domain;
mod fields;
mod folder;
mod inherit;
mod leaf;
mod limits;
mod load;
mod metadata;
mod name;
mod unit;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use tidegate::OnStoreFailure;

pub use self::domain::Domain;
pub use self::leaf::Leaf;
pub use self::unit::Unit;
use crate::config::{Machine, Problem, Problems, Surroundings};

/// All domains of a folder.
#[derive(Debug)]
pub struct EnvoyConfig {
    domains: HashMap<Box<str>, Domain>,
    files: Vec<PathBuf>,
    warnings: Vec<Problem>,
}

/// How a folder is read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Options {
    /// What happens when two files are about one domain.
    pub same_domain: SameDomain,
    /// What happens while the store does not answer, where the files do not say it.
    pub on_store_failure: OnStoreFailure,
}

/// What happens when two files are about one domain.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum SameDomain {
    /// The folder is refused.
    #[default]
    Refuse,
    /// Their descriptors are put together, as `MERGE_DOMAIN_CONFIG=true` does it.
    Merge,
}

impl EnvoyConfig {
    /// The longest file in bytes.
    pub const MAX_BYTES: usize = 1 << 20;
    /// The most bytes in all files together.
    pub const MAX_BYTES_IN_ALL: usize = 16 << 20;
    /// The most files.
    pub const MAX_FILES: usize = 1_000;
    /// How deep folders may lie in one another.
    pub const MAX_FOLDERS: usize = 8;
    /// The most descriptors with a limit.
    pub const MAX_RULES: usize = tidegate::Policy::MAX_RULES;
    /// The most descriptors.
    pub const MAX_DESCRIPTORS: usize = 100_000;

    /// Reads all files of a folder and of the folders in it.
    pub fn load(folder: impl AsRef<Path>, options: &Options) -> Result<Self, Problems> {
        Self::load_from(folder, options, &Machine)
    }

    /// Reads a folder in other surroundings than this machine, such as
    /// [`Reader`](crate::watch::Reader), which keeps in mind what to look at to learn of changes.
    pub fn load_from(
        folder: impl AsRef<Path>,
        options: &Options,
        surroundings: &dyn Surroundings,
    ) -> Result<Self, Problems> {
        load::folder(folder.as_ref(), options, surroundings)
    }

    /// Reads a text that goes by this name, as the only file.
    pub fn load_str(name: &str, text: &str) -> Result<Self, Problems> {
        Self::load_texts([(name, text)], &Options::default())
    }

    /// Reads texts that go by these names.
    pub fn load_texts<'t>(
        texts: impl IntoIterator<Item = (&'t str, &'t str)>,
        options: &Options,
    ) -> Result<Self, Problems> {
        load::texts(texts, options)
    }

    /// A domain.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// All domains, in no order.
    pub fn domains(&self) -> impl ExactSizeIterator<Item = &Domain> {
        self.domains.values()
    }

    /// All limits of all domains, each with a rule of its own but for those that are unlimited.
    pub fn leaves(&self) -> impl Iterator<Item = &Leaf> {
        self.domains().flat_map(Domain::leaves)
    }

    /// All files that were read.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(PathBuf::as_path)
    }

    /// What looks like a mistake, although it can be obeyed; at most [`Problems::MAX`].
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }
}
