//! One JSON object per line, as written by Envoy and Istio.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::field::{EntryBuilder, LogField};
use crate::replay::log_entry::{AccessLogEntry, LineError};

pub(crate) fn parse(line: &[u8]) -> Result<AccessLogEntry<'_>, LineError> {
    let JsonMembers(members) = serde_json::from_slice(line).map_err(|_| "not a JSON object")?;
    let mut entry = AccessLogEntry::default();
    let mut builder = EntryBuilder::default();
    for (name, value) in members {
        let Some(value) = value.0 else { continue };
        builder.put(LogField::of(&name), name, value, &mut entry)?;
    }
    builder.finish(&mut entry)?;
    Ok(entry)
}

/// Members in order. Nested objects and arrays are dropped.
struct JsonMembers<'a>(Vec<(Cow<'a, str>, JsonScalar<'a>)>);

/// String, number or bool as text; `None` for everything else.
struct JsonScalar<'a>(Option<Cow<'a, str>>);

/// Further members are ignored.
const MAX_MEMBERS: usize = 256;

impl<'de> Deserialize<'de> for JsonMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = JsonMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(
                self,
                mut map: M,
            ) -> Result<JsonMembers<'de>, M::Error> {
                let mut members = Vec::with_capacity(24);
                while let Some(JsonScalar(name)) = map.next_key()? {
                    let value = map.next_value()?;
                    if members.len() < MAX_MEMBERS {
                        members.push((name.unwrap_or_default(), value));
                    }
                }
                Ok(JsonMembers(members))
            }
        }
        from.deserialize_map(Members)
    }
}

impl<'de> Deserialize<'de> for JsonScalar<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = JsonScalar<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<JsonScalar<'de>, E> {
                Ok(JsonScalar(Some(text.into())))
            }

            fn visit_str<E>(self, text: &str) -> Result<JsonScalar<'de>, E> {
                Ok(JsonScalar(Some(text.to_string().into())))
            }

            fn visit_u64<E>(self, number: u64) -> Result<JsonScalar<'de>, E> {
                Ok(JsonScalar(Some(number.to_string().into())))
            }

            fn visit_i64<E>(self, number: i64) -> Result<JsonScalar<'de>, E> {
                Ok(JsonScalar(Some(number.to_string().into())))
            }

            fn visit_f64<E>(self, number: f64) -> Result<JsonScalar<'de>, E> {
                Ok(JsonScalar(Some(format!("{number:.6}").into())))
            }

            fn visit_bool<E>(self, is: bool) -> Result<JsonScalar<'de>, E> {
                Ok(JsonScalar(Some(is.to_string().into())))
            }

            fn visit_unit<E>(self) -> Result<JsonScalar<'de>, E> {
                Ok(JsonScalar(None))
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<JsonScalar<'de>, M::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(JsonScalar(None))
            }

            fn visit_seq<S: SeqAccess<'de>>(
                self,
                mut items: S,
            ) -> Result<JsonScalar<'de>, S::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(JsonScalar(None))
            }
        }
        from.deserialize_any(Any)
    }
}
