//! The tokens of one call.

/// The tokens of one call. No token is of two kinds.
///
/// With the feature `serde` it is read from the usage objects of OpenAI, Anthropic and Gemini, or
/// from an object of these fields.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "super::usage_shapes::UsageFields"))]
pub struct TokenUsage {
    /// Input that is in no cache.
    pub input: u64,
    /// Input read from a cache.
    pub cached_input: u64,
    /// Input written to a cache.
    pub cache_write: u64,
    /// Output without reasoning.
    pub output: u64,
    /// Reasoning.
    pub reasoning: u64,
}

impl TokenUsage {
    /// The tokens of all kinds.
    pub fn total(&self) -> u64 {
        let Self { input, cached_input, cache_write, output, reasoning } = *self;
        [input, cached_input, cache_write, output, reasoning]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}
