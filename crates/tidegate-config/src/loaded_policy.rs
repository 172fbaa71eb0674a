//! What loading a policy file returns.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate::{Policy, PolicyRule};

use crate::build_rule::BuiltRule;
use crate::errors::problem::Problem;
use crate::on_store_failure::OnStoreFailureSetting;
use crate::ratio::RatioSetting;
use crate::rule_file::RuleFile;
use crate::settings::ServerSettings;

/// A policy that has been loaded.
#[derive(Debug)]
pub struct LoadedPolicy {
    /// The rules, for [`Limiter::with_policy`](tidegate::Limiter::with_policy).
    pub policy: Policy,
    /// The same rules, with their canonical text and their settings.
    pub rules: Vec<LoadedRule>,
    /// Settings of the server.
    pub settings: ServerSettings,
    /// All files that were read, the main file first.
    pub files: Vec<PathBuf>,
    /// Probable errors that do not prevent loading, at most
    /// [`Problems::MAX`](crate::Problems::MAX).
    pub warnings: Vec<Problem>,
}

/// A rule that has been loaded.
#[derive(Clone, Debug)]
pub struct LoadedRule {
    /// The rule to enforce.
    pub rule: Arc<PolicyRule>,
    /// The rule in canonical form: inherited values are included, default values are not.
    pub file: RuleFile,
    /// What the rule does while the store is unavailable.
    pub on_store_failure: OnStoreFailureSetting,
    /// Fraction of its limits that one server grants in fallback.
    pub fallback_ratio: RatioSetting,
}

impl LoadedRule {
    /// `settings` supply the failure mode and the ratio if the rule has none.
    pub(crate) fn new(built: BuiltRule, rule: PolicyRule, settings: &ServerSettings) -> Self {
        let on_store_failure = built.on_store_failure.unwrap_or(settings.on_store_failure);
        let fallback_ratio = built.fallback_ratio.unwrap_or(settings.fallback_ratio);
        let rule = Arc::new(rule.on_store_failure(on_store_failure.at(fallback_ratio)));
        Self { rule, file: built.file, on_store_failure, fallback_ratio }
    }
}
