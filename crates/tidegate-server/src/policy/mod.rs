//! Where the policy comes from: files, reloads, run-time rules and overrides. Imports: check,
//! observe, shutdown, text, tls.

mod change_error;
mod control_plane;
pub(crate) mod diff;
pub(crate) mod files;
mod layers;
mod loader_thread;
pub(crate) mod manager;
pub(crate) mod runtime;
pub(crate) mod runtime_rules;
pub(crate) mod sources;
mod sync;
pub(crate) mod watcher;

pub(crate) use self::change_error::RuleChangeError;
pub(crate) use self::layers::RuleOrigin;
pub(crate) use self::loader_thread::run_on_loader;
pub use self::manager::PolicyManager;
pub(crate) use self::manager::PolicyStatus;
pub(crate) use self::runtime::field::{timestamp, timestamp_micros};
pub(crate) use self::runtime::stamp::Stamp;
pub use self::runtime_rules::{Actor, CountsOnDelete, PutCondition};
pub(crate) use self::runtime_rules::{
    ListedOverride, ListedRule, OverrideEnd, PutResult, RulePage,
};
pub(crate) use self::sources::EnvoyResource;
pub use self::sources::{
    EnvoyOrigin, EnvoySource, LoadedSources, PolicySource, PolicySources, SAMPLE,
};
