//! What happens to permits of a reservation that is not settled.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::Expiry;

/// What happens to held permits if a reservation is not settled by its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnExpirySetting {
    /// They are charged at the deadline: the work may have been done.
    Charge,
    /// They are released without a charge.
    Release,
}

impl From<OnExpirySetting> for Expiry {
    fn from(setting: OnExpirySetting) -> Self {
        match setting {
            OnExpirySetting::Charge => Self::Charge,
            OnExpirySetting::Release => Self::Release,
        }
    }
}
