//! Errors of a rate limit request.

use std::fmt;

use crate::check::CheckError;

/// Why a request has no response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EnvoyError {
    /// The request is invalid.
    Invalid(String),
    /// The store is unavailable, and the rule leaves the decision to Envoy.
    Unavailable(String),
}

impl fmt::Display for EnvoyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(detail) | Self::Unavailable(detail) => f.write_str(detail),
        }
    }
}

impl std::error::Error for EnvoyError {}

impl From<CheckError> for EnvoyError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Store(error) => Self::Unavailable(error.to_string()),
            other => Self::Invalid(other.to_string()),
        }
    }
}
