//! What is sent and what is answered, in JSON.

use std::fmt;
use std::marker::PhantomData;

use schemars::JsonSchema;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use tidegate::{Key, Micros, RuleLimit, Verdict, Wait};

use super::problem::Problem;
use crate::service::{Answer, Ask, Service, Target};

/// Whom a check is about: one text, or several that stay apart. All together at most 1024 bytes.
#[derive(Clone, PartialEq, Eq, JsonSchema, Debug)]
#[serde(untagged)]
pub(super) enum KeyBody {
    /// One part.
    One(String),
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

/// By hand, so that an error says what a key is.
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

            fn visit_string<E>(self, text: String) -> Result<KeyBody, E> {
                Ok(KeyBody::One(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<KeyBody, A::Error> {
                let mut all = Vec::new();
                while let Some(part) = parts.next_element()? {
                    all.push(part);
                }
                Ok(KeyBody::Many(all))
            }
        }
        deserializer.deserialize_any(KeyVisitor)
    }
}

/// Something that is written as an object. A list of the fields' values, which would do for serde,
/// is refused: what it means would change with the order of the fields.
#[derive(Clone, Debug)]
pub(super) struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields)).map(Object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// One rule or limit, one key, one cost.
#[derive(Clone, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct OneCheck {
    /// The name of a rule.
    #[serde(default)]
    pub rule: Option<String>,
    /// A limit of one's own, in the notation; instead of a rule.
    #[serde(default)]
    pub limit: Option<String>,
    /// Whom it concerns; left out, everybody together.
    #[serde(default)]
    pub key: Option<KeyBody>,
    /// How much it takes; 1 unless given, 0 to peek.
    #[serde(default)]
    #[schemars(range(max = 4_294_967_296_u64))]
    pub cost: Option<u64>,
}

/// A question: about one rule or limit, or several at once.
#[derive(Clone, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckBody {
    /// The name of a rule.
    #[serde(default)]
    pub rule: Option<String>,
    /// A limit of one's own, in the notation; instead of a rule.
    #[serde(default)]
    pub limit: Option<String>,
    /// Whom it concerns; left out, everybody together.
    #[serde(default)]
    pub key: Option<KeyBody>,
    /// How much it takes; 1 unless given, 0 to peek.
    #[serde(default)]
    #[schemars(range(max = 4_294_967_296_u64))]
    pub cost: Option<u64>,
    /// Several at once instead, at most 16: all or nothing.
    #[serde(default)]
    #[schemars(with = "Option<Vec<OneCheck>>", length(min = 1, max = 16))]
    pub checks: Option<Vec<Object<OneCheck>>>,
    /// Charges at most once under this name of at most 64 bytes, within an hour.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    pub id: Option<String>,
    /// `check`: waits for its turn, at most so long.
    #[serde(default)]
    #[schemars(range(max = 60_000))]
    pub wait_ms: Option<u64>,
    /// `reserve`: how long it lasts; 60000 unless given, or the lease of the rule.
    #[serde(default)]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub ttl_ms: Option<u64>,
}

/// How a reservation is to go on.
#[derive(Clone, Deserialize, JsonSchema, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleBody {
    /// The reservation.
    pub reservation: String,
    /// `commit`: what is charged; left out, what was reserved.
    #[serde(default)]
    #[schemars(range(max = 4_294_967_296_u64))]
    pub cost: Option<u64>,
    /// `renew`: how long it lasts from now.
    #[serde(default)]
    #[schemars(range(min = 1, max = 3_600_000))]
    pub ttl_ms: Option<u64>,
}

impl CheckBody {
    /// The asks in order.
    pub(super) fn asks(&self) -> Result<Vec<Ask<'_>>, Problem> {
        let Some(checks) = &self.checks else {
            let one =
                Fields { rule: &self.rule, limit: &self.limit, key: &self.key, cost: self.cost };
            return Ok(vec![one.ask("")?]);
        };
        let alone = [
            ("rule", self.rule.is_some()),
            ("limit", self.limit.is_some()),
            ("key", self.key.is_some()),
            ("cost", self.cost.is_some()),
        ];
        if let Some((field, _)) = alone.iter().find(|(_, given)| *given) {
            return Err(Problem::field(*field, "belongs into each of the checks"));
        }
        if checks.is_empty() || checks.len() > Service::MAX_CHECKS {
            let detail = format!("{} checks; use 1 to {}", checks.len(), Service::MAX_CHECKS);
            return Err(Problem::field("checks", detail));
        }
        checks
            .iter()
            .enumerate()
            .map(|(i, Object(c))| {
                let fields = Fields { rule: &c.rule, limit: &c.limit, key: &c.key, cost: c.cost };
                fields.ask(&format!("checks[{i}]."))
            })
            .collect()
    }
}

struct Fields<'a> {
    rule: &'a Option<String>,
    limit: &'a Option<String>,
    key: &'a Option<KeyBody>,
    cost: Option<u64>,
}

impl<'a> Fields<'a> {
    fn ask(&self, place: &str) -> Result<Ask<'a>, Problem> {
        let target = match (self.rule, self.limit) {
            (Some(rule), None) => Target::Rule(rule),
            (None, Some(limit)) => Target::Limit(limit),
            (Some(_), Some(_)) => {
                return Err(Problem::field(
                    format!("{place}limit"),
                    "give a rule or a limit, not both",
                ));
            }
            (None, None) => {
                return Err(Problem::field(
                    format!("{place}rule"),
                    "is missing; name a rule or a limit",
                ));
            }
        };
        let key = self.key.as_ref().map_or(Key::of(&[]), KeyBody::key);
        Ok(Ask { target, key, cost: self.cost.unwrap_or(1) })
    }
}

/// A decision.
#[derive(Serialize, JsonSchema, Debug)]
pub(super) struct DecisionBody<'a> {
    /// May it pass?
    pub allowed: bool,
    /// The limit that speaks: the most that fits at once. Null where no limit applies.
    pub limit: Option<u64>,
    /// What that limit has left.
    pub remaining: Option<u64>,
    /// When to come back; 0 if it may pass, null if it never can. A peek tells when 1 could pass.
    pub retry_after_ms: Option<u64>,
    /// When the limit that speaks is as good as unused.
    pub reset_after_ms: u64,
    /// How long to wait for the turn that was given.
    pub delay_ms: u64,
    /// The rule that speaks.
    pub rule: Option<&'a str>,
    /// Where it was decided: `memory`, `redis`, `lease`, `deny-cache`, `fallback` or `policy`.
    pub source: &'a str,
    /// It can never pass: the cost is larger than the limit.
    #[serde(skip_serializing_if = "is_false")]
    pub never: bool,
    /// It was decided before, under the same id.
    #[serde(skip_serializing_if = "is_false")]
    pub repeated: bool,
    /// `reserve`: the reservation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// `reserve`, `renew`: how long it lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// `commit`, `cancel`, `renew`: it had ended before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expired: Option<bool>,
    /// `refund`: what came back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refunded: Option<u64>,
    /// Every limit that decides, in order.
    pub rules: Vec<VerdictBody<'a>>,
}

/// What one limit thinks.
#[derive(Serialize, JsonSchema, Debug)]
pub(super) struct VerdictBody<'a> {
    /// The rule it belongs to.
    pub rule: &'a str,
    /// Its name in headers.
    pub policy: &'a str,
    /// Does it allow it?
    pub allowed: bool,
    /// The most that fits at once.
    pub limit: u64,
    /// What is left.
    pub remaining: u64,
    /// When to come back; 0 if it may pass, null if it never can.
    pub retry_after_ms: Option<u64>,
    /// When it is as good as unused.
    pub reset_after_ms: u64,
    /// How long to wait for the turn that was given.
    pub delay_ms: u64,
}

impl<'a> DecisionBody<'a> {
    /// The decision in an answer.
    pub(super) fn new(answer: &'a Answer) -> Self {
        let decision = &answer.decision;
        let speaker = answer.speaker();
        let wait = match speaker {
            Some(_) => decision.retry_after(),
            None => Wait::NONE,
        };
        Self {
            allowed: decision.allowed(),
            limit: speaker.map(|(_, verdict)| verdict.limit),
            remaining: speaker.map(|(_, verdict)| verdict.remaining),
            retry_after_ms: wait.span().map(millis),
            reset_after_ms: speaker.map_or(0, |(_, verdict)| millis(verdict.reset_after)),
            delay_ms: millis(decision.delay()),
            rule: speaker.map(|(limit, _)| limit.rule()),
            source: decision.source.name(),
            never: wait == Wait::Never,
            repeated: decision.repeated(),
            reservation: decision.hold().map(|id| id.to_string()),
            // One that was made before has less left, and who asked first was told how much.
            expires_in_ms: answer.ttl.filter(|_| !decision.repeated()).map(|ttl| ttl.get() / 1_000),
            expired: None,
            refunded: None,
            rules: answer.verdicts().map(|(limit, verdict)| verdict_body(limit, verdict)).collect(),
        }
    }
}

fn verdict_body<'a>(limit: &'a RuleLimit, verdict: &Verdict) -> VerdictBody<'a> {
    VerdictBody {
        rule: limit.rule(),
        policy: limit.policy(),
        allowed: verdict.allowed,
        limit: verdict.limit,
        remaining: verdict.remaining,
        retry_after_ms: verdict.retry_after.span().map(millis),
        reset_after_ms: millis(verdict.reset_after),
        delay_ms: millis(verdict.delay),
    }
}

/// Milliseconds, rounded up.
pub(super) fn millis(span: Micros) -> u64 {
    span.get().div_ceil(1_000)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
