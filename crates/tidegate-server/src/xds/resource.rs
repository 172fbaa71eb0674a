//! Resources of a control plane as files of envoyproxy/ratelimit.

use std::fmt::Write as _;

use prost::Message as _;

use crate::policy::EnvoyResource;
use crate::transport::envoy::proto::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};

/// The type of the resources.
pub(crate) const TYPE_URL: &str =
    "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The resources as pairs of name and YAML, or why one of them cannot be read.
pub(crate) fn decode(resources: &[prost_types::Any]) -> Result<Vec<EnvoyResource>, String> {
    let decode = |resource: &prost_types::Any| {
        if resource.type_url != TYPE_URL {
            return Err(format!("resource of type {:?}; expected {TYPE_URL}", resource.type_url));
        }
        let config = RateLimitConfig::decode(&*resource.value)
            .map_err(|error| format!("resource cannot be decoded: {error}"))?;
        let text = yaml(&config);
        Ok((config.name, text))
    };
    resources.iter().map(decode).collect()
}

/// One line for each descriptor, so that messages show the one they are about.
fn yaml(config: &RateLimitConfig) -> String {
    let mut text = format!("domain: {}\n", quoted(&config.domain));
    descriptors(&config.descriptors, 0, &mut text);
    text
}

fn descriptors(list: &[RateLimitDescriptor], depth: usize, text: &mut String) {
    if list.is_empty() {
        return;
    }
    let indent = "  ".repeat(depth);
    let _ = writeln!(text, "{indent}descriptors:");
    for descriptor in list {
        let _ = writeln!(text, "{indent}- key: {}", quoted(&descriptor.key));
        let mut field = |name: &str, value: &str| {
            let _ = writeln!(text, "{indent}  {name}: {value}");
        };
        if !descriptor.value.is_empty() {
            field("value", &quoted(&descriptor.value));
        }
        if let Some(policy) = &descriptor.rate_limit {
            field("rate_limit", &rate_limit(policy));
        }
        if descriptor.shadow_mode {
            field("shadow_mode", "true");
        }
        if descriptor.detailed_metric {
            field("detailed_metric", "true");
        }
        descriptors(&descriptor.descriptors, depth + 1, text);
    }
}

fn rate_limit(policy: &RateLimitPolicy) -> String {
    let mut fields = Vec::new();
    let unit = RateLimitUnit::try_from(policy.unit);
    match unit {
        Ok(RateLimitUnit::Unknown) if policy.unlimited => {}
        Ok(unit) => fields.push(format!("unit: {}", unit.as_str_name().to_lowercase())),
        Err(_) => fields.push(format!("unit: \"{}\"", policy.unit)),
    }
    if !policy.unlimited || policy.requests_per_unit > 0 {
        fields.push(format!("requests_per_unit: {}", policy.requests_per_unit));
    }
    if policy.unlimited {
        fields.push("unlimited: true".into());
    }
    if !policy.name.is_empty() {
        fields.push(format!("name: {}", quoted(&policy.name)));
    }
    if !policy.replaces.is_empty() {
        let names = policy.replaces.iter().map(|one| format!("{{ name: {} }}", quoted(&one.name)));
        fields.push(format!("replaces: [{}]", names.collect::<Vec<_>>().join(", ")));
    }
    format!("{{ {} }}", fields.join(", "))
}

/// A double-quoted YAML text.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            // Not printable in YAML, or a line break.
            '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::envoy::proto::ratelimit::config::ratelimit::v3::RateLimitReplace;
    use tidegate_config::envoy::{EnvoyConfig, EnvoyLoadOptions};

    fn policy(unit: RateLimitUnit, requests_per_unit: u32) -> RateLimitPolicy {
        RateLimitPolicy { unit: unit.into(), requests_per_unit, ..RateLimitPolicy::default() }
    }

    fn load(config: &RateLimitConfig) -> Result<EnvoyConfig, String> {
        let any = prost_types::Any { type_url: TYPE_URL.into(), value: config.encode_to_vec() };
        let resources = decode(&[any])?;
        let texts = resources.iter().map(|(name, text)| (&**name, &**text));
        EnvoyConfig::load_resources(texts, &EnvoyLoadOptions::default())
            .map_err(|problems| problems.to_string())
    }

    fn one(descriptor: RateLimitDescriptor) -> RateLimitConfig {
        let name = "resource".to_string();
        RateLimitConfig { name, domain: "edge".into(), descriptors: vec![descriptor] }
    }

    #[test]
    fn every_field_of_a_resource_reaches_the_limits() {
        let replaces = vec![RateLimitReplace { name: "other".into() }];
        let named =
            RateLimitPolicy { name: "own".into(), replaces, ..policy(RateLimitUnit::Week, 7) };
        let inner = RateLimitDescriptor {
            key: "user".into(),
            rate_limit: Some(named),
            shadow_mode: true,
            detailed_metric: true,
            ..RateLimitDescriptor::default()
        };
        let other = RateLimitPolicy { name: "other".into(), ..policy(RateLimitUnit::Second, 0) };
        let outer = RateLimitDescriptor {
            key: "path".into(),
            value: "/a\"b\\c\n\u{85}{x}: #".into(),
            rate_limit: Some(other),
            descriptors: vec![inner],
            ..RateLimitDescriptor::default()
        };
        let config = load(&one(outer)).unwrap();
        assert_eq!(config.warnings(), []);
        let domain = config.domain("edge").unwrap();
        let found: Vec<_> = domain.leaves().collect();
        let of = |limit: &str| found.iter().find(|leaf| leaf.name() == Some(limit)).unwrap();
        let (own, other) = (of("own"), of("other"));
        assert!(own.is_shadow() && own.detailed_metric() && !other.is_shadow());
        assert_eq!(own.replaces().collect::<Vec<_>>(), ["other"]);
        assert_eq!(own.current_limit().unwrap().0, 7);
        assert_eq!(own.current_limit().unwrap().1.name(), "week");
        assert_eq!(other.current_limit().unwrap().0, 0);
    }

    #[test]
    fn an_unlimited_policy_needs_no_unit_and_every_other_one_does() {
        let unlimited = RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() };
        let limited = |rate_limit| RateLimitDescriptor {
            key: "k".into(),
            rate_limit: Some(rate_limit),
            ..RateLimitDescriptor::default()
        };
        let config = load(&one(limited(unlimited))).unwrap();
        assert!(config.leaves().all(|leaf| leaf.rule().is_none()));
        let error = load(&one(limited(policy(RateLimitUnit::Unknown, 5)))).unwrap_err();
        assert!(error.contains("resource:4:") && error.contains("unknown unit"), "{error}");
        let future = RateLimitPolicy { unit: 99, ..policy(RateLimitUnit::Unknown, 5) };
        let error = load(&one(limited(future))).unwrap_err();
        assert!(error.contains("unknown unit \"99\""), "{error}");
    }

    #[test]
    fn resources_of_other_types_and_broken_ones_are_refused() {
        let other = prost_types::Any { type_url: "type.googleapis.com/x".into(), value: vec![] };
        assert!(decode(&[other]).unwrap_err().contains("type.googleapis.com/x"));
        let broken = prost_types::Any { type_url: TYPE_URL.into(), value: vec![0xff; 3] };
        assert!(decode(&[broken]).unwrap_err().contains("cannot be decoded"));
        assert_eq!(decode(&[]).unwrap(), []);
    }
}
