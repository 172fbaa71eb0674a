//! JSON bodies of check and reservation calls.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use smallvec::SmallVec;
use tidegate::policy::RuleTarget;
use tidegate::pricing::TokenUsage;
use tidegate::{Cost, Key, Micros, Refusal, RuleCheck, RuleCost, RuleLimit, Verdict, Wait};

use super::problem::{HttpProblem, ProblemBody};
use crate::check::{CheckDecision, CheckError, CheckService, ModelUsage, QuantityRange};

/// Key to check: a string, or several parts. At most 1024 bytes in total.
#[derive(Clone, PartialEq, Eq, JsonSchema, Debug)]
#[serde(untagged)]
pub(crate) enum KeyBody {
    /// One part.
    One(#[schemars(length(max = 1_024))] String),
    /// Several parts.
    Many(#[schemars(length(max = 16))] Vec<String>),
}

impl KeyBody {
    fn key(&self) -> Key<'_> {
        match self {
            Self::One(text) => Key::from(text),
            Self::Many(parts) => Key::from(&**parts),
        }
    }
}

/// Written by hand for its error message; that of `untagged` names no type.
impl<'de> Deserialize<'de> for KeyBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = KeyBody;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an array of strings")
            }

            fn visit_str<E>(self, text: &str) -> Result<KeyBody, E> {
                Ok(KeyBody::One(text.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<KeyBody, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(parts)).map(KeyBody::Many)
            }
        }
        deserializer.deserialize_any(KeyVisitor)
    }
}

/// Accepts a JSON object only. serde also accepts an array of the fields' values, whose meaning
/// would depend on the order of the fields.
#[derive(Clone, Debug)]
pub(crate) struct StrictObject<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for StrictObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = StrictObject<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<StrictObject<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(StrictObject)
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// One rule or ad-hoc limit, one key, one cost.
#[derive(Clone, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schemars(transform = require_rule_or_limit)]
pub(crate) struct CheckItem {
    /// The name of a rule.
    #[serde(default)]
    pub rule: Option<String>,
    /// Ad-hoc limit in the limit notation, instead of a rule.
    #[serde(default)]
    pub limit: Option<String>,
    /// Key to count by. Required with a limit, and if the rule counts per key.
    #[serde(default)]
    pub key: Option<KeyBody>,
    /// Plan of the key, if the rule has plans; default: the rule's `default_plan`.
    #[serde(default)]
    pub plan: Option<String>,
    /// Cost; default 1, 0 peeks.
    #[serde(default)]
    #[schemars(range(max = 4_294_967_296_u64))]
    pub cost: Option<u64>,
    /// `reserve`: at least this of `cost`, if it does not fit.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4_294_967_296_u64))]
    pub min: Option<u64>,
}

/// Independent checks.
#[derive(Clone, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckManyBody {
    /// Up to 256 checks, each decided as if alone, in order.
    #[schemars(with = "Vec<CheckItem>", length(min = 1, max = 256))]
    pub checks: Vec<StrictObject<CheckItem>>,
}

impl CheckItem {
    /// The check, if it is independent of others.
    pub(crate) fn check(&self, service: &CheckService) -> Result<RuleCheck<'_>, HttpProblem> {
        if self.min.is_some() {
            return Err(HttpProblem::field("min", "not used by this call; remove it"));
        }
        self.subject().check(service, "")
    }

    fn subject(&self) -> SubjectFields<'_> {
        let Self { rule, limit, key, plan, cost, min: _ } = self;
        SubjectFields { rule, limit, key, plan, cost: *cost }
    }
}

/// Results of independent checks.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct CheckManyResponse<'a> {
    /// One for each check, in order.
    pub results: Vec<CheckResultBody<'a>>,
}

/// The result of one of several independent checks.
#[derive(Serialize, JsonSchema, Debug)]
#[serde(untagged)]
#[expect(clippy::large_enum_variant, reason = "nearly all results of a batch are decisions")]
pub(crate) enum CheckResultBody<'a> {
    /// What `POST /v1/check` returns with status 200 or 429.
    Decision(DecisionBody<'a>),
    /// What it returns with another status.
    Problem(&'a ProblemBody),
}

/// A check of one rule or limit, or of several at once: the body of several calls, each of which
/// refuses some of the fields ([`CallBody`]).
#[derive(Clone, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
#[schemars(transform = require_rule_limit_or_checks)]
pub(crate) struct CheckBody {
    /// The name of a rule.
    #[serde(default)]
    pub rule: Option<String>,
    /// Ad-hoc limit in the limit notation, instead of a rule.
    #[serde(default)]
    pub limit: Option<String>,
    /// Key to count by. Required with a limit, and if the rule counts per key.
    #[serde(default)]
    pub key: Option<KeyBody>,
    /// Plan of the key, if the rule has plans; default: the rule's `default_plan`.
    #[serde(default)]
    pub plan: Option<String>,
    /// Cost; default 1, 0 peeks.
    #[serde(default)]
    #[schemars(range(max = 4_294_967_296_u64))]
    pub cost: Option<u64>,
    /// `reserve`: at least this of `cost`, if it does not fit. Checks with `min` must have the same
    /// `cost` and `min`: one quantity is reserved under all of them.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4_294_967_296_u64))]
    pub min: Option<u64>,
    /// Up to 16 checks, charged all or none.
    #[serde(default)]
    #[schemars(with = "Option<Vec<CheckItem>>", length(min = 1, max = 16))]
    pub checks: Option<Vec<StrictObject<CheckItem>>>,
    /// Idempotency key, at most 64 bytes: charged at most once within an hour.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub id: Option<String>,
    /// Wait up to this long for permits.
    #[serde(default)]
    #[schemars(range(max = 60_000))]
    pub wait_ms: Option<u64>,
    /// Lifetime of the reservation; default 60000, or the lease of the rule.
    #[serde(default)]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub ttl_ms: Option<u64>,
    /// Language model, one of the policy's prices.
    #[serde(default)]
    pub model: Option<String>,
    /// Expected tokens, by which checks without a cost are charged: `input` and `output`, or the
    /// usage object of OpenAI, Anthropic or Gemini.
    #[serde(default)]
    #[schemars(with = "Option<Map<String, Value>>")]
    pub usage: Option<Value>,
    /// `reserve`: the largest number of output tokens. Checks without a cost reserve these beside
    /// the input in `usage`, each by the unit of its rule: tokens, or their price.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4_294_967_296_u64))]
    pub max_output_tokens: Option<u64>,
    /// `reserve`: if `max_output_tokens` do not fit, as many as fit are reserved, but at least
    /// these. By default it is all or nothing.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4_294_967_296_u64))]
    pub min_output_tokens: Option<u64>,
    /// Charge what is reserved at the deadline, whatever the rules say. By default each rule
    /// decides, by its `on_expiry`.
    #[serde(default)]
    pub on_expiry: Option<OnExpiryBody>,
}

/// What a request can ask for when a reservation expires: only what is stricter.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema, Debug)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnExpiryBody {
    /// Charge what is reserved.
    Charge,
}

/// How to settle, renew or extend a reservation: the body of several calls, as [`CheckBody`] is.
#[derive(Clone, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettleBody {
    /// Reservation id.
    pub reservation: String,
    /// Actual cost of each rule, if all were reserved at one cost; default: the reserved cost.
    #[serde(default)]
    #[schemars(range(max = 9_007_199_254_740_992_u64))]
    pub cost: Option<u64>,
    /// Actual cost by rule; rules that are not named are charged what was reserved. `extend`: what
    /// is reserved in total.
    #[serde(default)]
    pub costs: Option<CostsBody>,
    /// Reserve less than `costs` if they do not fit, but at least this; they must all be equal.
    #[serde(default)]
    #[schemars(range(min = 1, max = 4_294_967_296_u64))]
    pub min: Option<u64>,
    /// Language model that replied; default: the model of the reservation.
    #[serde(default)]
    pub model: Option<String>,
    /// Tokens used: the usage object of OpenAI, Anthropic or Gemini, or `input` and `output`. Each
    /// rule is charged by its unit.
    #[serde(default)]
    #[schemars(with = "Option<Map<String, Value>>")]
    pub usage: Option<Value>,
    /// New lifetime from now. `renew`: default 60000. `extend`: by default the deadline stays.
    #[serde(default)]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub ttl_ms: Option<u64>,
}

/// Actual costs by rule, or by rule and key.
#[derive(Clone, JsonSchema, Debug)]
#[serde(untagged)]
pub(crate) enum CostsBody {
    /// Cost by rule.
    Rules(BTreeMap<String, u64>),
    /// For a rule that was reserved with several keys.
    Keys(#[schemars(with = "Vec<CostItem>", length(max = 16))] Vec<StrictObject<CostItem>>),
}

/// The actual cost of one rule and key.
#[derive(Clone, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct CostItem {
    /// The name of the rule.
    pub rule: String,
    /// Its key, if the rule was reserved with several.
    #[serde(default)]
    pub key: Option<KeyBody>,
    /// The actual cost.
    pub cost: u64,
}

/// Written by hand for its error message; that of `untagged` names no type.
impl<'de> Deserialize<'de> for CostsBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CostsVisitor;
        impl<'de> Visitor<'de> for CostsVisitor {
            type Value = CostsBody;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of costs by rule, or an array")
            }

            fn visit_map<A: MapAccess<'de>>(self, rules: A) -> Result<CostsBody, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(rules)).map(CostsBody::Rules)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<CostsBody, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(items)).map(CostsBody::Keys)
            }
        }
        deserializer.deserialize_any(CostsVisitor)
    }
}

impl SettleBody {
    /// The costs by rule, in order.
    pub(crate) fn each<'a>(&'a self) -> Result<Vec<RuleCost<'a>>, HttpProblem> {
        let each: Vec<RuleCost<'a>> = match &self.costs {
            None => return Ok(Vec::new()),
            Some(CostsBody::Rules(rules)) => {
                let cost =
                    |(rule, cost): (&'a String, &u64)| RuleCost::new(rule, Cost::total(*cost));
                rules.iter().map(cost).collect()
            }
            Some(CostsBody::Keys(items)) => {
                let cost = |StrictObject(item): &'a StrictObject<CostItem>| RuleCost {
                    rule: &item.rule,
                    key: item.key.as_ref().map(KeyBody::key),
                    cost: Cost::total(item.cost),
                    if_held: false,
                };
                items.iter().map(cost).collect()
            }
        };
        if self.cost.is_some() {
            return Err(HttpProblem::field("costs", "cost and costs exclude each other"));
        }
        if each.is_empty() || each.len() > CheckService::MAX_CHECKS {
            let detail = format!("{} costs; use 1 to {}", each.len(), CheckService::MAX_CHECKS);
            return Err(HttpProblem::field("costs", detail));
        }
        Ok(each)
    }
}

impl CheckBody {
    /// The checks of the body, in order.
    pub(crate) fn checks(&self, service: &CheckService) -> Result<RuleChecks<'_>, HttpProblem> {
        let Some(checks) = &self.checks else {
            let Self { rule, limit, key, plan, cost, .. } = self;
            let subject = SubjectFields { rule, limit, key, plan, cost: *cost };
            return Ok([subject.check(service, "")?].into_iter().collect());
        };
        let alone = [
            ("rule", self.rule.is_some()),
            ("limit", self.limit.is_some()),
            ("key", self.key.is_some()),
            ("plan", self.plan.is_some()),
            ("cost", self.cost.is_some()),
            ("min", self.min.is_some()),
        ];
        if let Some((field, _)) = alone.iter().find(|(_, given)| *given) {
            return Err(HttpProblem::field(*field, "must be set in each element of checks"));
        }
        if checks.is_empty() || checks.len() > CheckService::MAX_CHECKS {
            let detail = format!("{} checks; use 1 to {}", checks.len(), CheckService::MAX_CHECKS);
            return Err(HttpProblem::field("checks", detail));
        }
        let checks = checks
            .iter()
            .enumerate()
            .map(|(i, StrictObject(one))| one.subject().check(service, &format!("checks[{i}].")));
        checks.collect()
    }
}

impl CheckBody {
    /// The checks of a reservation: one without a cost costs what its rule says.
    pub(crate) fn checks_to_reserve(
        &self,
        service: &CheckService,
    ) -> Result<RuleChecks<'_>, HttpProblem> {
        let usage = self.usage.as_ref().map(TokenUsage::deserialize).transpose();
        let usage = usage.map_err(|error| HttpProblem::field("usage", error.to_string()))?;
        let call = ModelUsage { model: self.model.as_deref(), usage };
        let active = service.active();
        let mut checks = self.checks(service)?;
        let each = self.checks.iter().flatten().map(|StrictObject(one)| one.cost);
        let costs = self.checks.is_none().then_some(self.cost).into_iter().chain(each);
        if self.max_output_tokens.is_some() && call.usage.is_none() {
            let detail = "required with max_output_tokens: the tokens of input";
            return Err(HttpProblem::field("usage", detail));
        }
        for (check, cost) in checks.iter_mut().zip(costs) {
            match (&check.target, cost) {
                (RuleTarget::Named(rule), None) if self.max_output_tokens.is_some() => {
                    (check.cost, check.per_unit) = active.cost_of_output(rule, &call)?;
                }
                (RuleTarget::Named(rule), None) => {
                    check.cost = active.cost_to_reserve(rule, &call)?;
                }
                _ => {}
            }
        }
        Ok(checks)
    }
}

impl CheckBody {
    /// The minimum of each check.
    fn mins(&self) -> impl Iterator<Item = Option<u64>> {
        let each = self.checks.iter().flatten().map(|StrictObject(one)| one.min);
        self.checks.is_none().then_some(self.min).into_iter().chain(each)
    }

    /// What is granted of the cost of checks with `min`, or of the tokens of output.
    pub(crate) fn quantity(
        &self,
        checks: &mut RuleChecks<'_>,
    ) -> Result<Option<QuantityRange>, HttpProblem> {
        let mins: Vec<Option<u64>> = self.mins().collect();
        let Some(min) = mins.iter().find_map(|min| *min) else {
            let Some(want) = self.max_output_tokens else { return Ok(None) };
            let range = QuantityRange::new(self.min_output_tokens.unwrap_or(want), want);
            let refused = |refusal: Refusal| {
                HttpProblem::field("max_output_tokens", format!("min_output_tokens: {refusal}"))
            };
            return range.map(Some).map_err(refused);
        };
        if self.max_output_tokens.is_some() {
            return Err(HttpProblem::field("min", "min and max_output_tokens exclude each other"));
        }
        if mins.iter().flatten().any(|other| *other != min) {
            return Err(HttpProblem::field("min", "checks with min need the same cost and min"));
        }
        let range = QuantityRange::of_checks(checks, min, |i, _| mins[i].is_some());
        Ok(Some(range.map_err(CheckError::Refused)?))
    }
}

/// The checks of one call.
pub(crate) type RuleChecks<'a> = SmallVec<[RuleCheck<'a>; 1]>;

/// What is checked, of a body or of one of its elements.
struct SubjectFields<'a> {
    rule: &'a Option<String>,
    limit: &'a Option<String>,
    key: &'a Option<KeyBody>,
    plan: &'a Option<String>,
    cost: Option<u64>,
}

impl<'a> SubjectFields<'a> {
    /// `place` is the path of the element, for errors.
    fn check(&self, service: &CheckService, place: &str) -> Result<RuleCheck<'a>, HttpProblem> {
        let wrong = |field, detail| Err(HttpProblem::field(format!("{place}{field}"), detail));
        let target = match (self.rule, self.limit) {
            (Some(rule), None) => RuleTarget::Named(rule),
            (None, Some(_)) if self.plan.is_some() => {
                return wrong("plan", "only a rule has plans; remove it");
            }
            (None, Some(limit)) => service.adhoc_limit(limit)?,
            (Some(_), Some(_)) => return wrong("limit", "rule and limit exclude each other"),
            (None, None) => return wrong("rule", "required: name a rule or a limit"),
        };
        let key = self.key.as_ref().map_or(Key::of(&[]), KeyBody::key);
        let plan = self.plan.as_deref();
        Ok(RuleCheck { plan, ..RuleCheck::of(target, key, self.cost.unwrap_or(1)) })
    }
}

/// A call whose body type is shared with other calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CallBody {
    /// Path of the call.
    pub path: &'static str,
    /// Name of its schema in the OpenAPI document.
    pub schema: &'static str,
    /// Fields of other calls, which it refuses.
    pub unused: &'static [&'static str],
}

impl CallBody {
    const NOT_CHECKED: &'static [&'static str] =
        &["ttl_ms", "on_expiry", "model", "usage", "min", "max_output_tokens", "min_output_tokens"];
    const NOT_RECORDED: &'static [&'static str] = &[
        "ttl_ms",
        "on_expiry",
        "wait_ms",
        "model",
        "usage",
        "min",
        "max_output_tokens",
        "min_output_tokens",
    ];
    pub(crate) const CHECK: Self = Self::new("/v1/check", "CheckBody", Self::NOT_CHECKED);
    pub(crate) const RECORD: Self = Self::new("/v1/record", "RecordBody", Self::NOT_RECORDED);
    pub(crate) const REFUND: Self = Self::new("/v1/refund", "RefundBody", Self::NOT_RECORDED);
    pub(crate) const RESERVE: Self = Self::new("/v1/reserve", "ReserveBody", &["wait_ms"]);
    pub(crate) const COMMIT: Self = Self::new("/v1/commit", "CommitBody", &["ttl_ms", "min"]);
    pub(crate) const CANCEL: Self = Self::new(
        "/v1/cancel",
        "CancelBody",
        &["ttl_ms", "cost", "costs", "min", "model", "usage"],
    );
    pub(crate) const RENEW: Self =
        Self::new("/v1/renew", "RenewBody", &["cost", "costs", "min", "model", "usage"]);
    pub(crate) const EXTEND: Self =
        Self::new("/v1/extend", "ExtendBody", &["cost", "model", "usage"]);
    /// Calls with a [`CheckBody`].
    pub(crate) const CHECKS: [Self; 4] = [Self::CHECK, Self::RECORD, Self::REFUND, Self::RESERVE];
    /// Calls with a [`SettleBody`].
    pub(crate) const SETTLES: [Self; 4] = [Self::COMMIT, Self::CANCEL, Self::RENEW, Self::EXTEND];

    const fn new(path: &'static str, schema: &'static str, unused: &'static [&str]) -> Self {
        Self { path, schema, unused }
    }

    /// Refuses the fields of other calls; `given` are all optional fields and whether they are set.
    fn refuse(self, given: &[(&str, bool)]) -> Result<(), HttpProblem> {
        match given.iter().find(|(field, is_set)| *is_set && self.unused.contains(field)) {
            Some((field, _)) => Err(HttpProblem::field(*field, "not used by this call; remove it")),
            None => Ok(()),
        }
    }
}

impl CheckBody {
    /// Refuses fields that the call does not use.
    pub(crate) fn of(self, call: CallBody) -> Result<Self, HttpProblem> {
        call.refuse(&[
            ("ttl_ms", self.ttl_ms.is_some()),
            ("on_expiry", self.on_expiry.is_some()),
            ("wait_ms", self.wait_ms.is_some()),
            ("min", self.mins().any(|min| min.is_some())),
            ("model", self.model.is_some()),
            ("usage", self.usage.is_some()),
            ("max_output_tokens", self.max_output_tokens.is_some()),
            ("min_output_tokens", self.min_output_tokens.is_some()),
        ])?;
        if self.min_output_tokens.is_some() && self.max_output_tokens.is_none() {
            let detail = "required with min_output_tokens";
            return Err(HttpProblem::field("max_output_tokens", detail));
        }
        Ok(self)
    }
}

impl SettleBody {
    /// Refuses fields that the call does not use.
    pub(crate) fn of(self, call: CallBody) -> Result<Self, HttpProblem> {
        call.refuse(&[
            ("ttl_ms", self.ttl_ms.is_some()),
            ("cost", self.cost.is_some()),
            ("costs", self.costs.is_some()),
            ("min", self.min.is_some()),
            ("model", self.model.is_some()),
            ("usage", self.usage.is_some()),
        ])?;
        Ok(self)
    }
}

/// Exactly one of `rule` and `limit` is set.
fn require_rule_or_limit(schema: &mut Schema) {
    let rule = alternative("rule", "string", &["limit"]);
    schema.insert("oneOf".into(), json!([rule, adhoc_alternative(&["rule"])]));
}

/// Exactly one of `rule`, `limit` and `checks` is set; `key` and `cost` are not part of `checks`.
fn require_rule_limit_or_checks(schema: &mut Schema) {
    let one_of = [
        alternative("rule", "string", &["limit", "checks"]),
        adhoc_alternative(&["rule", "checks"]),
        alternative("checks", "array", &["rule", "limit", "key", "cost"]),
    ];
    schema.insert("oneOf".into(), json!(one_of));
}

/// A body with an ad-hoc limit, which needs a key.
fn adhoc_alternative(others: &[&str]) -> Value {
    let mut adhoc = alternative("limit", "string", others);
    adhoc["required"] = json!(["limit", "key"]);
    adhoc["properties"]["key"] = json!({ "type": ["string", "array"], "minItems": 1 });
    adhoc
}

/// A body with this field and without others, which may be null.
fn alternative(field: &str, kind: &str, others: &[&str]) -> Value {
    let others = others.iter().map(|name| (name.to_string(), json!({ "type": "null" })));
    let own = [(field.to_string(), json!({ "type": kind }))];
    let properties: Map<String, Value> = own.into_iter().chain(others).collect();
    json!({ "required": [field], "properties": properties })
}

/// A decision.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct DecisionBody<'a> {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// Capacity of the most restrictive limit; null if no limit applies.
    pub limit: Option<u64>,
    /// Remaining permits of that limit.
    pub remaining: Option<u64>,
    /// Milliseconds until a retry can succeed; 0 if allowed, null if never. A peek reports when a
    /// cost of 1 would be allowed.
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until the most restrictive limit is fully recovered.
    pub reset_after_ms: u64,
    /// Milliseconds to wait before proceeding (shaping).
    pub delay_ms: u64,
    /// Rule of the most restrictive limit.
    pub rule: Option<&'a str>,
    /// Where it was decided: `memory`, `redis`, `lease`, `deny-cache`, `fallback` or `policy`.
    pub source: &'a str,
    /// The cost exceeds the limit: it can never be allowed.
    #[serde(skip_serializing_if = "is_false")]
    pub never: bool,
    /// Decided before under the same id.
    #[serde(skip_serializing_if = "is_false")]
    pub repeated: bool,
    /// Seconds that the id is kept, if that is less than an hour because memory is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_retention_s: Option<u64>,
    /// `reserve`: id of the reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// `reserve`, `renew`, `extend`: lifetime, if it is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// `reserve` with `min` or `max_output_tokens`: the quantity that is reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub granted: Option<u64>,
    /// `renew`: the reservation had already expired.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expired: Option<bool>,
    /// `refund`: permits returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refunded: Option<u64>,
    /// Verdict of each enforced limit, in order.
    pub rules: Vec<VerdictBody<'a>>,
}

/// What settling a reservation has charged. The work was done: nothing is allowed or denied.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct SettlementBody<'a> {
    /// Id of the reservation.
    pub reservation: &'a str,
    /// The reservation has ended, now or before.
    pub settled: bool,
    /// Its deadline had passed.
    pub late: bool,
    /// A limit is now above its capacity, which concerns the next requests.
    pub overdrawn: bool,
    /// Milliseconds that a queue delays what was charged.
    pub delay_ms: u64,
    /// Where it was settled: `memory`, `redis` or `fallback`.
    pub source: &'a str,
    /// `invalid`: the usage could not be read, and what was reserved is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<&'static str>,
    /// The model whose price was used, if it is not the one that the call names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priced_as: Option<&'a str>,
    /// Each enforced limit, in order.
    pub rules: Vec<SettledRuleBody<'a>>,
}

/// What settling a reservation has charged to one limit, and its state now.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct SettledRuleBody<'a> {
    /// Rule of the limit.
    pub rule: &'a str,
    /// Name of the limit in headers.
    pub policy: Cow<'a, str>,
    /// What was reserved.
    pub reserved: u64,
    /// What was charged in total.
    pub charged: u64,
    /// What was not charged: debt is limited to twice the capacity, and one cost to 2^32.
    pub uncharged: u64,
    /// Capacity of the limit.
    pub limit: u64,
    /// Remaining permits.
    pub remaining: u64,
    /// Milliseconds until the limit is fully recovered.
    pub reset_after_ms: u64,
    /// The rule no longer exists.
    #[serde(skip_serializing_if = "is_false")]
    pub gone: bool,
}

impl<'a> SettlementBody<'a> {
    pub(crate) fn new(
        reservation: &'a str,
        settled: &'a CheckDecision,
        is_gone: impl Fn(&str) -> bool,
    ) -> Self {
        let decision = &settled.decision;
        let rules = settled.named_verdicts().zip(decision.settled());
        let rules = rules.map(|((policy, limit, verdict), cost)| SettledRuleBody {
            rule: limit.rule(),
            policy,
            reserved: cost.reserved.get(),
            charged: cost.charged.get(),
            uncharged: cost.uncharged.get(),
            limit: verdict.limit,
            remaining: verdict.remaining,
            reset_after_ms: millis(verdict.reset_after),
            gone: is_gone(limit.rule()),
        });
        Self {
            reservation,
            settled: true,
            late: decision.expired(),
            overdrawn: !decision.allowed(),
            delay_ms: millis(decision.delay()),
            source: decision.source.name(),
            usage: None,
            priced_as: None,
            rules: rules.collect(),
        }
    }
}

/// Verdict of one limit.
#[derive(Serialize, JsonSchema, Debug)]
pub(crate) struct VerdictBody<'a> {
    /// Rule of the limit.
    pub rule: &'a str,
    /// Name of the limit in headers.
    pub policy: Cow<'a, str>,
    /// Whether this limit allows the request.
    pub allowed: bool,
    /// Capacity of the limit.
    pub limit: u64,
    /// Remaining permits.
    pub remaining: u64,
    /// Milliseconds until a retry can succeed; 0 if allowed, null if never.
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until the limit is fully recovered.
    pub reset_after_ms: u64,
    /// Milliseconds to wait before proceeding (shaping).
    pub delay_ms: u64,
    /// `extend`: what is reserved now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
}

impl<'a> DecisionBody<'a> {
    pub(crate) fn new(checked: &'a CheckDecision) -> Self {
        let decision = &checked.decision;
        let strictest = checked.most_restrictive();
        let wait = match strictest {
            Some(_) => decision.retry_after(),
            None => Wait::NONE,
        };
        Self {
            allowed: decision.allowed(),
            limit: strictest.map(|(_, verdict)| verdict.limit),
            remaining: strictest.map(|(_, verdict)| verdict.remaining),
            retry_after_ms: wait.span().map(millis),
            reset_after_ms: strictest.map_or(0, |(_, verdict)| millis(verdict.reset_after)),
            delay_ms: millis(decision.delay()),
            rule: strictest.map(|(limit, _)| limit.rule()),
            source: decision.source.name(),
            never: wait == Wait::Never,
            repeated: decision.repeated(),
            id_retention_s: checked.id_retention.map(|span| span.get() / 1_000_000),
            reservation: decision.hold().map(|id| id.to_string()),
            // A repeated reservation has less time left; only the first reply reports it.
            expires_in_ms: checked
                .ttl
                .filter(|_| !decision.repeated())
                .map(|ttl| ttl.get() / 1_000),
            granted: checked.granted.map(Cost::get),
            expired: None,
            refunded: None,
            rules: checked
                .named_verdicts()
                .enumerate()
                .map(|(i, (name, limit, verdict))| VerdictBody {
                    reserved: decision.reserved().get(i).map(|cost| cost.get()),
                    ..verdict_body(name, limit, verdict)
                })
                .collect(),
        }
    }
}

/// A decision, as `POST /v1/check` returns it.
pub fn decision_json(decision: &CheckDecision) -> Value {
    serde_json::to_value(DecisionBody::new(decision)).unwrap_or_default()
}

fn verdict_body<'a>(
    policy: Cow<'a, str>,
    limit: &'a RuleLimit,
    verdict: &Verdict,
) -> VerdictBody<'a> {
    VerdictBody {
        rule: limit.rule(),
        policy,
        allowed: verdict.allowed,
        limit: verdict.limit,
        remaining: verdict.remaining,
        retry_after_ms: verdict.retry_after.span().map(millis),
        reset_after_ms: millis(verdict.reset_after),
        delay_ms: millis(verdict.delay),
        reserved: None,
    }
}

/// Milliseconds, rounded up: a client that waits this long is not too early.
pub(crate) fn millis(span: Micros) -> u64 {
    span.get().div_ceil(1_000)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
