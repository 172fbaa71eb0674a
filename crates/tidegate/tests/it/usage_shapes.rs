//! Usage objects of OpenAI, Anthropic and Gemini, as their references describe them.

use serde_json::{Value, json};
use tidegate::pricing::TokenUsage;

fn read(usage: Value) -> Result<TokenUsage, String> {
    serde_json::from_value(usage).map_err(|error| error.to_string())
}

/// Input, cached input, cache write, output and reasoning.
fn kinds(usage: Value) -> [u64; 5] {
    let TokenUsage { input, cached_input, cache_write, output, reasoning } = read(usage).unwrap();
    [input, cached_input, cache_write, output, reasoning]
}

#[test]
fn openai_includes_cached_input_and_reasoning() {
    let chat = json!({
        "prompt_tokens": 1486, "completion_tokens": 651, "total_tokens": 2137,
        "prompt_tokens_details": { "cached_tokens": 1408, "audio_tokens": 0 },
        "completion_tokens_details": { "reasoning_tokens": 512, "audio_tokens": 0,
            "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0 },
    });
    assert_eq!(kinds(chat), [78, 1408, 0, 139, 512]);
    let response = json!({
        "input_tokens": 328, "input_tokens_details": { "cached_tokens": 100, "cache_write_tokens": 8 },
        "output_tokens": 52, "output_tokens_details": { "reasoning_tokens": 12 }, "total_tokens": 380,
    });
    assert_eq!(kinds(response), [220, 100, 8, 40, 12]);
    let without_details = json!({ "prompt_tokens": 19, "completion_tokens": 10,
        "prompt_tokens_details": null, "total_tokens": 29 });
    assert_eq!(kinds(without_details), [19, 0, 0, 10, 0]);
    let embeddings = json!({ "prompt_tokens": 8, "total_tokens": 8 });
    assert_eq!(kinds(embeddings), [8, 0, 0, 0, 0]);
}

#[test]
fn anthropic_reports_cached_input_beside_the_input() {
    let message = json!({
        "input_tokens": 1, "cache_creation_input_tokens": 287, "cache_read_input_tokens": 30433,
        "output_tokens": 67, "service_tier": "standard",
        "cache_creation": { "ephemeral_5m_input_tokens": 287, "ephemeral_1h_input_tokens": 0 },
    });
    assert_eq!(kinds(message), [1, 30433, 287, 67, 0]);
    let uncached = json!({ "input_tokens": 25, "output_tokens": 150,
        "cache_read_input_tokens": null, "cache_creation_input_tokens": null });
    assert_eq!(kinds(uncached), [25, 0, 0, 150, 0]);
}

#[test]
fn gemini_includes_cached_input_and_reports_thoughts_apart() {
    let content = json!({
        "promptTokenCount": 100, "cachedContentTokenCount": 30, "toolUsePromptTokenCount": 7,
        "candidatesTokenCount": 20, "thoughtsTokenCount": 50, "totalTokenCount": 177,
        "promptTokensDetails": [{ "modality": "TEXT", "tokenCount": 100 }],
    });
    assert_eq!(kinds(content), [77, 30, 0, 20, 50]);
    let blocked = json!({ "promptTokenCount": 12, "totalTokenCount": 12 });
    assert_eq!(kinds(blocked), [12, 0, 0, 0, 0]);
}

#[test]
fn what_only_the_total_has_is_output() {
    // Servers with OpenAI's shape: reasoning in the total alone, and beside the completion.
    let hidden = json!({ "prompt_tokens": 758, "completion_tokens": 102, "total_tokens": 1725 });
    assert_eq!(kinds(hidden), [758, 0, 0, 967, 0]);
    let beside = json!({ "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115,
        "completion_tokens_details": { "reasoning_tokens": 100 } });
    assert_eq!(kinds(beside), [10, 0, 0, 5, 100]);
    let smaller = json!({ "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 3 });
    assert_eq!(kinds(smaller), [10, 0, 0, 5, 0]);
}

#[test]
fn the_own_shape_has_disjoint_kinds() {
    assert_eq!(kinds(json!({ "input": 1, "output": 2 })), [1, 0, 0, 2, 0]);
    let all =
        json!({ "input": 1, "cached_input": 2, "cache_write": 3, "output": 4, "reasoning": 5 });
    assert_eq!(kinds(all), [1, 2, 3, 4, 5]);
}

#[test]
fn bad_usage_is_refused() {
    for (usage, message) in [
        (json!({}), "unknown shape"),
        (json!({ "tokens": 5 }), "unknown shape"),
        (json!({ "total_tokens": 5 }), "unknown shape"),
        (json!({ "input": 5 }), "output is missing"),
        (json!({ "input": 5, "output": 1, "ouput": 7 }), "unknown field \"ouput\""),
        (json!({ "prompt_tokens": 5 }), "completion_tokens is missing"),
        (json!({ "completion_tokens": 5 }), "prompt_tokens is missing"),
        (json!({ "output_tokens": 5 }), "input_tokens is missing"),
        (json!({ "totalTokenCount": 5 }), "promptTokenCount is missing"),
        (json!({ "prompt_tokens": 5, "input_tokens": 5, "output_tokens": 1 }), "two providers"),
        (json!({ "input": 5, "output": 5, "output_tokens": 5 }), "two providers"),
        (
            json!({ "input_tokens": 5, "output_tokens": 1, "input_tokens_details": {},
                "cache_read_input_tokens": 1 }),
            "two providers",
        ),
        (
            json!({ "prompt_tokens": 5, "completion_tokens": 1,
                "prompt_tokens_details": { "cached_tokens": 6 } }),
            "cached input is larger",
        ),
        (
            json!({ "prompt_tokens": 5, "completion_tokens": 1,
                "completion_tokens_details": { "reasoning_tokens": 2 } }),
            "reasoning is larger",
        ),
        (json!({ "input": -1, "output": 1 }), "invalid value"),
        (json!({ "input": 1.5, "output": 1 }), "invalid type"),
        (json!({ "input": "1", "output": 1 }), "invalid type"),
        (json!([1, 2]), "invalid type"),
        (json!("usage"), "invalid type"),
    ] {
        let error = read(usage.clone()).unwrap_err();
        assert!(error.contains(message), "{usage}: {error}");
    }
}
