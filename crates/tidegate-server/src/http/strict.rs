//! JSON that is kept as it is: no field twice, and not too deep.

use std::fmt;

use http::StatusCode;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::problem::Problem;

/// How deep lists and objects may lie in each other.
const MAX_DEPTH: usize = 16;

/// Reads one JSON value.
pub(super) fn read(bytes: &[u8]) -> Result<Value, Problem> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Strict { depth: 0 }.deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| Problem::new(StatusCode::BAD_REQUEST, error.to_string()))
}

/// A value that lies so deep in others.
#[derive(Clone, Copy)]
struct Strict {
    depth: usize,
}

impl Strict {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        if self.depth == MAX_DEPTH {
            return Err(E::custom(format_args!("too deep; use at most {MAX_DEPTH} levels")));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(inner)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let inner = self.deeper()?;
        let mut fields = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let value = access.next_value_seed(inner)?;
            if fields.contains_key(&name) {
                return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
            }
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_serde_json_reads_unless_it_is_refused() {
        for text in [
            "null",
            " true ",
            "1",
            "-1",
            "1.5",
            "\"a\\u00e9\"",
            "[]",
            "{}",
            r#"{"a":[1,{"b":null}],"c":"d"}"#,
        ] {
            assert_eq!(read(text.as_bytes()).ok(), serde_json::from_str(text).ok(), "{text}");
        }
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(read(nested(MAX_DEPTH).as_bytes()).is_ok());
        for text in ["", "{", "[1,]", "1 2", r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        assert!(read(nested(MAX_DEPTH + 1).as_bytes()).is_err());
        assert!(read(nested(100_000).as_bytes()).is_err());
        assert!(read(b"\"\xff\"").is_err());
    }
}
