//! A gateway in front of a model server: reserves before a call, streams it, commits its usage.
//! `llm-gateway PORT POLICY MODEL_URL`. One process decides by itself; several share their budgets
//! with `tidegate_redis::Redis` in place of `Memory`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tidegate::pricing::{Prices, TokenUsage};
use tidegate::{Cost, Decision, Limited, Limiter, Memory, RuleCheck, RuleCost};
use tidegate_config::PolicyLoader;
use tidegate_tower::headers::{HeaderStyle, RateLimitHeaders};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// Each rule, and the header with its key.
const RULES: [(&str, &str); 4] = [
    ("org-spend", "x-org"),
    ("team-tokens", "x-team"),
    ("user-tokens", "x-user"),
    ("user-requests", "x-user"),
];
const DEFAULT_OUTPUT: u64 = 800;
/// Longest event that is searched for the usage, in bytes.
const MAX_EVENT: usize = 64 << 10;
const MAX_DURATION: Duration = Duration::from_secs(120);

struct Gateway {
    limiter: Limiter,
    prices: Arc<Prices>,
    model_url: String,
    client: reqwest::Client,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, policy, model_url] = &*arguments else {
        return Err("usage: llm-gateway PORT POLICY MODEL_URL".into());
    };
    let loaded = PolicyLoader::load(policy)?;
    let gateway = Gateway {
        limiter: Limiter::with_policy(Memory::default(), loaded.policy),
        prices: loaded.settings.prices.ok_or("the policy has no prices")?,
        model_url: format!("{model_url}/v1/chat/completions"),
        client: reqwest::Client::builder().timeout(MAX_DURATION).build()?,
    };
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port.parse()?)).await?;
    println!("{}", listener.local_addr()?.port());
    let app = Router::new().route("/v1/chat/completions", post(complete));
    Ok(axum::serve(listener, app.with_state(Arc::new(gateway))).await?)
}

async fn complete(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    Json(mut request): Json<Value>,
) -> Response {
    let text = request["messages"].to_string();
    let output = request["max_tokens"].as_u64().unwrap_or(DEFAULT_OUTPUT);
    request["max_tokens"] = output.into();
    request["stream"] = true.into();
    request["stream_options"] = json!({ "include_usage": true });
    // About four characters are a token. max_tokens bounds the output.
    let input = text.len() as u64 / 4 + 1;
    let estimate = TokenUsage { input, output, ..TokenUsage::default() };
    let model = request["model"].as_str().unwrap_or_default();
    let costs = gateway.costs(model, &estimate);
    let mut checks = Vec::new();
    for (rule, header) in RULES {
        let Some(key) = headers.get(header).and_then(|key| key.to_str().ok()) else {
            return (StatusCode::BAD_REQUEST, format!("{header} is required")).into_response();
        };
        let cost = costs.iter().find(|cost| cost.rule == rule).map_or(1, |cost| cost.cost.get());
        checks.push(RuleCheck::new(rule, key).cost(cost));
    }
    // All four rules have room for the call, or none is charged.
    let reserved = match gateway.limiter.reserve_each(&checks).ttl(MAX_DURATION).await {
        Ok(reserved) => reserved,
        Err(Limited::Denied(decision)) => return gateway.denied(&decision),
        Err(Limited::NoAnswer(error)) => {
            return (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response();
        }
    };
    let call = gateway.client.post(&gateway.model_url).body(request.to_string());
    let Ok(reply) = call.send().await else {
        // The model was not reached: no token was used.
        drop(reserved);
        return StatusCode::BAD_GATEWAY.into_response();
    };
    let (sender, receiver) = mpsc::channel(16);
    // A task of its own: if the client hangs up, the usage is committed all the same.
    tokio::spawn(async move {
        let settled = match forward(reply, &sender).await {
            Some((model, usage)) => reserved.commit_each(&gateway.costs(&model, &usage)).await,
            // Without usage, for example because a side hung up, what was reserved is charged.
            None => reserved.commit_all().await,
        };
        if let Err(error) = settled {
            eprintln!("not committed, charged at the deadline: {error}");
        }
    });
    let body = Body::from_stream(ReceiverStream::new(receiver));
    ([("content-type", "text/event-stream")], body).into_response()
}

/// Sends the stream on; the model and the usage in its last chunk.
async fn forward(
    mut reply: reqwest::Response,
    client: &mpsc::Sender<reqwest::Result<Bytes>>,
) -> Option<(String, TokenUsage)> {
    let (mut line, mut used) = (Vec::new(), None);
    while let Some(chunk) = reply.chunk().await.ok()? {
        for &byte in &chunk {
            if line.len() < MAX_EVENT {
                line.push(byte);
            }
            if byte == b'\n' {
                used = used_in(&line).or(used);
                line.clear();
            }
        }
        client.send(Ok(chunk)).await.ok()?;
    }
    used
}

fn used_in(line: &[u8]) -> Option<(String, TokenUsage)> {
    let event: Value = serde_json::from_slice(line.strip_prefix(b"data: ")?).ok()?;
    let usage = serde_json::from_value(event.get("usage")?.clone()).ok()?;
    Some((event["model"].as_str()?.to_string(), usage))
}

impl Gateway {
    /// What a call costs under the rules that count tokens or money. A model without a price has
    /// that of "*".
    fn costs(&self, model: &str, usage: &TokenUsage) -> Vec<RuleCost<'static>> {
        let (policy, price) = (self.limiter.policy(), self.prices.find(model));
        let cost = |(name, _): (&'static str, &str)| {
            let unit = policy.rule(name)?.unit()?;
            let cost = usage.cost(unit, price.map(|(_, price)| price))?;
            Some(RuleCost::new(name, Cost::total(cost)))
        };
        let costs = RULES.into_iter().filter(|(name, _)| *name != "user-requests");
        costs.filter_map(cost).collect()
    }

    /// A denial with the headers that clients of OpenAI read.
    fn denied(&self, decision: &Decision) -> Response {
        let policy = self.limiter.policy();
        let rules = RULES.into_iter().filter_map(|(name, _)| policy.rule(name));
        let limits = rules.flat_map(|rule| rule.rule().limits());
        let error = json!({ "error": { "type": "rate_limit", "message": "over budget" } });
        let mut response = (StatusCode::TOO_MANY_REQUESTS, Json(error)).into_response();
        let clock = self.limiter.engine().clock();
        let headers = RateLimitHeaders::in_style(HeaderStyle::OpenAi, &*clock, decision, limits);
        headers.write(response.headers_mut());
        response
    }
}
