//! Settings of what callers send and receive: header style and the token of refunds.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version of the headers about limits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub enum HeaderStyleSetting {
    /// `RateLimit` and `RateLimit-Policy` of the current IETF draft, and `X-RateLimit-*`.
    #[default]
    #[serde(rename = "draft-8")]
    Draft8,
    /// `RateLimit: limit=, remaining=, reset=` of draft 7, and `X-RateLimit-*`.
    #[serde(rename = "draft-7")]
    Draft7,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset` of draft 6, and `X-RateLimit-*`.
    #[serde(rename = "draft-6")]
    Draft6,
    /// Only `X-RateLimit-*`, with `X-RateLimit-Reset` in seconds since 1970.
    #[serde(rename = "epoch")]
    Epoch,
    /// As `draft-8`, and `x-ratelimit-limit-requests`, `-remaining-tokens`, `-reset-tokens` and so
    /// on, which clients of OpenAI read.
    #[serde(rename = "openai")]
    OpenAi,
}

/// The token that a refund needs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RefundToken {
    /// The check token, as for checks.
    #[default]
    Check,
    /// The admin token, as for a reset.
    Admin,
}
