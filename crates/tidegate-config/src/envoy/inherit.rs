//! Settings that a descriptor inherits from its parents and its domain.

use tidegate::{Fraction, OnStoreFailure};

use super::diagnostics::Diagnostics;
use super::fields::{FailureMode, INHERITED, LocatedFields};
use crate::ratio::RatioSetting;

/// Settings of a descriptor and its children, unless they override them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Inherited {
    pub(crate) charge_denied: bool,
    pub(crate) allow_override: bool,
    failure: FailureMode,
    fallback_ratio: Fraction,
}

impl Inherited {
    pub(crate) fn new(on_store_failure: OnStoreFailure) -> Self {
        let (failure, fallback_ratio) = match on_store_failure {
            OnStoreFailure::Fallback(ratio) => (FailureMode::Fallback, ratio),
            OnStoreFailure::Deny => (FailureMode::Deny, Fraction::HALF),
            OnStoreFailure::Allow => (FailureMode::Allow, Fraction::HALF),
        };
        Self { charge_denied: false, allow_override: true, failure, fallback_ratio }
    }

    /// The settings with those of `fields` applied.
    pub(crate) fn with(self, fields: &LocatedFields<'_>, diagnostics: &mut Diagnostics) -> Self {
        let given = &fields.values;
        let ratio = given.fallback_ratio.map(RatioSetting::new);
        if let (Some(None), Some(span)) = (ratio, fields.value_span("fallback_ratio")) {
            diagnostics.error(span, &fields.path("fallback_ratio"), RatioSetting::ADVICE);
        }
        Self {
            charge_denied: given.charge_denied.unwrap_or(self.charge_denied),
            allow_override: given.allow_override.unwrap_or(self.allow_override),
            failure: given.on_store_failure.unwrap_or(self.failure),
            fallback_ratio: ratio.flatten().map_or(self.fallback_ratio, RatioSetting::share),
        }
    }

    /// The names of the settings that differ.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let differs = [
            self.charge_denied != other.charge_denied,
            self.allow_override != other.allow_override,
            self.failure != other.failure,
            self.fallback_ratio != other.fallback_ratio,
        ];
        INHERITED
            .into_iter()
            .zip(differs)
            .filter(|(_, differs)| *differs)
            .map(|(name, _)| name)
            .collect()
    }

    pub(crate) fn on_store_failure(&self) -> OnStoreFailure {
        match self.failure {
            FailureMode::Fallback => OnStoreFailure::Fallback(self.fallback_ratio),
            FailureMode::Deny | FailureMode::Unavailable => OnStoreFailure::Deny,
            FailureMode::Allow => OnStoreFailure::Allow,
        }
    }

    pub(crate) fn says_unavailable(&self) -> bool {
        self.failure == FailureMode::Unavailable
    }
}
