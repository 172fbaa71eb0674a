//! What a rule does while the store is unavailable.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::OnStoreFailure;

use crate::ratio::RatioSetting;

/// What a rule does while the store is unavailable.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnStoreFailureSetting {
    /// Each server enforces a fraction of the limit locally.
    #[default]
    Fallback,
    /// Deny all requests.
    Deny,
    /// Allow all requests.
    Allow,
}

impl OnStoreFailureSetting {
    /// The setting of the library; `ratio` applies to [`Fallback`](Self::Fallback) only.
    pub fn at(self, ratio: RatioSetting) -> OnStoreFailure {
        match self {
            Self::Fallback => OnStoreFailure::Fallback(ratio.share()),
            Self::Deny => OnStoreFailure::Deny,
            Self::Allow => OnStoreFailure::Allow,
        }
    }
}
