//! Rule names and statistic names, derived from descriptor paths.

use sha2::{Digest, Sha256};

use super::lookup::sanitized;

/// The path to a descriptor: its domain, then the keys and values down to it. A missing value is
/// empty.
#[derive(Debug)]
pub(crate) struct DescriptorPath {
    pub(crate) domain: String,
    pub(crate) steps: Vec<(String, String)>,
}

/// Upper bound of the length of a rule name.
const MAX_NAME: usize = 64;
/// Hex digits of the hash in a name. Of 10,000 names that differ only in the hash, two are equal
/// with a probability of 1 in 20,000.
const HASH_LEN: usize = 10;

impl DescriptorPath {
    pub(crate) fn new(domain: &str) -> Self {
        Self { domain: domain.into(), steps: Vec::new() }
    }

    /// A unique text for the path: the parts, each prefixed by its length.
    pub(crate) fn identity(&self) -> String {
        let texts = self.steps.iter().flat_map(|(key, value)| [key, value]);
        let texts = std::iter::once(&self.domain).chain(texts);
        texts.map(|text| format!("{}:{text}", text.len())).collect()
    }

    /// The name in the metrics of envoyproxy/ratelimit: `domain.key_value.key`.
    pub(crate) fn stat(&self) -> String {
        sanitized(&self.joined('_'))
    }

    /// The name of the rule: `domain.key-value.key`.
    ///
    /// It depends on the path only, because state is stored under it: an unrelated change of the
    /// file must not rename it. A hash is added where characters are replaced or where two paths
    /// could give the same name.
    pub(crate) fn rule_name(&self) -> String {
        let name = self.joined('-');
        if self.is_unambiguous() && name.len() <= MAX_NAME {
            return name;
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        let name: String = name.chars().map(|c| if allowed(c) { c } else { '-' }).collect();
        let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        let head = &name[..name.len().min(MAX_NAME - HASH_LEN - 1)];
        let head = head.trim_end_matches(['_', '.', '-']);
        let hash = format!("{:x}", Sha256::digest(self.identity()));
        match head {
            "" => hash[..HASH_LEN].into(),
            head => format!("{head}-{}", &hash[..HASH_LEN]),
        }
    }

    /// Without a dot in any part and a dash in a key, a name has only one possible path.
    fn is_unambiguous(&self) -> bool {
        let is_word = |text: &str, also: &[u8]| {
            text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || also.contains(&b))
        };
        self.domain.starts_with(|c: char| c.is_ascii_alphanumeric())
            && is_word(&self.domain, b"-")
            && self.steps.iter().all(|(key, value)| is_word(key, b"") && is_word(value, b"-"))
    }

    fn joined(&self, with: char) -> String {
        let mut name = self.domain.clone();
        for (key, value) in &self.steps {
            name.push('.');
            name.push_str(key);
            if !value.is_empty() {
                name.push(with);
                name.push_str(value);
            }
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tidegate::Rule;

    fn path(domain: &str, steps: &[(&str, &str)]) -> DescriptorPath {
        let steps = steps.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        DescriptorPath { domain: domain.into(), steps }
    }

    #[test]
    fn a_name_is_readable_and_has_a_hash_only_where_it_is_ambiguous() {
        let long = "v".repeat(80);
        let cut = format!("d.k-{}-b416056a1f", "v".repeat(49));
        let cases: [(DescriptorPath, &str); 8] = [
            (path("mongo_cps", &[("database", "users")]), "mongo_cps.database-users"),
            (path("a-b", &[("k", ""), ("k2", "x-y")]), "a-b.k.k2-x-y"),
            (path("d", &[("ip", "50.0.0.5")]), "d.ip-50.0.0.5-1cda810e1c"),
            (path("d", &[("x-key", "")]), "d.x-key-d3a4d48b8b"),
            (path("d", &[("path", "/api/*")]), "d.path--api-15519c938c"),
            (path("_", &[("k", "")]), "k-855721bf1d"),
            (path("→", &[("→", "")]), "5bf5852033"),
            (path("d", &[("k", &long)]), &cut),
        ];
        for (path, expected) in cases {
            let name = path.rule_name();
            assert_eq!(name, expected);
            assert!(Rule::new(&name, ["1/s".parse().unwrap()]).is_ok(), "{name}");
            assert_eq!(name, path.rule_name());
        }
        assert_eq!(path("d", &[("k", "1.2.3.4"), ("l", "")]).stat(), "d.k_1_2_3_4.l");
    }

    #[test]
    fn no_two_descriptors_have_one_name() {
        let long = "v".repeat(80);
        let longer = "v".repeat(81);
        let paths = [
            path("d", &[("a", "b")]),
            path("d", &[("a_b", "")]),
            path("d", &[("a-b", "")]),
            path("d", &[("a", ""), ("b", "")]),
            path("d", &[("a.b", "")]),
            path("d.a", &[("b", "")]),
            path("d", &[("a", "-b")]),
            path("d", &[("a-", "b")]),
            path("d", &[("a", "*b")]),
            path("d", &[("a", "+b")]),
            path("d", &[("a", &long)]),
            path("d", &[("a", &longer)]),
        ];
        let names: HashSet<String> = paths.iter().map(DescriptorPath::rule_name).collect();
        let identities: HashSet<String> = paths.iter().map(DescriptorPath::identity).collect();
        assert_eq!((names.len(), identities.len()), (paths.len(), paths.len()));
    }
}
