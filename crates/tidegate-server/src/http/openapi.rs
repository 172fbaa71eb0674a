//! The description of everything under one address, in OpenAPI 3.1.

use http::StatusCode;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use super::operation::{Answer, Caller, Content, Headers, Operation};
use super::problem::{Problem, ProblemBody};
use super::routes;

/// The document.
pub(super) fn document() -> Value {
    let mut writer = Writer::new();
    let mut paths = Map::new();
    for route in routes::calls().iter().chain(&routes::others()) {
        let mut methods = Map::new();
        for (method, operation) in &route.operations {
            methods.insert(method.to_string(), writer.operation(method, operation));
        }
        paths.insert(route.path.into(), methods.into());
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate",
            "summary": "A rate limiter for every language.",
            "description": "Ask before you do something: 200 is yes and 429 is no, with the same \
                body. What goes wrong is told as application/problem+json.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": writer.components(),
    })
}

/// Writes operations, and remembers what they refer to.
struct Writer {
    /// Makes schemas of what is sent.
    sent: SchemaGenerator,
    /// Makes schemas of what is answered.
    answered: SchemaGenerator,
    problems: Map<String, Value>,
}

impl Writer {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self {
            sent: settings.clone().for_deserialize().into_generator(),
            answered: settings.for_serialize().into_generator(),
            problems: Map::new(),
        }
    }

    fn operation(&mut self, method: &str, operation: &Operation) -> Value {
        let mut responses = Map::new();
        for answer in &operation.answers {
            responses.insert(answer.status.clone(), self.answer(answer));
        }
        // A mistake of ours can be anywhere.
        for status in operation.problems.iter().chain([&StatusCode::INTERNAL_SERVER_ERROR]) {
            responses.insert(status.as_str().into(), self.problem(*status));
        }
        let mut written = json!({
            "operationId": format!("{method}-{}", operation.id),
            "summary": operation.summary,
            "security": security(operation.caller),
            "responses": responses,
        });
        if !operation.parameters.is_empty() {
            written["parameters"] = operation.parameters.clone().into();
        }
        if let Some(body) = &operation.body {
            let content = content(body, &mut self.sent);
            written["requestBody"] = json!({ "required": true, "content": content });
        }
        written
    }

    fn answer(&mut self, answer: &Answer) -> Value {
        let mut written = json!({ "description": answer.says });
        if let Some(body) = &answer.content {
            written["content"] = content(body, &mut self.answered);
        }
        if let Some(media_type) = answer.streamed_as {
            written["content"][media_type] = {
                let example = "data: {\"version\":\"..\", ..}\n\n";
                json!({ "schema": { "type": "string" }, "example": example })
            };
        }
        let names = match answer.headers {
            Headers::Nothing => Vec::new(),
            Headers::Limits => LIMIT_HEADERS.to_vec(),
            Headers::Denial => [LIMIT_HEADERS, DENIAL_HEADERS].concat(),
        };
        let refer = |name: &&str| {
            (name.to_string(), json!({ "$ref": format!("#/components/headers/{name}") }))
        };
        if !names.is_empty() {
            written["headers"] = names.iter().map(refer).collect::<Map<_, _>>().into();
        }
        written
    }

    /// Problems of one status are the same everywhere.
    fn problem(&mut self, status: StatusCode) -> Value {
        let name = status.canonical_reason().unwrap_or("Problem").replace(' ', "");
        let reference = json!({ "$ref": format!("#/components/responses/{name}") });
        let (says, detail) = problem(status);
        let schema = self.answered.subschema_for::<ProblemBody>();
        let example = Problem::new(status, detail);
        let content =
            json!({ Problem::CONTENT_TYPE: { "schema": schema, "example": example.body() } });
        self.problems.insert(name, json!({ "description": says, "content": content }));
        reference
    }

    fn components(mut self) -> Value {
        let mut schemas = self.sent.take_definitions(true);
        schemas.append(&mut self.answered.take_definitions(true));
        let mut schemas = Value::Object(schemas);
        tidy(&mut schemas);
        json!({
            "schemas": schemas,
            "responses": self.problems,
            "headers": headers(),
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "token": { "type": "apiKey", "in": "header", "name": "X-Tidegate-Token" },
            },
        })
    }
}

fn content(content: &Content, generator: &mut SchemaGenerator) -> Value {
    let schema = (content.schema)(generator);
    json!({ content.media_type: { "schema": schema, "example": content.example } })
}

fn security(caller: Caller) -> Value {
    let (bearer, token) = (json!({ "bearer": [] }), json!({ "token": [] }));
    match caller {
        Caller::Anybody => json!([]),
        Caller::Asker => json!([bearer, token, {}]),
        Caller::Proxy => json!([token, {}]),
        Caller::Admin => json!([bearer, token]),
    }
}

/// What a problem of this status means, and an example of what it says.
fn problem(status: StatusCode) -> (&'static str, &'static str) {
    match status.as_u16() {
        400 => ("Something that was sent is wrong; `field` names it.", "1 to 16 checks"),
        401 => ("No token, or one that opens nothing.", "show the token"),
        403 => (
            "This needs the admin token; or the policy takes no limits of the caller's own.",
            "this needs the admin token",
        ),
        404 => ("No such rule or reservation.", "no rule named \"lgoin\""),
        408 => ("The body was too long in coming.", "the body was too long in coming"),
        409 => (
            "The id was used for another request, the reservation was settled in another way, or \
             the rule is the policy file's.",
            "the id was used for another request; use a new one",
        ),
        412 => ("There is a rule of this name already.", "there is a rule of this name already"),
        413 => ("The body is longer than 64 KiB.", "the body is too long; send at most 64 KiB"),
        415 => ("The content type is not JSON.", "send JSON with Content-Type: application/json"),
        500 => (
            "The server has made a mistake. It may have been charged.",
            "the server has made a mistake; it may have been charged, so retry with an id",
        ),
        503 => (
            "The store gave no answer, and the detail says whether it may have been charged; or \
             too many long requests are on their way.",
            "no decision, nothing charged: connection refused",
        ),
        _ => ("Something went wrong.", "something went wrong"),
    }
}

const LIMIT_HEADERS: &[&str] = &[
    "RateLimit",
    "RateLimit-Policy",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
];

const DENIAL_HEADERS: &[&str] = &["Retry-After", "Cache-Control"];

fn headers() -> Value {
    let header = |says: &str, kind: &str, example: Value| json!({ "description": says, "schema": { "type": kind }, "example": example });
    json!({
        "RateLimit": header(
            "What is left of each limit (`r`), and the seconds until it allows more or is as if \
             unused (`t`).",
            "string",
            "\"login.1\";r=4;t=60, \"login.2\";r=99;t=52260".into(),
        ),
        "RateLimit-Policy": header(
            "The most that fits into each limit (`q`), and the seconds after which all of it is \
             there again (`w`).",
            "string",
            "\"login.1\";q=5;w=60, \"login.2\";q=100;w=86400".into(),
        ),
        "X-RateLimit-Limit": header("`limit` of the body.", "integer", 5.into()),
        "X-RateLimit-Remaining": header("`remaining` of the body.", "integer", 4.into()),
        "X-RateLimit-Reset": header(
            "The seconds until the limit that speaks is as if unused.",
            "integer",
            60.into(),
        ),
        "Retry-After": header(
            "The seconds after which to ask again; missing if it can never pass.",
            "integer",
            12.into(),
        ),
        "Cache-Control": header("`no-store`.", "string", "no-store".into()),
    })
}

/// Comments in the code have lines, and sentences in a document have not. A default that is empty
/// says only that the field may be left out, which is said already.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            if fields.get("default").is_some_and(is_empty) {
                fields.remove("default");
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
