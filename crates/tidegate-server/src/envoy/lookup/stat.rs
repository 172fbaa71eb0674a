//! What limits go by in envoyproxy/ratelimit's metrics.

use std::borrow::Cow;

use super::Entry;
use super::level::{By, Step};
use crate::envoy::config::Leaf;

/// The name for a limit of a file.
///
/// A value that the file names is always in it, and so is a wildcard. The value of the request is
/// in it instead where `value_to_metric` is set, and everywhere if the limit has a
/// `detailed_metric`; but values that share a threshold go by their wildcard.
pub(super) fn of_file<'c>(
    domain: &str,
    leaf: &'c Leaf,
    steps: &[Step<'c>],
    entries: &[impl Entry],
) -> Cow<'c, str> {
    let follows_request = |step: &Step<'_>| step.node.value_to_metric || step.is_of_any_key();
    if !leaf.detailed_metric() && !steps.iter().any(follows_request) {
        return Cow::Borrowed(leaf.stat_name());
    }
    let shared = |(step, entry): (&Step<'_>, _)| step.shared(Entry::key(entry)).is_some();
    let shares = steps.iter().zip(entries).any(shared);
    let mut name = domain.to_string();
    for (step, entry) in steps.iter().zip(entries) {
        let (key, value) = (entry.key(), entry.value());
        let told = match (step.shared(key), step.by) {
            (Some(pattern), _) => pattern,
            (None, _) if leaf.detailed_metric() => value,
            (None, By::Value) => value,
            (None, _) if step.node.value_to_metric => value,
            (None, By::Wildcard) => step.pattern(key),
            (None, By::Key) => "",
        };
        // Theirs leaves the `_` of an empty value in a detailed name that shares nothing.
        let joins = !told.is_empty() || leaf.detailed_metric() && !shares;
        push(&mut name, key, joins.then_some(told));
    }
    Cow::Owned(sanitised(&name))
}

/// The name for a limit that came with a request.
pub(super) fn of_request(domain: &str, entries: &[impl Entry]) -> String {
    let mut name = domain.to_string();
    for entry in entries {
        let value = entry.value();
        push(&mut name, entry.key(), Some(value).filter(|value| !value.is_empty()));
    }
    sanitised(&name)
}

fn push(name: &mut String, key: &str, value: Option<&str>) {
    name.push('.');
    name.push_str(key);
    if let Some(value) = value {
        name.push('_');
        name.push_str(value);
    }
}

/// A name without what a line of statsd cannot hold: `:` and `|`, and the dots of an IPv4 address.
pub(in crate::envoy) fn sanitised(name: &str) -> String {
    let mut rest = name;
    let mut clean = String::with_capacity(name.len());
    while let Some(c) = rest.chars().next() {
        let address = address_len(rest.as_bytes());
        let (taken, behind) = rest.split_at(if address > 0 { address } else { c.len_utf8() });
        match (address, c) {
            (0, ':' | '|') => clean.push('_'),
            (0, c) => clean.push(c),
            _ => clean.push_str(&taken.replace('.', "_")),
        }
        rest = behind;
    }
    clean
}

/// The length of the IPv4 address that a text begins with: four times one to three digits.
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
            assert_eq!(sanitised(name), clean);
        }
    }
}
