//! JSON as a tree, without positions. Duplicate fields and deep nesting are refused.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::tree::{MapEntry, NodeKind, Scalar, Visibility, YamlNode};
use crate::errors::sources::SourceSpan;

/// Deepest nesting of arrays and objects.
const MAX_DEPTH: usize = 16;

/// The tree of a JSON text.
pub(crate) fn parse(text: &[u8]) -> Result<YamlNode, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let kind = NodeReader { depth: 0 }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(YamlNode { span: SourceSpan::NOWHERE, kind })
}

/// Reads a value inside `depth` arrays and objects.
#[derive(Clone, Copy)]
struct NodeReader {
    depth: usize,
}

impl NodeReader {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        if self.depth == MAX_DEPTH {
            return Err(E::custom(format_args!("nested too deep; at most {MAX_DEPTH} levels")));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

fn scalar<E>(text: String, quoted: bool) -> Result<NodeKind, E> {
    Ok(NodeKind::Scalar(Scalar { text, quoted, letters: None, shown: Visibility::Yes }))
}

impl<'de> DeserializeSeed<'de> for NodeReader {
    type Value = NodeKind;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<NodeKind, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeReader {
    type Value = NodeKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<NodeKind, E> {
        Ok(NodeKind::Nothing)
    }

    fn visit_bool<E>(self, value: bool) -> Result<NodeKind, E> {
        scalar(value.to_string(), false)
    }

    fn visit_u64<E>(self, value: u64) -> Result<NodeKind, E> {
        scalar(value.to_string(), false)
    }

    fn visit_i64<E>(self, value: i64) -> Result<NodeKind, E> {
        scalar(value.to_string(), false)
    }

    fn visit_f64<E>(self, value: f64) -> Result<NodeKind, E> {
        // With its decimal point: 5.0 is not a whole number.
        scalar(format!("{value:?}"), false)
    }

    fn visit_str<E>(self, value: &str) -> Result<NodeKind, E> {
        scalar(value.into(), true)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<NodeKind, A::Error> {
        let mut items = Vec::new();
        let inner = self.deeper()?;
        while let Some(kind) = access.next_element_seed(inner)? {
            items.push(YamlNode { span: SourceSpan::NOWHERE, kind });
        }
        Ok(NodeKind::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<NodeKind, A::Error> {
        let mut fields: Vec<MapEntry> = Vec::new();
        let inner = self.deeper()?;
        while let Some(key) = access.next_key::<String>()? {
            let value =
                YamlNode { span: SourceSpan::NOWHERE, kind: access.next_value_seed(inner)? };
            fields.push(MapEntry { key, key_span: SourceSpan::NOWHERE, value });
        }
        fields.sort_by(|a, b| a.key.cmp(&b.key));
        match fields.windows(2).find(|pair| pair[0].key == pair[1].key) {
            Some(pair) => Err(A::Error::custom(format_args!("duplicate field `{}`", pair[0].key))),
            None => Ok(NodeKind::Map(fields)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_json_duplicate_fields_and_deep_nesting_are_refused() {
        for text in ["null", " true ", "-1.5", "\"a\\u00e9\"", r#"{"a":[1,{"b":null}],"c":"d"}"#] {
            assert!(parse(text.as_bytes()).is_ok(), "{text}");
        }
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse(nested(MAX_DEPTH).as_bytes()).is_ok());
        for text in ["", "{", "[1,]", "1 2", r#"{"a":1,"a":1}"#, r#"[{"b":{"a":1,"\u0061":2}}]"#] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse(nested(MAX_DEPTH + 1).as_bytes()).is_err());
        assert!(parse(nested(100_000).as_bytes()).is_err());
        assert!(parse(b"\"\xff\"").is_err());
    }
}
