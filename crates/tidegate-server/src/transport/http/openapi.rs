//! The OpenAPI 3.1 document: `openapi.json`, and the schemas of the bodies. Imports: json, problem.

use std::sync::LazyLock;

use axum::response::Response;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::handlers::keys::InspectionBody;
use super::handlers::overrides::{OverrideBody, OverrideChangeBody, OverridesBody};
use super::handlers::rules::{RuleBody, RulesBody};
use super::handlers::simulate::{SimulateBody, SimulateResponse};
use super::handlers::status::StatusBody;
use super::json::{
    CallBody, CheckBody, CheckManyBody, CheckManyResponse, DecisionBody, SettleBody, SettlementBody,
};
use super::problem::ProblemBody;
use super::response;
use crate::check::explain::Explanation;
use crate::observe::traffic::TrafficSnapshot;
use tidegate_config::RuleFile;

static DOCUMENT: LazyLock<Value> = LazyLock::new(document);

/// `GET /openapi.json`
pub(crate) async fn openapi() -> Response {
    static TEXT: LazyLock<String> = LazyLock::new(|| DOCUMENT.to_string());
    response::text("application/json", TEXT.as_str())
}

/// The example of `GET /v1/live`.
pub fn live_example() -> Value {
    let content = &DOCUMENT["paths"]["/v1/live"]["get"]["responses"]["200"]["content"];
    content["application/json"]["example"].clone()
}

/// The file has two abbreviations: the string `$name` stands for the entry `name` of `shared`, and
/// the field `$base` of an object adds the fields of another one. `any` stands for all methods.
fn document() -> Value {
    let text = include_str!("openapi.json").replace("{version}", env!("CARGO_PKG_VERSION"));
    // The tests of the document would notice an invalid file.
    let mut file: Map<String, Value> = serde_json::from_str(&text).unwrap_or_default();
    let shared = file.remove("shared").unwrap_or_default();
    let mut document = expanded(&file.into(), &shared);
    document["components"]["schemas"] = schemas();
    let authorize = &mut document["paths"]["/v1/authorize"];
    let operation = authorize["any"].take();
    *authorize = ["delete", "get", "head", "options", "patch", "post", "put", "trace"]
        .into_iter()
        .map(|method| {
            let mut operation = operation.clone();
            operation["operationId"] = format!("{method}-authorize").into();
            (method, operation)
        })
        .collect();
    document
}

fn expanded(value: &Value, shared: &Value) -> Value {
    let named = |text: &str| shared.get(text.strip_prefix('$')?);
    match value {
        Value::String(text) => named(text).map_or(value.clone(), |other| expanded(other, shared)),
        Value::Array(items) => items.iter().map(|item| expanded(item, shared)).collect(),
        Value::Object(fields) => {
            let base = fields.get("$base").map(|base| expanded(base, shared));
            let own = fields.iter().filter(|(name, _)| *name != "$base");
            let own = own.map(|(name, value)| (name.clone(), expanded(value, shared)));
            let base = base.as_ref().and_then(Value::as_object).cloned().unwrap_or_default();
            base.into_iter().chain(own).collect()
        }
        _ => value.clone(),
    }
}

/// The schemas of all bodies, by the name of their type.
fn schemas() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut requests = settings.clone().for_deserialize().into_generator();
    requests.subschema_for::<CheckBody>();
    requests.subschema_for::<CheckManyBody>();
    requests.subschema_for::<OverrideChangeBody>();
    requests.subschema_for::<RuleFile>();
    requests.subschema_for::<SettleBody>();
    requests.subschema_for::<SimulateBody>();
    let mut responses = settings.for_serialize().into_generator();
    responses.subschema_for::<CheckManyResponse<'_>>();
    responses.subschema_for::<DecisionBody<'_>>();
    responses.subschema_for::<Explanation>();
    responses.subschema_for::<InspectionBody<'_>>();
    responses.subschema_for::<SettlementBody<'_>>();
    responses.subschema_for::<OverrideBody>();
    responses.subschema_for::<OverridesBody>();
    responses.subschema_for::<ProblemBody>();
    responses.subschema_for::<SimulateResponse>();
    responses.subschema_for::<RuleBody>();
    responses.subschema_for::<RulesBody>();
    responses.subschema_for::<StatusBody>();
    responses.subschema_for::<TrafficSnapshot>();
    let mut schemas = requests.take_definitions(true);
    split_by_call(&mut schemas, "CheckBody", &CallBody::CHECKS);
    split_by_call(&mut schemas, "SettleBody", &CallBody::SETTLES);
    schemas.append(&mut responses.take_definitions(true));
    let mut schemas = Value::Object(schemas);
    tidegate_config::tidy_schema(&mut schemas);
    schemas
}

/// Replaces the schema of a body that several calls share by one for each call, without the fields
/// that the call refuses.
fn split_by_call(schemas: &mut Map<String, Value>, shared: &str, calls: &[CallBody]) {
    let shared = schemas.remove(shared).unwrap_or_default();
    for call in calls {
        let mut schema = shared.clone();
        schema["description"] = format!("Body of `POST {}`.", call.path).into();
        if let Some(fields) = schema["properties"].as_object_mut() {
            fields.retain(|name, _| !call.unused.contains(&&**name));
            // A reservation of nothing is refused.
            if let (CallBody::RESERVE, Some(cost)) = (*call, fields.get_mut("cost")) {
                cost["minimum"] = 1.into();
            }
        }
        if let (CallBody::EXTEND, Some(required)) = (*call, schema["required"].as_array_mut()) {
            required.push("costs".into());
        }
        schemas.insert(call.schema.into(), schema);
    }
}
