//! One JSON object per line, as Envoy and Istio write it.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::entry::{Entry, Fault};
use super::field::{Field, Named};

pub(super) fn parse(line: &[u8]) -> Result<Entry<'_>, Fault> {
    let Object(members) = serde_json::from_slice(line).map_err(|_| "no JSON object")?;
    let mut entry = Entry::default();
    let mut named = Named::default();
    for (name, value) in members {
        let Some(value) = value.0 else { continue };
        named.put(Field::of(&name), name, value, &mut entry)?;
    }
    named.finish(&mut entry)?;
    Ok(entry)
}

/// Members in order; of those within members nothing is kept.
struct Object<'a>(Vec<(Cow<'a, str>, Scalar<'a>)>);

/// A text, or a number as it was written; `None` for everything else.
struct Scalar<'a>(Option<Cow<'a, str>>);

/// The most members that are looked at.
const MAX_MEMBERS: usize = 256;

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Object<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Object<'de>, M::Error> {
                let mut members = Vec::with_capacity(24);
                while let Some(Scalar(name)) = map.next_key()? {
                    let value = map.next_value()?;
                    if members.len() < MAX_MEMBERS {
                        members.push((name.unwrap_or_default(), value));
                    }
                }
                Ok(Object(members))
            }
        }
        from.deserialize_map(Members)
    }
}

impl<'de> Deserialize<'de> for Scalar<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Scalar<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Scalar<'de>, E> {
                Ok(Scalar(Some(text.into())))
            }

            fn visit_str<E>(self, text: &str) -> Result<Scalar<'de>, E> {
                Ok(Scalar(Some(text.to_string().into())))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Scalar<'de>, E> {
                Ok(Scalar(Some(number.to_string().into())))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Scalar<'de>, E> {
                Ok(Scalar(Some(number.to_string().into())))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Scalar<'de>, E> {
                Ok(Scalar(Some(format!("{number:.6}").into())))
            }

            fn visit_bool<E>(self, is: bool) -> Result<Scalar<'de>, E> {
                Ok(Scalar(Some(is.to_string().into())))
            }

            fn visit_unit<E>(self) -> Result<Scalar<'de>, E> {
                Ok(Scalar(None))
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Scalar<'de>, M::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar(None))
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<Scalar<'de>, S::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar(None))
            }
        }
        from.deserialize_any(Any)
    }
}
