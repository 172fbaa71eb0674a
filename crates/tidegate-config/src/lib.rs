//! Tidegate's policy file: loads it, checks it, and reports every error with its line and column.
//!
//! A program that embeds [`tidegate`] takes its limits from a file:
//!
//! ```
//! use tidegate::{Limiter, Memory};
//! use tidegate_config::PolicyLoader;
//!
//! # let folder = std::env::temp_dir().join(format!("tidegate-config-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let path = folder.join("policy.yaml");
//! # std::fs::write(&path, r#"rules: [{ name: login, limits: ["sliding-log 5/1m"] }]"#)?;
//! // rules:
//! //   - name: login
//! //     limits: ["sliding-log 5/1m"]
//! let loaded = PolicyLoader::load(&path)?;
//! let limiter = Limiter::with_policy(Memory::builder().build(), loaded.policy);
//! assert!(limiter.policy().rule("login").is_some());
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Errors show the line:
//!
//! ```
//! use tidegate_config::PolicyLoader;
//!
//! let text = "rules: [{ name: api, limits: [5/parsec] }]";
//! let problems = PolicyLoader::load_str("policy.yaml", text).unwrap_err();
//! assert_eq!(problems.to_string(), r#"
//! policy.yaml:1:33: unknown unit "parsec"; use us, ms, s, min, h, d, w or month
//!   rules: [{ name: api, limits: [5/parsec] }]
//!                                   ^^^^^^
//! "#.trim());
//! ```
//!
//! `docs/reference/policy.md` lists all fields. [`schema`] is the JSON Schema of the file, and
//! [`envoy`] loads the files of envoyproxy/ratelimit. The feature `redis` checks Redis URLs while
//! loading.
//!
//! # Layout
//!
//! Each module imports only modules above it in this list.
//!
//! - `environment`: where files and variables come from. `errors`: problems and their positions.
//! - Values of fields: `limits`, `memory_size`, `on_expiry`, `ratio`, `on_store_failure`,
//!   `tls_files`, `wire_settings`.
//! - Fields as they are written: `price_file`, `rule_file`, `policy_file`. `canonical`: rules in
//!   canonical form. `schema`: the JSON Schema of the fields.
//! - `parse`: YAML to fields. `include`: files that include files. `variables`: `${NAME}`.
//! - `build_rule`, `settings`: fields to checked values. `loaded_policy`: the result.
//! - `load`: [`PolicyLoader`]. `rule_json`: single rules, as JSON.
//! - `envoy`: files of envoyproxy/ratelimit, and the lookup of descriptors.

mod build_rule;
mod canonical;
mod environment;
pub mod envoy;
mod errors;
mod include;
mod limits;
mod load;
mod loaded_policy;
mod memory_size;
mod on_expiry;
mod on_store_failure;
mod parse;
mod policy_file;
mod price_file;
mod ratio;
mod rule_file;
mod rule_json;
mod schema;
mod settings;
mod tls_files;
mod variables;
mod wire_settings;

pub use crate::environment::{DirEntry, DirEntryKind, Environment, OsEnvironment};
pub use crate::errors::problem::{Problem, Problems};
pub use crate::load::PolicyLoader;
pub use crate::loaded_policy::{LoadedPolicy, LoadedRule};
pub use crate::memory_size::{InvalidMemorySize, MemorySize};
pub use crate::on_expiry::OnExpirySetting;
pub use crate::on_store_failure::OnStoreFailureSetting;
pub use crate::policy_file::{SecretText, StoreUrl};
pub use crate::ratio::RatioSetting;
pub use crate::rule_file::{Auto, LeaseSetting, MatchFile, OneOrMany, OverrideFile, RuleFile};
pub use crate::schema::{schema, tidy_schema};
pub use crate::settings::ServerSettings;
pub use crate::tls_files::TlsFiles;
pub use crate::wire_settings::{HeaderStyleSetting, RefundToken};
