//! `/openapi.json` against the server that it describes.
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

use serde_json::{Value, json};
use testkit::schema::JsonSchemas;
use testkit::server::{ServerProcess, ServerResponse, TempFolder};

/// Every path and its methods. The document must not contain others.
const ADDRESSES: [(&str, &str); 23] = [
    ("/healthz", "get"),
    ("/metrics", "get"),
    ("/openapi.json", "get"),
    ("/readyz", "get"),
    ("/v1/authorize", "delete get head options patch post put trace"),
    ("/v1/cancel", "post"),
    ("/v1/check", "post"),
    ("/v1/check-many", "post"),
    ("/v1/commit", "post"),
    ("/v1/explain", "get"),
    ("/v1/extend", "post"),
    ("/v1/keys", "delete get"),
    ("/v1/keys/{rule}/{key}", "delete get"),
    ("/v1/live", "get"),
    ("/v1/overrides", "delete get put"),
    ("/v1/overrides/{rule}/{key}", "delete get put"),
    ("/v1/record", "post"),
    ("/v1/refund", "post"),
    ("/v1/renew", "post"),
    ("/v1/reserve", "post"),
    ("/v1/rules", "get"),
    ("/v1/rules/{name}", "delete get put"),
    ("/v1/simulate", "post"),
];

const METHODS: [&str; 8] = ["delete", "get", "head", "options", "patch", "post", "put", "trace"];

const POLICY: &str = r#"
rules:
  - { name: open, key: [client_ip], match: { path: /open }, limits: ["100/s"] }
  - { name: shut, key: [client_ip], match: { path: /shut }, limits: ["1/d"] }
  - { name: login, match: { path: /login }, limits: ["sliding-log 5/1m", "fixed-window 100/1d"] }
  - { name: budget, match: { path: /buy }, limits: ["10000/min"], shadow_limits: ["5000/min"] }
"#;

// --- the claims --------------------------------------------------------------------------------

#[test]
fn the_document_has_every_address_and_no_other() {
    let server = ServerProcess::with_policy(POLICY);
    let document = document(&server);
    let found: BTreeMap<_, _> = document["paths"].as_object().unwrap().iter().collect();
    let found: Vec<(String, String)> = found
        .into_iter()
        .map(|(path, methods)| {
            let methods: Vec<_> = methods.as_object().unwrap().keys().cloned().collect();
            (path.clone(), methods.join(" "))
        })
        .collect();
    let expected = ADDRESSES.map(|(path, methods)| (path.to_string(), methods.to_string()));
    assert_eq!(found, expected);
}

#[test]
fn a_method_that_is_not_in_the_document_is_405_and_an_address_404() {
    let server = ServerProcess::with_policy(POLICY);
    for (path, methods) in ADDRESSES {
        let path = path.replace(['{', '}'], "");
        let documented: Vec<&str> = methods.split(' ').collect();
        for method in METHODS {
            let response = send(&server, &Request::new(method, &path));
            // GET implies HEAD.
            let known =
                documented.contains(&method) || (method == "head" && documented.contains(&"get"));
            assert_eq!(response.status != 405, known, "{method} {path}: {response:?}");
            if !known {
                let allow = response.header("allow").unwrap().to_ascii_lowercase();
                let allow: BTreeSet<_> = allow.split(',').filter(|name| *name != "head").collect();
                assert_eq!(allow, documented.iter().copied().collect(), "{method} {path}");
                is_problem(&response, 405);
            }
        }
    }
    for path in ["/v1", "/v1/", "/v1/checks", "/v1/check/", "/v1/keys/a", "/v1/keys/a/b/c", "/x"] {
        for method in ["get", "post"] {
            is_problem(&send(&server, &Request::new(method, path)), 404);
        }
    }
}

#[test]
fn the_document_is_whole() {
    let server = ServerProcess::with_policy(POLICY);
    let document = document(&server);
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut references = Vec::new();
    collect_references(&document, &mut references);
    for reference in &references {
        JsonSchemas(&document).target(reference).unwrap();
    }
    let named: BTreeSet<_> = references.iter().map(String::as_str).collect();
    for (kind, all) in document["components"].as_object().unwrap() {
        for name in all.as_object().unwrap().keys().filter(|_| kind != "securitySchemes") {
            let reference = format!("#/components/{kind}/{name}");
            assert!(named.contains(&*reference), "{reference} is unused");
        }
    }
    let mut ids = BTreeSet::new();
    for operation in operations(&document) {
        let (described, place) = (operation.described, operation.place());
        assert!(ids.insert(described["operationId"].as_str().unwrap()), "{place}");
        assert!(described["summary"].as_str().unwrap().ends_with(['.', '?']), "{place}");
        for way in described["security"].as_array().unwrap() {
            for scheme in way.as_object().unwrap().keys() {
                assert!(document["components"]["securitySchemes"].get(scheme).is_some(), "{place}");
            }
        }
        let parameters = described["parameters"].as_array().cloned().unwrap_or_default();
        let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path");
        let in_path: BTreeSet<_> = in_path.map(|p| p["name"].as_str().unwrap()).collect();
        let wanted: BTreeSet<_> =
            operation.path.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect();
        assert_eq!(in_path, wanted, "{place}");
        for (status, response) in operation.responses(&document) {
            assert!(
                response["description"].as_str().is_some_and(|d| !d.is_empty()),
                "{place} {status}"
            );
        }
    }
}

#[test]
fn every_example_is_as_its_schema_wants_it() {
    let server = ServerProcess::with_policy(POLICY);
    let document = document(&server);
    let mut count = 0;
    for operation in operations(&document) {
        let mut contents: Vec<_> = operation
            .responses(&document)
            .into_iter()
            .map(|(_, response)| &response["content"])
            .collect();
        contents.push(&operation.described["requestBody"]["content"]);
        for content in
            contents.into_iter().filter_map(Value::as_object).flat_map(|all| all.values())
        {
            let checked = JsonSchemas(&document).check(&content["schema"], &content["example"]);
            checked.unwrap_or_else(|error| panic!("{}: {error}", operation.place()));
            count += 1;
        }
    }
    assert!(count > 100, "{count} examples");
}

#[test]
fn every_default_and_example_in_a_schema_is_as_the_schema_wants_it() {
    let server = ServerProcess::with_policy(POLICY);
    let document = document(&server);
    let mut places: Vec<&Value> =
        document["components"]["schemas"].as_object().unwrap().values().collect();
    let mut count = 0;
    while let Some(schema) = places.pop() {
        let examples = schema["examples"].as_array().into_iter().flatten();
        for value in examples.chain(schema.get("default")) {
            JsonSchemas(&document).check(schema, value).unwrap();
            count += 1;
        }
        match schema {
            Value::Object(fields) => places.extend(fields.values()),
            Value::Array(items) => places.extend(items),
            _ => {}
        }
    }
    assert!(count > 20, "{count} defaults and examples");
}

/// The examples work on a server with the rules they name.
#[test]
fn every_example_request_succeeds() {
    let sample = ServerProcess::start(&[], &[("TIDEGATE_ADMIN_TOKEN", "admin")]);
    let document = document(&sample);
    let mut sent = 0;
    for operation in operations(&document) {
        let mut body =
            operation.described["requestBody"]["content"]["application/json"]["example"].clone();
        if body.is_null() {
            continue;
        }
        if body.get("reservation").is_some() {
            body["reservation"] = reserve(&sample);
        }
        let path = operation.path.replace("{name}", "login").replace("{rule}/{key}", "api/k");
        let query = if path == "/v1/overrides" { "?rule=api&key=k" } else { "" };
        let path = format!("{path}{query}");
        let mut request = Request::new(operation.method, &path).json(&body);
        request.token = Some("admin");
        let response = send(&sample, &request);
        let succeeded = [200, 201].contains(&response.status);
        assert!(succeeded, "{}: {}", operation.place(), response.body);
        operation.check(&document, &response).unwrap();
        sent += 1;
    }
    assert_eq!(sent, 13);
}

/// The schema of a body and the server refuse the same bodies.
#[test]
fn what_the_schema_of_a_body_refuses_the_server_refuses() {
    let server = ServerProcess::start(&[], &[("TIDEGATE_ADMIN_TOKEN", "admin")]);
    let document = document(&server);
    for (method, path, good, bad) in [
        (
            "post",
            "/v1/check",
            json!({ "rule": "login", "key": "k" }),
            json!({
                "rule": [1, true, {}, []], "limit": [1, []], "key": [1, {}, [1], [[]], vec!["x"; 17]],
                "cost": [-1, 0.5, "1", [], 4_294_967_297_u64], "checks": [{}, [], [1], [{ "x": 1 }]],
                "id": [1, "", "x".repeat(65)], "wait_ms": [-1, "1", 60_001], "other": [null, 1],
            }),
        ),
        (
            "post",
            "/v1/check-many",
            json!({ "checks": [{ "rule": "login", "key": "k" }] }),
            json!({
                "checks": [null, {}, [], [1], [{ "x": 1 }], vec![json!({ "rule": "login" }); 257]],
                "id": ["a"], "rule": ["login"], "wait_ms": [1],
            }),
        ),
        (
            "post",
            "/v1/reserve",
            json!({ "rule": "budget", "key": "k" }),
            json!({
                "ttl_ms": [0, -1, 3_600_001, "1"], "max_output_tokens": [0, -1, 4_294_967_297_u64, "1"],
                "min_output_tokens": [0, -1, 4_294_967_297_u64, "1"],
            }),
        ),
        (
            "post",
            "/v1/commit",
            json!({ "reservation": "00000000000000000000000000000000" }),
            json!({ "reservation": [null, 1, []], "cost": [-1, 0.5, "1"], "other": [1] }),
        ),
        (
            "post",
            "/v1/simulate",
            json!({ "limits": ["5/s"], "traffic": "steady 9/s for 1s" }),
            json!({
                "limits": [null, "5/s", [], [5], vec!["5/s"; 17]], "traffic": [null, 5], "seed": [-1, 0.5, "1"],
                "hold_ms": [0, -1, 86_400_001, "1"], "plot": [1, "yes"], "calls": [5, []],
                "other": [1],
            }),
        ),
        (
            "put",
            "/v1/rules/{name}",
            json!({ "name": "new", "limits": ["5/min"] }),
            json!({
                "name": [1, "-", ""], "limits": ["5/min", [1], ["5 per min"], vec!["1/s"; 17]],
                "key": ["client_ip", ["missing"]], "match": [1, { "path": "login" }, { "x": 1 }],
                "shadow": ["yes", 1], "stop": [1], "cost": ["1", 1], "lease": ["much", 0],
                "on_missing_key": ["give"], "on_store_failure": ["panic"],
                "fallback_ratio": [0, 1.5, "1"], "other": [1],
                "overrides": [[{ "key": "k" }], [{ "key": "k", "limits": [] }]],
            }),
        ),
        (
            "put",
            "/v1/overrides/{rule}/{key}",
            json!({ "limits": ["5/min"] }),
            json!({
                "limits": [null, "5/min", [], [1], vec!["1/s"; 17]], "until": [1], "for": [1, []],
                "other": [1],
            }),
        ),
    ] {
        let operation =
            operations(&document).find(|o| o.method == method && o.path == path).unwrap();
        let schema = &operation.described["requestBody"]["content"]["application/json"]["schema"];
        JsonSchemas(&document).check(schema, &good).unwrap();
        for (field, values) in bad.as_object().unwrap() {
            for value in values.as_array().unwrap() {
                let mut body = good.clone();
                body[field] = value.clone();
                let refused = JsonSchemas(&document).check(schema, &body);
                assert!(refused.is_err(), "{path}: the schema takes {body}");
                let path = path.replace("{name}", "new").replace("{rule}/{key}", "api/k");
                let mut request = Request::new(method, &path).json(&body);
                request.token = Some("admin");
                let response = send(&server, &request);
                assert_eq!(response.status, 400, "{path}: {body}: {}", response.body);
            }
        }
    }
}

/// Calls that share the type of their body, and fields of it.
const CHECK_CALLS: [&str; 4] = ["/v1/check", "/v1/record", "/v1/refund", "/v1/reserve"];
const SETTLE_CALLS: [&str; 4] = ["/v1/commit", "/v1/cancel", "/v1/renew", "/v1/extend"];

/// The schema of the body of a `POST`.
fn body_schema<'a>(document: &'a Value, path: &str) -> &'a Value {
    let body = &document["paths"][path]["post"]["requestBody"];
    let schema = &body["content"]["application/json"]["schema"];
    JsonSchemas(document).target(schema["$ref"].as_str().unwrap()).unwrap()
}

/// Values that a schema offers for a field: both bounds of a number, or an example.
fn offered(field: &str, schema: &Value) -> Vec<Value> {
    match field {
        "rule" => vec![json!("budget")],
        "limit" => vec![json!("5/s")],
        "key" => vec![json!("k"), json!("k".repeat(1_024)), json!(["a", "b"])],
        "checks" => vec![
            json!([{ "rule": "budget", "key": "k" }, { "limit": "5/s", "key": "k", "cost": 2 }]),
        ],
        "id" => vec![json!("i"), json!("i".repeat(64))],
        "reservation" => vec![],
        "on_expiry" => vec![json!("charge"), json!("charge")],
        "model" => vec![json!("m"), json!("m".repeat(200))],
        "usage" => vec![
            json!({ "input": 3, "output": 4 }),
            json!({ "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7 }),
        ],
        "costs" => vec![json!({ "budget": 3 }), json!([{ "rule": "budget", "cost": 3 }])],
        _ => vec![schema["minimum"].clone(), schema["maximum"].clone()],
    }
}

#[test]
fn what_the_schema_of_a_body_offers_the_server_accepts() {
    let server = ServerProcess::start(&[], &[("TIDEGATE_ADMIN_TOKEN", "admin")]);
    let document = document(&server);
    for path in CHECK_CALLS.iter().chain(&SETTLE_CALLS) {
        let schema = body_schema(&document, path);
        let is_check = CHECK_CALLS.contains(path);
        for (nth, (field, property)) in schema["properties"].as_object().unwrap().iter().enumerate()
        {
            for (i, value) in offered(field, property).into_iter().enumerate() {
                let key = format!("{path}{nth}.{i}");
                let mut body = match &**field {
                    _ if !is_check => json!({ "reservation": reserve_for(&server, &key) }),
                    "checks" => json!({}),
                    "limit" => json!({ "key": key }),
                    _ => json!({ "rule": "budget", "key": key }),
                };
                // Null counts as missing.
                body[if is_check { "id" } else { field }] = Value::Null;
                if *path == "/v1/extend" {
                    body["costs"] = json!({ "budget": 4_294_967_296_u64 });
                }
                if is_check && field == "min" {
                    body["cost"] = json!(4_294_967_296_u64);
                }
                if field.ends_with("_output_tokens") {
                    body["usage"] = json!({ "input": 3, "output": 0 });
                    body["max_output_tokens"] = json!(4_294_967_296_u64);
                }
                body[field] = value;
                JsonSchemas(&document).check(schema, &body).unwrap();
                let response = server.post(path, &body);
                let is_decision = [200, 429].contains(&response.status);
                assert!(is_decision, "{path}: {body}: {}", response.body);
            }
        }
    }
}

#[test]
fn a_field_that_a_call_refuses_is_not_in_its_schema() {
    let server = ServerProcess::start(&[], &[("TIDEGATE_ADMIN_TOKEN", "admin")]);
    let document = document(&server);
    let mut refused = Vec::new();
    for calls in [&CHECK_CALLS[..], &SETTLE_CALLS] {
        let fields = |path: &&str| body_schema(&document, path)["properties"].clone();
        let all: serde_json::Map<_, _> =
            calls.iter().flat_map(|path| fields(path).as_object().unwrap().clone()).collect();
        for path in calls {
            let own = fields(path);
            for (field, property) in all.iter().filter(|(field, _)| own.get(*field).is_none()) {
                let mut body = match calls == CHECK_CALLS {
                    true => json!({ "rule": "budget", "key": "k" }),
                    false => json!({ "reservation": reserve(&server) }),
                };
                if *path == "/v1/extend" {
                    body["costs"] = json!({ "budget": 1 });
                }
                body[field] = offered(field, property)[1].clone();
                let schema = body_schema(&document, path);
                assert!(JsonSchemas(&document).check(schema, &body).is_err(), "{path}: {body}");
                let response = server.post(path, &body);
                assert_eq!(response.status, 400, "{path}: {body}");
                let detail = &response.json()["detail"];
                assert_eq!(detail, "not used by this call; remove it", "{path}: {body}");
                refused.push(format!("{path} {field}"));
            }
        }
    }
    refused.sort();
    let expected = [
        "/v1/cancel cost",
        "/v1/cancel costs",
        "/v1/cancel min",
        "/v1/cancel model",
        "/v1/cancel ttl_ms",
        "/v1/cancel usage",
        "/v1/check max_output_tokens",
        "/v1/check min",
        "/v1/check min_output_tokens",
        "/v1/check model",
        "/v1/check on_expiry",
        "/v1/check ttl_ms",
        "/v1/check usage",
        "/v1/commit min",
        "/v1/commit ttl_ms",
        "/v1/extend cost",
        "/v1/extend model",
        "/v1/extend usage",
        "/v1/record max_output_tokens",
        "/v1/record min",
        "/v1/record min_output_tokens",
        "/v1/record model",
        "/v1/record on_expiry",
        "/v1/record ttl_ms",
        "/v1/record usage",
        "/v1/record wait_ms",
        "/v1/refund max_output_tokens",
        "/v1/refund min",
        "/v1/refund min_output_tokens",
        "/v1/refund model",
        "/v1/refund on_expiry",
        "/v1/refund ttl_ms",
        "/v1/refund usage",
        "/v1/refund wait_ms",
        "/v1/renew cost",
        "/v1/renew costs",
        "/v1/renew min",
        "/v1/renew model",
        "/v1/renew usage",
        "/v1/reserve wait_ms",
    ];
    assert_eq!(refused, expected);
}

#[test]
fn a_check_names_a_rule_or_a_limit_or_several_checks() {
    let server = ServerProcess::start(&[], &[("TIDEGATE_ADMIN_TOKEN", "admin")]);
    let document = document(&server);
    let one = json!({ "rule": "budget", "key": "k" });
    for (body, good) in [
        (json!({}), false),
        (json!({ "key": "k" }), false),
        (json!({ "rule": null, "key": "k" }), false),
        (json!({ "rule": "budget", "limit": "5/s", "key": "k" }), false),
        (json!({ "rule": "budget", "limit": null, "checks": null, "key": "k" }), true),
        (json!({ "limit": "5/s", "rule": null, "key": "k" }), true),
        (json!({ "limit": "5/s" }), false),
        (json!({ "limit": "5/s", "key": [] }), false),
        (json!({ "checks": [one] }), true),
        (json!({ "checks": [one], "rule": null, "key": null }), true),
        (json!({ "checks": [one], "rule": "budget" }), false),
        (json!({ "checks": [one], "cost": 1 }), false),
        (json!({ "checks": [{}] }), false),
        (json!({ "checks": [{ "rule": "budget", "limit": "5/s" }] }), false),
        (json!({ "checks": [{ "rule": null, "limit": "5/s", "key": "k" }] }), true),
        (json!({ "checks": [{ "limit": "5/s" }] }), false),
    ] {
        for path in CHECK_CALLS {
            let checked = JsonSchemas(&document).check(body_schema(&document, path), &body);
            assert_eq!(checked.is_ok(), good, "{path}: {body}: {checked:?}");
            let response = server.post(path, &body);
            assert_eq!(response.status == 200, good, "{path}: {body}: {}", response.body);
        }
    }
}

/// Calls decided by `on_store_failure`, and calls that need no store and return 503 under load.
const ANSWERED_ALONE: [&str; 8] = [
    "/v1/authorize",
    "/v1/check",
    "/v1/check-many",
    "/v1/explain",
    "/v1/live",
    "/v1/record",
    "/v1/reserve",
    "/v1/simulate",
];

#[test]
fn errors_common_to_all_calls_are_documented_for_every_call() {
    let server = ServerProcess::with_policy(POLICY);
    let document = document(&server);
    for operation in operations(&document) {
        let responses = operation.responses(&document);
        let mut wanted = vec!["500"];
        if operation.described.get("requestBody").is_some() {
            // A body may be invalid JSON, late, too long, of another type, or one too many.
            wanted.extend(["400", "408", "413", "415", "503"]);
        }
        for wanted in wanted {
            let message = responses.iter().any(|(status, _)| status == wanted);
            assert!(message, "{}: {wanted}", operation.place());
        }
    }
}

/// Every status of every operation, except 408 (slow), 500 (needs a bug), and 503 where
/// `on_store_failure` decides while the store is unavailable.
#[test]
fn every_documented_response_occurs_as_documented_and_no_other() {
    let servers = Servers::start();
    let document = document(&servers.open);
    let all: Vec<_> = operations(&document).collect();
    let mut seen = BTreeSet::new();
    for (server, request) in servers.requests() {
        let operation = all.iter().find(|operation| operation.is_for(&request));
        let operation = operation.unwrap_or_else(|| panic!("{request:?} is not documented"));
        let response = send(server, &request);
        let status = operation.check(&document, &response);
        let status = status.unwrap_or_else(|error| panic!("{request:?}: {error}: {response:?}"));
        seen.insert((operation.place(), status));
    }
    let documented: BTreeSet<_> = all
        .iter()
        .flat_map(|operation| {
            let statuses = operation.responses(&document).into_iter().map(|(status, _)| status);
            let statuses = statuses.filter(|status| status != "408" && status != "500");
            statuses.map(|status| (operation.place(), status))
        })
        .filter(|(place, status)| {
            status != "503" || !ANSWERED_ALONE.iter().any(|p| place.ends_with(p))
        })
        .collect();
    let missing: Vec<_> = documented.difference(&seen).collect();
    assert!(missing.is_empty(), "documented and not seen: {missing:#?}");
    let mut stderr = std::io::stderr().lock();
    writeln!(
        stderr,
        "openapi: {} operations, {} responses seen as documented",
        all.len(),
        seen.len()
    )
    .unwrap();
}

#[test]
fn the_validator_knows_good_from_bad() {
    let document = json!({ "defs": { "n": { "type": ["integer", "null"], "minimum": 1 } } });
    let schema = json!({
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {
            "a": { "$ref": "#/defs/n" },
            "b": { "type": "array", "items": { "oneOf": [{ "const": 1 }, { "const": "x" }] } },
            "c": { "pattern": r"^([a-c]{1,2}|x.+)$|\$\{" },
        },
    });
    for (value, good) in [
        (json!({ "a": 1 }), true),
        (json!({ "a": null, "b": [1, "x"] }), true),
        (json!({ "a": 0 }), false),
        (json!({ "a": 1.5 }), false),
        (json!({}), false),
        (json!([]), false),
        (json!({ "a": 1, "b": [2] }), false),
        (json!({ "a": 1, "d": 1 }), false),
        (json!({ "a": 1, "c": "ab" }), true),
        (json!({ "a": 1, "c": "abc" }), false),
        (json!({ "a": 1, "c": "x" }), false),
        (json!({ "a": 1, "c": "xyz" }), true),
        (json!({ "a": 1, "c": "any ${thing}" }), true),
    ] {
        assert_eq!(JsonSchemas(&document).check(&schema, &value).is_ok(), good, "{value}");
    }
    for unknown in [json!({ "not": {} }), json!({ "$ref": "#/x" }), json!({ "pattern": r"\d" })] {
        assert!(JsonSchemas(&document).check(&unknown, &json!("1")).is_err(), "{unknown}");
    }
}

// --- the document ------------------------------------------------------------------------------

fn document(server: &ServerProcess) -> Value {
    let response = server.get("/openapi.json");
    assert_eq!(response.header("content-type"), Some("application/json"));
    response.json()
}

struct Operation<'a> {
    method: &'a str,
    path: &'a str,
    described: &'a Value,
}

fn operations(document: &Value) -> impl Iterator<Item = Operation<'_>> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().iter();
        methods.map(move |(method, described)| Operation { method, path, described })
    })
}

impl Operation<'_> {
    fn place(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    fn is_for(&self, request: &Request) -> bool {
        let path = request.path.split('?').next().unwrap();
        let (mine, theirs) = (self.path.split('/'), path.split('/'));
        self.method == request.method
            && mine.clone().count() == theirs.clone().count()
            && mine.zip(theirs).all(|(mine, theirs)| mine == theirs || mine.starts_with('{'))
    }

    /// Each response by its status, with references resolved.
    fn responses<'d>(&'d self, document: &'d Value) -> Vec<(String, &'d Value)> {
        let responses = self.described["responses"].as_object().unwrap();
        let follow = |response: &'d Value| match response["$ref"].as_str() {
            Some(reference) => JsonSchemas(document).target(reference).unwrap(),
            None => response,
        };
        responses.iter().map(|(status, response)| (status.clone(), follow(response))).collect()
    }

    /// Asserts that the document contains the response, and returns which.
    fn check(&self, document: &Value, response: &ServerResponse) -> Result<String, String> {
        let responses = self.responses(document);
        let class = format!("{}XX", response.status / 100);
        let find = |name: &str| responses.iter().find(|(status, _)| status == name);
        let described = find(&response.status.to_string()).or_else(|| find(&class));
        let (status, described) = described.ok_or("no such status in the document")?;
        for (name, _) in described["headers"].as_object().into_iter().flatten() {
            let value = response.header(&name.to_ascii_lowercase());
            if value.is_none() && described["headers"].get("Retry-After").is_none() {
                return Err(format!("{name} is missing"));
            }
        }
        if self.method == "head" {
            return Ok(status.clone());
        }
        if response.header("content-type") == Some(PROBLEM) {
            assert_eq!(response.json()["status"], response.status);
        }
        let Some(content) = described["content"].as_object() else {
            let empty = response.body.is_empty();
            return if empty {
                Ok(status.clone())
            } else {
                Err("a body that is not documented".into())
            };
        };
        let content_type = response.header("content-type").unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default();
        let content = content.get(media_type).ok_or(format!("{content_type}: not documented"))?;
        let body = match media_type {
            "text/plain" => response.body.clone().into(),
            _ => response.json(),
        };
        JsonSchemas(document).check(&content["schema"], &body)?;
        Ok(status.clone())
    }
}

fn collect_references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str).map(String::from));
            fields.values().for_each(|value| collect_references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| collect_references(value, found)),
        _ => {}
    }
}

// --- requests ----------------------------------------------------------------------------------

const PROBLEM: &str = "application/problem+json";

#[derive(Clone, Debug)]
struct Request {
    method: String,
    path: String,
    token: Option<&'static str>,
    headers: Vec<(&'static str, &'static str)>,
    body: String,
}

impl Request {
    fn new(method: &str, path: &str) -> Self {
        let (method, path) = (method.into(), path.into());
        Self { method, path, token: None, headers: Vec::new(), body: String::new() }
    }

    fn json(mut self, body: &Value) -> Self {
        self.body = body.to_string();
        self.headers.push(("content-type", "application/json"));
        self
    }

    fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    fn token(mut self, token: &'static str) -> Self {
        self.token = Some(token);
        self
    }
}

fn send(server: &ServerProcess, request: &Request) -> ServerResponse {
    let mut headers = request.headers.clone();
    headers.extend(request.token.map(|token| ("x-tidegate-token", token)));
    let method = request.method.to_ascii_uppercase();
    if method != "HEAD" {
        return server.request(&method, &request.path, &headers, &request.body);
    }
    // The response to HEAD carries the length of the absent body.
    let fields = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
    let fields: String = fields.collect();
    let head = format!(
        "HEAD {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{fields}\r\n",
        request.path
    );
    testkit::raw_http::parse_response(&testkit::raw_http::exchange(server.http, head.as_bytes()))
        .expect("the listener responds")
}

fn reserve(server: &ServerProcess) -> Value {
    reserve_for(server, "alice")
}

fn reserve_for(server: &ServerProcess, key: &str) -> Value {
    let body = json!({ "rule": "budget", "key": key, "cost": 500 });
    server.post("/v1/reserve", &body).json()["reservation"].clone()
}

fn is_problem(response: &ServerResponse, status: u16) {
    assert_eq!(response.status, status);
    if !response.body.is_empty() {
        assert_eq!(response.header("content-type"), Some(PROBLEM), "{response:?}");
        assert_eq!(response.json()["status"], status);
    }
}

/// Servers that produce different errors.
struct Servers {
    open: ServerProcess,
    guarded: ServerProcess,
    without_adhoc: ServerProcess,
    without_store: ServerProcess,
}

impl Servers {
    fn start() -> Self {
        let folder = TempFolder::new();
        let policy = folder.write("policy.yaml", POLICY);
        let policy = policy.to_str().unwrap();
        let strict = folder.write("strict.yaml", &format!("adhoc: false\n{POLICY}"));
        let admin = ("TIDEGATE_ADMIN_TOKEN", "admin");
        Self {
            open: ServerProcess::start(&["--config", policy], &[admin]),
            guarded: ServerProcess::start(
                &["--config", policy],
                &[admin, ("TIDEGATE_TOKEN", "check")],
            ),
            without_adhoc: ServerProcess::start(&["--config", strict.to_str().unwrap()], &[admin]),
            without_store: ServerProcess::start(
                &["--config", policy, "--store", "redis://127.0.0.1:1", "--ready-when", "store"],
                &[admin],
            ),
        }
    }

    fn requests(&self) -> Vec<(&ServerProcess, Request)> {
        let mut all = Vec::new();
        self.calls(&mut all);
        self.settling(&mut all);
        self.authorizing(&mut all);
        self.keys(&mut all);
        self.rules(&mut all);
        self.overrides(&mut all);
        self.simulating(&mut all);
        for path in ["/v1/live", "/v1/live?seconds=900", "/v1/live?seconds=0"] {
            all.push((&self.open, Request::new("get", path)));
            all.push((&self.guarded, Request::new("get", path)));
        }
        for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
            all.push((&self.guarded, Request::new("get", path)));
            all.push((&self.without_store, Request::new("get", path)));
        }
        all
    }

    fn calls<'s>(&'s self, all: &mut Vec<(&'s ServerProcess, Request)>) {
        for path in ["/v1/check", "/v1/record", "/v1/refund", "/v1/reserve"] {
            let post = |body: &Value| Request::new("post", path).json(body);
            let key = json!([path]);
            all.extend([
                (&self.open, post(&json!({ "rule": "login", "key": key }))),
                (&self.open, post(&json!({ "rule": "login", "key": key, "cost": 5 }))),
                (&self.open, post(&json!({ "rule": "login", "key": key, "cost": 500 }))),
                (&self.open, post(&json!({ "limit": "5/min", "key": key }))),
                (&self.open, post(&json!({ "rule": "budget", "key": key, "id": "a" }))),
                (&self.open, post(&json!({ "rule": "budget", "key": key, "id": "a" }))),
                (&self.open, post(&json!({ "rule": "budget", "key": key, "cost": 2, "id": "a" }))),
                (&self.open, post(&json!({ "checks": [{ "rule": "login" }, { "limit": "1/s" }] }))),
                (&self.open, post(&json!({ "rule": "missing" }))),
                (&self.without_adhoc, post(&json!({ "limit": "1/s" }))),
                (&self.guarded, post(&json!({ "rule": "login" }))),
                (&self.guarded, post(&json!({ "rule": "login" })).token("check")),
                (&self.without_store, post(&json!({ "rule": "login" }))),
            ]);
            self.faulty_bodies("post", path, all);
        }
        let post = |body: &Value| Request::new("post", "/v1/check-many").json(body);
        let one = json!({ "rule": "login", "key": "many", "cost": 4 });
        let others = [json!({ "limit": "5/x" }), json!({ "rule": "missing" })];
        all.extend([
            (&self.open, post(&json!({ "checks": [one, one, others[0], others[1]] }))),
            (&self.open, post(&json!({ "checks": [] }))),
            (&self.guarded, post(&json!({ "checks": [one] }))),
            (&self.without_store, post(&json!({ "checks": [one] }))),
        ]);
        self.faulty_bodies("post", "/v1/check-many", all);
    }

    fn settling<'s>(&'s self, all: &mut Vec<(&'s ServerProcess, Request)>) {
        let unknown = json!({ "reservation": "00000000000000000000000000000000" });
        let extend = |reservation: &Value, total: u64| json!({ "reservation": reservation, "costs": { "budget": total } });
        let held = reserve(&self.open);
        for total in [600, 10_001] {
            let request = Request::new("post", "/v1/extend").json(&extend(&held, total));
            all.push((&self.open, request));
        }
        all.push((
            &self.open,
            Request::new("post", "/v1/cancel").json(&json!({ "reservation": held })),
        ));
        all.push((&self.open, Request::new("post", "/v1/extend").json(&extend(&held, 700))));
        for path in ["/v1/commit", "/v1/cancel", "/v1/renew", "/v1/extend"] {
            let mut body = json!({ "reservation": reserve(&self.open) });
            let mut unknown = unknown.clone();
            if path == "/v1/extend" {
                body["costs"] = json!({ "budget": 1 });
                unknown["costs"] = json!({ "budget": 1 });
            }
            let post = |path: &str, body: &Value| Request::new("post", path).json(body);
            all.push((&self.open, post(path, &body)));
            if path == "/v1/renew" {
                all.push((&self.open, post("/v1/commit", &body)));
                all.push((&self.open, post("/v1/renew", &body)));
            }
            if path == "/v1/cancel" {
                all.push((&self.open, post("/v1/commit", &body)));
            }
            if path == "/v1/commit" {
                all.push((&self.open, post("/v1/cancel", &body)));
            }
            all.extend([
                (&self.open, post(path, &unknown)),
                (&self.guarded, post(path, &unknown)),
                (&self.without_store, post(path, &unknown)),
            ]);
            self.faulty_bodies("post", path, all);
        }
    }

    fn faulty_bodies<'s>(
        &'s self,
        method: &str,
        path: &str,
        all: &mut Vec<(&'s ServerProcess, Request)>,
    ) {
        let request = Request::new(method, path).token("admin");
        let faulty = Request { body: "{".into(), ..request.clone() };
        let long = Request { body: " ".repeat((64 << 10) + 1), ..request.clone() };
        let form = Request { body: "a=b".into(), ..request };
        let form = form.header("content-type", "application/x-www-form-urlencoded");
        all.extend([(&self.open, faulty), (&self.open, long), (&self.open, form)]);
    }

    fn authorizing<'s>(&'s self, all: &mut Vec<(&'s ServerProcess, Request)>) {
        for method in METHODS {
            let path = "/v1/authorize";
            let about = |path: &str, uri| Request::new(method, path).header("x-forwarded-uri", uri);
            all.extend([
                (&self.open, about(path, "/open")),
                (&self.open, about(path, "/shut")),
                (&self.open, about(path, "/shut")),
                (&self.open, about("/v1/authorize?deny_status=403", "/shut")),
                (&self.open, about("/v1/authorize?deny_status=502", "/shut")),
                (&self.open, about("/v1/authorize?deny_status=200", "/shut")),
                (&self.open, Request::new(method, path)),
                (&self.guarded, about(path, "/open")),
                (&self.guarded, about(path, "/open").token("check")),
                (&self.without_store, about(path, "/open")),
            ]);
        }
    }

    fn keys<'s>(&'s self, all: &mut Vec<(&'s ServerProcess, Request)>) {
        let request = |method: &str, path: &str| Request::new(method, path).token("admin");
        for method in ["get", "delete"] {
            all.extend([
                (&self.open, request(method, "/v1/keys/login/k")),
                (&self.open, request(method, "/v1/keys/missing/k")),
                (&self.open, request(method, "/v1/keys/login/%ff")),
                (&self.open, Request::new(method, "/v1/keys/login/k")),
                (&self.guarded, Request::new(method, "/v1/keys/login/k")),
                (&self.guarded, Request::new(method, "/v1/keys/login/k").token("check")),
                (&self.without_store, request(method, "/v1/keys/login/k")),
            ]);
        }
        for (method, path) in [("get", "/v1/keys"), ("delete", "/v1/keys"), ("get", "/v1/explain")]
        {
            let request = |query: &str| request(method, &format!("{path}?{query}"));
            all.extend([
                (&self.open, request("rule=login&key=/v1/check")),
                (&self.open, request("limit=5/min&key=a&key=b")),
                (&self.open, request("rule=missing")),
                (&self.open, request("key=k")),
                (&self.open, request("rule=login&key=%ff")),
                (&self.without_adhoc, request("limit=5/min")),
                (&self.guarded, Request::new(method, &format!("{path}?rule=login"))),
                (&self.without_store, request("rule=login")),
            ]);
        }
        let request = "path=/login&method=POST&host=h&client_ip=1.2.3.4&header=a:b";
        let request = |query: &str| Request::new("get", &format!("/v1/explain?{query}{request}"));
        all.extend([(&self.open, request("")), (&self.open, request("rule=login&"))]);
    }

    fn simulating<'s>(&'s self, all: &mut Vec<(&'s ServerProcess, Request)>) {
        let post = |body: &Value| Request::new("post", "/v1/simulate").json(body);
        let body = json!({ "limits": ["5/s", "concurrency 2"], "traffic": "poisson 9/s keys 3", "hold_ms": 9, "plot": true, "calls": "estimate 2 cost 1..3 takes 1s" });
        all.extend([
            (&self.open, post(&body)),
            (&self.without_adhoc, post(&body)),
            (&self.without_store, post(&body)),
            (&self.open, post(&json!({ "limits": [], "traffic": "steady 1/s" }))),
            (&self.guarded, post(&body)),
            (&self.guarded, post(&body).token("check")),
        ]);
        self.faulty_bodies("post", "/v1/simulate", all);
    }

    fn rules<'s>(&'s self, all: &mut Vec<(&'s ServerProcess, Request)>) {
        let new = Request::new("put", "/v1/rules/new").json(&json!({ "limits": ["5/min"] }));
        let request = |method: &str, path: &str| Request::new(method, path).token("admin");
        all.extend([
            (&self.open, Request::new("get", "/v1/rules")),
            (&self.guarded, Request::new("get", "/v1/rules")),
            (&self.open, Request::new("get", "/v1/rules/login")),
            (&self.open, Request::new("get", "/v1/rules/missing")),
            (&self.open, Request::new("get", "/v1/rules/%ff")),
            (&self.guarded, Request::new("get", "/v1/rules/login")),
            (&self.guarded, new.clone()),
            (&self.guarded, new.clone().token("check")),
            (&self.open, new.clone().token("admin")),
            (&self.open, Request::new("get", "/v1/rules")),
            (&self.open, Request::new("get", "/v1/rules/new")),
            (&self.open, new.clone().token("admin")),
            (&self.open, new.clone().token("admin").header("if-none-match", "*")),
            (&self.without_store, new.token("admin")),
            (&self.without_store, request("delete", "/v1/rules/new")),
            (&self.open, request("delete", "/v1/rules/new").header("if-match", "1.1.1")),
            (&self.open, request("delete", "/v1/rules/new")),
            (&self.open, request("delete", "/v1/rules/new")),
            (&self.open, request("delete", "/v1/rules/login")),
            (&self.open, request("delete", "/v1/rules/%ff")),
            (&self.open, Request::new("delete", "/v1/rules/login")),
            (&self.guarded, request("delete", "/v1/rules/login").token("check")),
        ]);
        self.faulty_bodies("put", "/v1/rules/new", all);
    }

    fn overrides<'s>(&'s self, all: &mut Vec<(&'s ServerProcess, Request)>) {
        let get = |path: &str| Request::new("get", path);
        all.extend([
            (&self.guarded, get("/v1/overrides")),
            (&self.open, get("/v1/overrides?limit=5/s")),
            (&self.open, get("/v1/overrides/login/missing")),
            (&self.open, get("/v1/overrides/login/%ff")),
            (&self.guarded, get("/v1/overrides/login/k")),
        ]);
        for [path, faulty, missing] in [
            ["/v1/overrides/login/k", "/v1/overrides/login/%ff", "/v1/overrides/missing/k"],
            ["/v1/overrides?rule=login&key=q", "/v1/overrides", "/v1/overrides?rule=x&key=q"],
        ] {
            let put = |path: &str| Request::new("put", path).json(&json!({ "limits": ["5/min"] }));
            let delete = |path: &str| Request::new("delete", path).token("admin");
            all.extend([
                (&self.guarded, put(path)),
                (&self.guarded, put(path).token("check")),
                (&self.without_store, put(path).token("admin")),
                (&self.open, put(faulty).token("admin")),
                (&self.open, put(missing).token("admin")),
                (&self.open, put(path).token("admin")),
                (&self.open, put(path).token("admin")),
                (&self.open, put(path).token("admin").header("if-none-match", "*")),
                (&self.open, get("/v1/overrides")),
                (&self.open, get("/v1/overrides/login/k")),
                (&self.guarded, Request::new("delete", path)),
                (&self.guarded, delete(path).token("check")),
                (&self.without_store, delete(path)),
                (&self.open, delete(faulty)),
                (&self.open, delete(path).header("if-match", "1.1.1")),
                (&self.open, delete(path)),
                (&self.open, delete(path)),
            ]);
            self.faulty_bodies("put", path, all);
        }
    }
}
