//! Names of limits in the metrics of envoyproxy/ratelimit.

use std::borrow::Cow;

use super::entry::DescriptorEntry;
use super::level::{LevelMatch, MatchKind};
use crate::envoy::descriptor_limit::DescriptorLimit;

/// The name of a limit of a file.
///
/// It contains the values and wildcards of the file. `value_to_metric` replaces one of them by the
/// value of the request, and `detailed_metric` replaces all. Values that share a threshold always
/// appear as their wildcard.
pub(crate) fn of_file<'c>(
    domain: &str,
    leaf: &'c DescriptorLimit,
    steps: &[LevelMatch<'c>],
    entries: &[impl DescriptorEntry],
) -> Cow<'c, str> {
    let follows_request = |step: &LevelMatch<'_>| step.node.value_to_metric || step.is_of_any_key();
    if !leaf.detailed_metric() && !steps.iter().any(follows_request) {
        return Cow::Borrowed(leaf.stat_name());
    }
    let shared =
        |(step, entry): (&LevelMatch<'_>, _)| step.shared(DescriptorEntry::key(entry)).is_some();
    let shares = steps.iter().zip(entries).any(shared);
    let mut name = domain.to_string();
    for (step, entry) in steps.iter().zip(entries) {
        let (key, value) = (entry.key(), entry.value());
        let shown = match (step.shared(key), step.by) {
            (Some(pattern), _) => pattern,
            (None, _) if leaf.detailed_metric() => value,
            (None, MatchKind::Value) => value,
            (None, _) if step.node.value_to_metric => value,
            (None, MatchKind::Wildcard) => step.pattern(key),
            (None, MatchKind::Key) => "",
        };
        // envoyproxy/ratelimit keeps the `_` of an empty value in a detailed name that shares
        // nothing.
        let joins = !shown.is_empty() || leaf.detailed_metric() && !shares;
        push(&mut name, key, joins.then_some(shown));
    }
    Cow::Owned(sanitized(&name))
}

/// The name of a limit that came with a request.
pub(crate) fn of_request(domain: &str, entries: &[impl DescriptorEntry]) -> String {
    let mut name = domain.to_string();
    for entry in entries {
        let value = entry.value();
        push(&mut name, entry.key(), Some(value).filter(|value| !value.is_empty()));
    }
    sanitized(&name)
}

fn push(name: &mut String, key: &str, value: Option<&str>) {
    name.push('.');
    name.push_str(key);
    if let Some(value) = value {
        name.push('_');
        name.push_str(value);
    }
}

/// Replaces what a statsd line cannot contain: `:` and `|`, and the dots of IPv4 addresses.
pub(crate) fn sanitized(name: &str) -> String {
    let mut rest = name;
    let mut clean = String::with_capacity(name.len());
    while let Some(c) = rest.chars().next() {
        let address = address_len(rest.as_bytes());
        let (taken, after) = rest.split_at(if address > 0 { address } else { c.len_utf8() });
        match (address, c) {
            (0, ':' | '|') => clean.push('_'),
            (0, c) => clean.push(c),
            _ => clean.push_str(&taken.replace('.', "_")),
        }
        rest = after;
    }
    clean
}

/// The length of the IPv4 address at the start of a text: four groups of one to three digits.
fn address_len(text: &[u8]) -> usize {
    let mut at = 0;
    for group in 0..4 {
        let digits = text[at..].iter().take(3).take_while(|b| b.is_ascii_digit()).count();
        at += digits;
        let goes_on = group == 3 || text.get(at) == Some(&b'.');
        if digits == 0 || !goes_on {
            return 0;
        }
        at += usize::from(group < 3);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_no_colons_bars_or_dots_of_addresses() {
        let cases = [
            ("d.k_v", "d.k_v"),
            ("d.k_a:b|c", "d.k_a_b_c"),
            ("d.remote_address_50.0.0.5", "d.remote_address_50_0_0_5"),
            ("d.k_1.2.3.4.5", "d.k_1_2_3_4.5"),
            ("d.k_1234.5.6.7", "d.k_1234_5_6_7"),
            ("d.k_1.2.3.", "d.k_1.2.3."),
            ("d.k_ü:", "d.k_ü_"),
            ("", ""),
        ];
        for (name, clean) in cases {
            assert_eq!(sanitized(name), clean);
        }
    }
}
