//! The policy file: reading it, and telling what is wrong with it.
//!
//! ```
//! use tidegate_server::config::Config;
//! let loaded = Config::load_str("policy.yaml", r#"
//! rules:
//!   - name: login
//!     match: { method: POST, path: /login }
//!     key: [client_ip]
//!     limits: ["sliding-log 5/1m"]
//! "#)?;
//! assert!(loaded.policy.rule("login").is_some());
//!
//! let problems = Config::load_str("policy.yaml", "rules: [{ name: api, limits: [5/parsec] }]");
//! assert_eq!(problems.unwrap_err().to_string(), r#"
//! policy.yaml:1:33: unknown unit "parsec"; use us, ms, s, min, h, d, w or month
//!   rules: [{ name: api, limits: [5/parsec] }]
//!                                   ^^^^^^
//! "#.trim());
//! # Ok::<(), tidegate_server::config::Problems>(())
//! ```
//!
//! # Layout
//!
//! - `file`, `rule_file`: a policy as it is written; `schema` and `reference` are made from them.
//! - `load`, `include`: files and what they include; `surroundings`: where they come from.
//! - `yaml` makes a `tree` of a file, in which everything has its place; `fill` fills in variables.
//! - `shape`, `check`: does it have the fields of a policy? `build`, `limits`, `settings`: does it
//!   mean something? `canonical`: how it is written by the book. `json`: rules that come with a call.
//! - `problem`: what is told about a mistake; `place`: where it is; `source`: the line it is in;
//!   `mask`: what is not shown of it.

mod build;
mod canonical;
mod check;
mod file;
mod fill;
mod include;
mod json;
pub(crate) mod limits;
mod load;
mod mask;
pub(crate) mod place;
pub(crate) mod problem;
mod ratio;
mod reference;
mod rule_file;
mod schema;
mod settings;
mod shape;
pub(crate) mod source;
mod surroundings;
pub(crate) mod tree;
pub(crate) mod yaml;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate::{Policy, PolicyRule};

pub use self::file::{Defaults, OnStoreFailure, PolicyFile, Secret, StoreUrl, TlsFile};
pub use self::problem::{Problem, Problems};
pub use self::ratio::Ratio;
pub use self::reference::{EXAMPLE, reference};
pub use self::rule_file::{Auto, Lease, MatchFile, MissingKey, OneOrMany, OverrideFile, RuleFile};
pub use self::schema::schema;
pub use self::settings::Settings;
pub use self::surroundings::{Item, ItemKind, Machine, Sealed, Surroundings};

/// Reads policy files.
#[derive(Clone, Copy, Debug)]
pub struct Config;

impl Config {
    /// The longest file in bytes.
    pub const MAX_BYTES: usize = 1 << 20;
    /// The most files of one policy.
    pub const MAX_FILES: usize = 100;
    /// How deep files may include one another.
    pub const MAX_INCLUDES: usize = 8;

    /// Reads a file and what it includes, with variables from the environment.
    pub fn load(path: impl AsRef<Path>) -> Result<Loaded, Problems> {
        Self::load_from(path, &Machine)
    }

    /// Reads a text that goes by this name. It can neither include files nor use variables.
    pub fn load_str(name: &str, text: &str) -> Result<Loaded, Problems> {
        load::text(name, text, &Sealed)
    }

    /// Reads a file from other surroundings than this machine.
    pub fn load_from(
        path: impl AsRef<Path>,
        surroundings: &dyn Surroundings,
    ) -> Result<Loaded, Problems> {
        load::file(path.as_ref(), surroundings)
    }
}

/// A policy that has been read.
#[derive(Debug)]
pub struct Loaded {
    /// The rules, to be enforced.
    pub policy: Policy,
    /// The same rules, with what the policy itself does not hold.
    pub rules: Vec<LoadedRule>,
    /// What the file says about the server itself.
    pub settings: Settings,
    /// All files that were read, the main one first.
    pub files: Vec<PathBuf>,
    /// What looks like a mistake, although it can be obeyed; at most [`Problems::MAX`].
    pub warnings: Vec<Problem>,
}

/// A rule that has been read.
#[derive(Clone, Debug)]
pub struct LoadedRule {
    /// The rule, to be enforced.
    pub rule: Arc<PolicyRule>,
    /// The rule by the book: what it inherits is written out, and what goes without saying is not.
    pub file: RuleFile,
    /// What happens while the store does not answer.
    pub on_store_failure: OnStoreFailure,
    /// The share of its limits that a server grants by itself.
    pub fallback_ratio: Ratio,
}

impl LoadedRule {
    /// What the rule does not say itself comes from the settings.
    fn new(built: build::Built, rule: PolicyRule, settings: &Settings) -> Self {
        let on_store_failure = built.on_store_failure.unwrap_or(settings.on_store_failure);
        let fallback_ratio = built.fallback_ratio.unwrap_or(settings.fallback_ratio);
        let rule = Arc::new(rule.on_store_failure(on_store_failure.at(fallback_ratio)));
        Self { rule, file: built.file, on_store_failure, fallback_ratio }
    }
}

impl OnStoreFailure {
    /// The same for the library; a fallback grants this share.
    pub(crate) fn at(self, share: Ratio) -> tidegate::OnStoreFailure {
        match self {
            Self::Fallback => tidegate::OnStoreFailure::Fallback(share.share()),
            Self::Deny => tidegate::OnStoreFailure::Deny,
            Self::Allow => tidegate::OnStoreFailure::Allow,
        }
    }
}
