//! Every address, with who answers there and what the document says about it.

use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter};
use serde_json::{Value, json};

use super::bodies::{CheckBody, SettleBody};
use super::examples::{
    RESERVATION, and, decision, denial, how_it_is, key_in_path, key_in_query, listed, parameter,
    request_in_query, rule, rule_name, seen_lately, simulated,
};
use super::keys::{ExplainBody, InspectionBody};
use super::operation::{Caller, Headers, Operation};
use super::rules::{RuleBody, RulesBody};
use super::simulate::{ReportBody, SimulateBody};
use super::status::StatusBody;
use super::{Door, authorize, calls, keys, live, rules, simulate, status};
use crate::config::RuleFile;
use crate::live::Snapshot;

/// One address.
pub(super) struct Route {
    pub(super) path: &'static str,
    pub(super) handlers: MethodRouter<Door>,
    /// By method, in small letters.
    pub(super) operations: Vec<(&'static str, Operation)>,
}

impl Route {
    fn at(path: &'static str) -> Self {
        Self { path, handlers: MethodRouter::new(), operations: Vec::new() }
    }

    fn get<T: 'static>(self, handler: impl Handler<T, Door>, operation: Operation) -> Self {
        self.on("get", MethodFilter::GET, handler, operation)
    }

    fn post<T: 'static>(self, handler: impl Handler<T, Door>, operation: Operation) -> Self {
        self.on("post", MethodFilter::POST, handler, operation)
    }

    fn put<T: 'static>(self, handler: impl Handler<T, Door>, operation: Operation) -> Self {
        self.on("put", MethodFilter::PUT, handler, operation)
    }

    fn delete<T: 'static>(self, handler: impl Handler<T, Door>, operation: Operation) -> Self {
        self.on("delete", MethodFilter::DELETE, handler, operation)
    }

    fn on<T: 'static>(
        mut self,
        method: &'static str,
        filter: MethodFilter,
        handler: impl Handler<T, Door>,
        operation: Operation,
    ) -> Self {
        self.handlers = self.handlers.on(filter, handler);
        self.operations.push((method, operation));
        self
    }

    /// Whatever the method is.
    fn any<T: 'static>(
        mut self,
        handler: impl Handler<T, Door>,
        operation: fn() -> Operation,
    ) -> Self {
        const METHODS: [&str; 8] =
            ["delete", "get", "head", "options", "patch", "post", "put", "trace"];
        self.handlers = axum::routing::any(handler);
        self.operations.extend(METHODS.map(|method| (method, operation())));
        self
    }
}

/// What is asked all day long.
pub(super) fn calls() -> Vec<Route> {
    vec![
        Route::at("/v1/check").post(calls::check, check()),
        Route::at("/v1/record").post(calls::record, record()),
        Route::at("/v1/refund").post(calls::refund, refund()),
        Route::at("/v1/reserve").post(calls::reserve, reserve()),
        Route::at("/v1/commit").post(calls::commit, commit()),
        Route::at("/v1/cancel").post(calls::cancel, cancel()),
        Route::at("/v1/renew").post(calls::renew, renew()),
        Route::at("/v1/authorize").any(authorize::authorize, authorize_any),
    ]
}

/// What is asked now and then.
pub(super) fn others() -> Vec<Route> {
    vec![
        Route::at("/v1/keys/{rule}/{key}")
            .get(
                keys::inspect_path,
                inspect("key").reads(key_in_path()).fails(&[400, 401, 404, 503]),
            )
            .delete(keys::reset_path, reset("key").reads(key_in_path())),
        Route::at("/v1/keys")
            .get(keys::inspect_query, inspect("keys").reads(key_in_query()).fails(&QUERY_PROBLEMS))
            .delete(keys::reset_query, reset("keys").reads(key_in_query())),
        Route::at("/v1/explain").get(keys::explain, explain()),
        Route::at("/v1/rules").get(rules::list, list_rules()),
        Route::at("/v1/rules/{name}")
            .get(rules::show, show_rule())
            .put(rules::put, put_rule())
            .delete(rules::delete, delete_rule()),
        Route::at("/v1/live").get(live::live, see_live()),
        Route::at("/v1/simulate").post(simulate::simulate, simulate_traffic()),
        Route::at("/metrics").get(status::metrics, metrics()),
        Route::at("/healthz").get(status::health, health()),
        Route::at("/readyz").get(status::ready, ready()),
        Route::at("/openapi.json").get(status::openapi, openapi()),
    ]
}

/// Whatever a call with a body about rules and limits can fail with.
const CALL_PROBLEMS: [u16; 9] = [400, 401, 403, 404, 408, 409, 413, 415, 503];
/// The same for a call about a reservation.
const SETTLE_PROBLEMS: [u16; 8] = [400, 401, 404, 408, 409, 413, 415, 503];
/// The same for a question in the address.
const QUERY_PROBLEMS: [u16; 5] = [400, 401, 403, 404, 503];

fn check() -> Operation {
    Operation::new("check", Caller::Asker, "Charges, if every limit allows it.")
        .takes::<CheckBody>(json!({ "rule": "login", "key": "1.2.3.4", "cost": 1 }))
        .decides(200, "Allowed and charged; or a peek.", decision())
        .decides(429, "Denied; nothing was charged.", denial())
        .fails(&CALL_PROBLEMS)
}

fn record() -> Operation {
    Operation::new("record", Caller::Asker, "Charges what has happened, whatever is left.")
        .takes::<CheckBody>(json!({ "rule": "login", "key": "1.2.3.4", "cost": 1 }))
        .decides(200, "Charged.", decision())
        .fails(&CALL_PROBLEMS)
}

fn refund() -> Operation {
    Operation::new("refund", Caller::Asker, "Gives back what was charged.")
        .takes::<CheckBody>(json!({ "rule": "login", "key": "1.2.3.4", "cost": 1 }))
        .decides(200, "Given back, as far as it was there.", and(decision(), "refunded", 1))
        .fails(&CALL_PROBLEMS)
}

fn reserve() -> Operation {
    let reserved = and(decision(), "expires_in_ms", 60_000);
    Operation::new("reserve", Caller::Asker, "Sets aside, if every limit allows it.")
        .takes::<CheckBody>(
            json!({ "rule": "budget", "key": "alice", "cost": 500, "ttl_ms": 60_000 }),
        )
        .decides(200, "Set aside.", and(reserved, "reservation", RESERVATION))
        .decides(429, "Denied; nothing was set aside.", denial())
        .fails(&CALL_PROBLEMS)
}

fn commit() -> Operation {
    Operation::new("commit", Caller::Asker, "Ends a reservation and charges what it came to.")
        .takes::<SettleBody>(json!({ "reservation": RESERVATION, "cost": 312 }))
        .decides(
            200,
            "Ended, now or before; `expired` if too late.",
            and(decision(), "expired", false),
        )
        .fails(&SETTLE_PROBLEMS)
}

fn cancel() -> Operation {
    Operation::new("cancel", Caller::Asker, "Ends a reservation and charges nothing.")
        .takes::<SettleBody>(json!({ "reservation": RESERVATION }))
        .decides(200, "Ended, now or before.", and(decision(), "expired", false))
        .fails(&SETTLE_PROBLEMS)
}

fn renew() -> Operation {
    let renewed = and(decision(), "expired", false);
    Operation::new("renew", Caller::Asker, "Lets a reservation last longer, from now on.")
        .takes::<SettleBody>(json!({ "reservation": RESERVATION, "ttl_ms": 60_000 }))
        .decides(200, "It lasts; or it was `expired`.", and(renewed, "expires_in_ms", 60_000))
        .fails(&SETTLE_PROBLEMS)
}

fn authorize_any() -> Operation {
    let header =
        |name: &str, says: &str| parameter("header", name, says, json!({ "type": "string" }));
    let status = json!({ "type": "integer", "minimum": 400, "maximum": 599, "default": 429 });
    Operation::new(
        "authorize",
        Caller::Proxy,
        "Forward-auth: may a proxy pass on the request that it describes?",
    )
    .reads([
        parameter("query", "deny_status", "The status of a denial.", status),
        header("X-Forwarded-Method", "The method of the request; or X-Original-Method."),
        header("X-Forwarded-Uri", "What it asks for; or X-Original-URI or X-Original-URL."),
        header("X-Forwarded-Host", "The host it asks; or X-Original-Host."),
        header("X-Forwarded-For", "The client, if a trusted proxy says so."),
    ])
    .answers_nothing(200, "It may pass.", Headers::Limits)
    .denies(&json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": ["login.1"],
    }))
    .fails(&[400, 401, 503])
}

fn inspect(id: &'static str) -> Operation {
    let standing = json!({
        "rule": "login",
        "policy": "login.1",
        "limit": "sliding-log 5/min",
        "shadow": false,
        "capacity": 5,
        "used": 1,
        "held": 0,
        "remaining": 4,
        "reset_after_ms": 12_000,
        "source": "memory",
        "shared": false,
        "entries": [{ "who": null, "cost": 1 }],
    });
    Operation::new(id, Caller::Asker, "Tells what a key has used.").answers::<InspectionBody<'_>>(
        200,
        "What it has used, under each limit.",
        json!({ "limits": [standing] }),
    )
}

fn reset(id: &'static str) -> Operation {
    Operation::new(id, Caller::Admin, "Forgets what a key has used.")
        .decides(200, "Forgotten.", decision())
        .fails(&QUERY_PROBLEMS)
}

fn explain() -> Operation {
    let sentences = [
        "login.1 (sliding-log 5/min) has 4 of 5 left and is as good as unused in 12s; it allows \
         the next request.",
        "A request would pass now.",
    ];
    Operation::new("explanation", Caller::Asker, "Tells in sentences what the case is.")
        .reads(key_in_query())
        .reads(request_in_query())
        .answers::<ExplainBody>(
            200,
            "Which rules apply to a request; one sentence for each limit, and one about all of them.",
            json!({ "allowed": true, "sentences": sentences }),
        )
        .fails(&QUERY_PROBLEMS)
}

fn list_rules() -> Operation {
    Operation::new("rules", Caller::Asker, "Tells all rules, in the order they are looked at.")
        .answers::<RulesBody>(200, "All rules.", json!({ "rules": [listed("file")] }))
        .fails(&[401])
}

fn show_rule() -> Operation {
    Operation::new("rule", Caller::Asker, "Tells a rule.")
        .reads([rule_name()])
        .answers::<RuleBody>(200, "The rule.", listed("file"))
        .fails(&[400, 401, 404])
}

fn put_rule() -> Operation {
    let only_if = json!({ "type": "string", "enum": ["*"] });
    Operation::new("rule", Caller::Admin, "Sets a rule until a restart, or until it is deleted.")
        .reads([
            rule_name(),
            parameter("header", "If-None-Match", "Only if there is none.", only_if),
        ])
        .takes::<RuleFile>(rule())
        .answers::<RuleBody>(200, "It takes the place of another.", listed("runtime"))
        .answers::<RuleBody>(201, "It is new.", listed("runtime"))
        .fails(&[400, 401, 403, 408, 412, 413, 415, 503])
}

fn delete_rule() -> Operation {
    Operation::new("rule", Caller::Admin, "Takes back a rule that was set while running.")
        .reads([rule_name()])
        .answers_nothing(204, "Taken back.", Headers::Nothing)
        .fails(&[400, 401, 403, 404, 409])
}

fn see_live() -> Operation {
    let seconds = json!({ "type": "integer", "minimum": 1, "maximum": 900, "default": 60 });
    Operation::new("live", Caller::Asker, "Tells what the server has seen lately.")
        .reads([parameter("query", "seconds", "How many seconds of it.", seconds)])
        .answers::<Snapshot>(
            200,
            "As it was when the last second ended; with `Accept: text/event-stream` as an event, and another every \
             second.",
            seen_lately(),
        )
        .or_streams(live::EVENT_STREAM)
        .fails(&[400, 401, 503])
}

fn simulate_traffic() -> Operation {
    Operation::new("simulate", Caller::Asker, "Tries limits on imagined traffic.")
        .takes::<SimulateBody>(json!({
            "limits": ["fixed-window 100/10s", "sliding-log 100/10s"],
            "traffic": "burst 100 every 7s for 1m",
            "seed": 1,
        }))
        .answers::<ReportBody>(200, "What came of it.", simulated())
        .fails(&[400, 401, 408, 413, 415, 503])
}

fn metrics() -> Operation {
    Operation::new("metrics", Caller::Anybody, "Tells what Prometheus wants to know.")
        .answers_text("The metrics.", "# TYPE tidegate_store_up gauge\ntidegate_store_up 1\n")
}

fn health() -> Operation {
    Operation::new("health", Caller::Anybody, "Tells that the process lives, and how it is.")
        .answers::<StatusBody>(200, "It lives.", how_it_is())
}

fn ready() -> Operation {
    Operation::new("readiness", Caller::Anybody, "Tells whether the store answers.")
        .answers::<StatusBody>(200, "It does.", how_it_is())
        .answers::<StatusBody>(503, "It does not.", how_it_is())
}

fn openapi() -> Operation {
    Operation::new("openapi", Caller::Anybody, "Tells all of this.")
        .answers::<serde_json::Map<String, Value>>(200, "This.", json!({ "openapi": "3.1.0" }))
}
