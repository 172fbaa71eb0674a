//! Usage objects of providers.
//!
//! | provider | cached input | reasoning |
//! |---|---|---|
//! | OpenAI, chat completions and responses | part of the input | part of the output |
//! | Anthropic | beside the input | part of the output, not reported apart |
//! | Gemini | part of the prompt | beside the candidates |
//!
//! What a total has beyond its parts is output: some servers with OpenAI's shape report reasoning
//! in the total alone. Fields that are not listed here are ignored, since providers add some.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::usage::TokenUsage;

/// The fields of all shapes. Missing and `null` are the same.
#[derive(Deserialize, Debug)]
pub(super) struct UsageFields {
    input: Option<u64>,
    cached_input: Option<u64>,
    cache_write: Option<u64>,
    output: Option<u64>,
    reasoning: Option<u64>,

    /// OpenAI, chat completions.
    prompt_tokens: Option<u64>,
    prompt_tokens_details: Option<InputDetails>,
    completion_tokens: Option<u64>,
    completion_tokens_details: Option<OutputDetails>,

    /// OpenAI, responses; Anthropic.
    input_tokens: Option<u64>,
    input_tokens_details: Option<InputDetails>,
    output_tokens: Option<u64>,
    output_tokens_details: Option<OutputDetails>,
    total_tokens: Option<u64>,

    /// Anthropic.
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,

    #[serde(rename = "promptTokenCount")]
    prompt_token_count: Option<u64>,
    #[serde(rename = "cachedContentTokenCount")]
    cached_content_token_count: Option<u64>,
    #[serde(rename = "toolUsePromptTokenCount")]
    tool_use_prompt_token_count: Option<u64>,
    #[serde(rename = "candidatesTokenCount")]
    candidates_token_count: Option<u64>,
    #[serde(rename = "thoughtsTokenCount")]
    thoughts_token_count: Option<u64>,
    #[serde(rename = "totalTokenCount")]
    total_token_count: Option<u64>,

    #[serde(flatten)]
    unknown: BTreeMap<String, IgnoredAny>,
}

#[derive(Deserialize, Default, Debug)]
struct InputDetails {
    cached_tokens: Option<u64>,
    cache_write_tokens: Option<u64>,
}

#[derive(Deserialize, Default, Debug)]
struct OutputDetails {
    reasoning_tokens: Option<u64>,
}

/// Why an object is not the usage of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidUsage {
    /// No shape has these fields.
    Shape,
    /// Fields of two shapes.
    Mixed,
    /// A field that the shape requires.
    Missing(&'static str),
    /// A field that the shape of this crate does not have.
    Unknown(Box<str>),
    /// A part is larger than what it is a part of.
    Part(&'static str),
}

impl fmt::Display for InvalidUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape => f.write_str(
                "unknown shape; use input and output, or the usage object of OpenAI, Anthropic or \
                 Gemini",
            ),
            Self::Mixed => f.write_str("fields of two providers; send the object of one"),
            Self::Missing(field) => write!(f, "{field} is missing"),
            Self::Unknown(field) => write!(
                f,
                "unknown field {field:?}; use input, cached_input, cache_write, output or reasoning"
            ),
            Self::Part(part) => write!(f, "{part} is larger than what it is a part of"),
        }
    }
}

impl std::error::Error for InvalidUsage {}

impl TryFrom<UsageFields> for TokenUsage {
    type Error = InvalidUsage;

    fn try_from(fields: UsageFields) -> Result<Self, InvalidUsage> {
        let has = |fields: &[Option<u64>]| fields.iter().any(Option::is_some);
        let plain = [fields.input, fields.output, fields.cached_input, fields.cache_write];
        let shapes = [
            has(&plain) || fields.reasoning.is_some(),
            has(&[fields.prompt_tokens, fields.completion_tokens]),
            has(&[fields.input_tokens, fields.output_tokens]),
            has(&[fields.prompt_token_count, fields.total_token_count]),
        ];
        match shapes {
            [true, false, false, false] => fields.plain(),
            [false, true, false, false] => fields.chat_completion(),
            [false, false, true, false] => fields.response_or_message(),
            [false, false, false, true] => fields.gemini(),
            [false, false, false, false] => Err(InvalidUsage::Shape),
            _ => Err(InvalidUsage::Mixed),
        }
    }
}

impl UsageFields {
    fn plain(self) -> Result<TokenUsage, InvalidUsage> {
        if let Some(field) = self.unknown.into_keys().next() {
            return Err(InvalidUsage::Unknown(field.into()));
        }
        Ok(TokenUsage {
            input: required(self.input, "input")?,
            cached_input: self.cached_input.unwrap_or(0),
            cache_write: self.cache_write.unwrap_or(0),
            output: required(self.output, "output")?,
            reasoning: self.reasoning.unwrap_or(0),
        })
    }

    fn chat_completion(self) -> Result<TokenUsage, InvalidUsage> {
        let details = self.prompt_tokens_details.unwrap_or_default();
        let input = details.within(required(self.prompt_tokens, "prompt_tokens")?)?;
        let reasoning = self.completion_tokens_details.unwrap_or_default().reasoning_tokens;
        // Embeddings have a total and no completion.
        let output = self.completion_tokens.or(self.total_tokens.map(|_| 0));
        let output = required(output, "completion_tokens")?;
        input.with_output(output, reasoning, self.total_tokens)
    }

    fn response_or_message(self) -> Result<TokenUsage, InvalidUsage> {
        let input = required(self.input_tokens, "input_tokens")?;
        let beside = [self.cache_read_input_tokens, self.cache_creation_input_tokens];
        let input = match (self.input_tokens_details, beside) {
            (Some(_), [Some(_), _] | [_, Some(_)]) => return Err(InvalidUsage::Mixed),
            (Some(details), _) => details.within(input)?,
            (None, [read, written]) => TokenUsage {
                input,
                cached_input: read.unwrap_or(0),
                cache_write: written.unwrap_or(0),
                ..TokenUsage::default()
            },
        };
        let reasoning = self.output_tokens_details.unwrap_or_default().reasoning_tokens;
        let output = required(self.output_tokens, "output_tokens")?;
        input.with_output(output, reasoning, self.total_tokens)
    }

    fn gemini(self) -> Result<TokenUsage, InvalidUsage> {
        let details =
            InputDetails { cached_tokens: self.cached_content_token_count, ..Default::default() };
        let mut input = details.within(required(self.prompt_token_count, "promptTokenCount")?)?;
        input.input = input.input.saturating_add(self.tool_use_prompt_token_count.unwrap_or(0));
        // Zero is left out, as everywhere in protobuf's JSON.
        let thoughts = self.thoughts_token_count;
        let output = self.candidates_token_count.unwrap_or(0);
        let output = output.saturating_add(thoughts.unwrap_or(0));
        input.with_output(output, thoughts, self.total_token_count)
    }
}

impl InputDetails {
    /// Splits input that includes these parts.
    fn within(self, all: u64) -> Result<TokenUsage, InvalidUsage> {
        let cached_input = self.cached_tokens.unwrap_or(0);
        let cache_write = self.cache_write_tokens.unwrap_or(0);
        let rest = all.checked_sub(cached_input).and_then(|rest| rest.checked_sub(cache_write));
        let input = rest.ok_or(InvalidUsage::Part("cached input"))?;
        Ok(TokenUsage { input, cached_input, cache_write, ..TokenUsage::default() })
    }
}

impl TokenUsage {
    /// Adds output that includes `reasoning`. What `total` has beyond both is output.
    fn with_output(
        self,
        output: u64,
        reasoning: Option<u64>,
        total: Option<u64>,
    ) -> Result<Self, InvalidUsage> {
        let all = output.max(total.unwrap_or(0).saturating_sub(self.total()));
        let reasoning = reasoning.unwrap_or(0);
        let output = all.checked_sub(reasoning).ok_or(InvalidUsage::Part("reasoning"))?;
        Ok(Self { output, reasoning, ..self })
    }
}

fn required(count: Option<u64>, field: &'static str) -> Result<u64, InvalidUsage> {
    count.ok_or(InvalidUsage::Missing(field))
}
