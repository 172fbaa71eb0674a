//! Links to the pages about rules and keys.

use maud::{Markup, html};
use tidegate::Rule;

use crate::text::escape::{KEY_SEPARATOR, MAX_KEY_LEN};

/// The path of the page about a rule.
pub(crate) fn rule_path(rule: &str) -> String {
    let name: String = form_urlencoded::byte_serialize(rule.as_bytes()).collect();
    format!("/rule?name={name}")
}

/// The name of a rule, as a link to its page.
pub(crate) fn rule_link(rule: &str) -> Markup {
    html! { a href=(rule_path(rule)) { code { (rule) } } }
}

/// A displayed key, as a link to its page if the key can be read from what is displayed.
///
/// `has_parts` says that a separator in it stands between two parts.
pub(crate) fn key_link(rule: &str, key: &str, has_parts: bool) -> Markup {
    // It may be truncated or escaped.
    let is_unclear = key.len() + 4 > MAX_KEY_LEN
        || key.contains('\\')
        || (!has_parts && key.contains(KEY_SEPARATOR))
        || [Rule::ADHOC, Rule::THROTTLE].contains(&rule);
    html! {
        @if key.is_empty() { span.muted { "all requests" } }
        @else if is_unclear { code { (key) } }
        @else { a href=(key_path(rule, key)) { code { (key) } } }
    }
}

fn key_path(rule: &str, key: &str) -> String {
    const START: &str = "/keys?";
    let mut query = form_urlencoded::Serializer::for_suffix(START.to_string(), START.len());
    query.append_pair("rule", rule);
    query.extend_pairs(key.split(KEY_SEPARATOR).map(|part| ("key", part)));
    query.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_link_if_it_is_certain() {
        let href = |rule, key, has_parts| {
            let link = key_link(rule, key, has_parts).into_string();
            link.split('"').nth(1).filter(|_| link.starts_with("<a ")).map(str::to_string)
        };
        assert_eq!(href("api", "a&b", false).unwrap(), "/keys?rule=api&amp;key=a%26b");
        assert_eq!(href("api", "a|b", true).unwrap(), "/keys?rule=api&amp;key=a&amp;key=b");
        let long = "x".repeat(MAX_KEY_LEN - 3);
        for (rule, key) in [("api", "a|b"), ("api", "a\\n"), ("adhoc", "a"), ("api", &*long)] {
            assert_eq!(href(rule, key, false), None, "{rule} {key}");
        }
    }
}
