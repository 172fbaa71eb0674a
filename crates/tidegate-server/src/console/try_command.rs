//! A command that calls a rule.

use maud::{Markup, html};
use serde_json::{Value, json};
use tidegate_config::RuleFile;

/// The command, with a button that copies it. `id` is unique in the page.
pub(crate) fn try_command(rule: &RuleFile, id: &str) -> Markup {
    html! {
        span.command {
            code id=(id) { (command(rule)) }
            " " button.quiet.copy type="button" data-copy=(id) { "Copy" }
        }
    }
}

/// The names in it need no escape: a rule has the characters `A-Z a-z 0-9 _ . -`.
fn command(rule: &RuleFile) -> String {
    let parts = rule.key.as_deref().unwrap_or_default();
    let example = |part: &String| match &**part {
        "client_ip" => "192.0.2.1",
        _ => "example",
    };
    let key: Vec<&str> = parts.iter().map(example).collect();
    match &*key {
        [] => format!("tidegate check {} all", rule.name),
        [only] => format!("tidegate check {} {only}", rule.name),
        several => {
            let body: Value = json!({ "rule": rule.name, "key": several });
            format!("curl --json '{body}' http://127.0.0.1:8080/v1/check")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_has_a_key_of_the_rule() {
        let of = |key: &[&str]| {
            let key = Some(key.iter().map(|part| part.to_string()).collect());
            command(&RuleFile { name: "api".into(), key, ..RuleFile::default() })
        };
        assert_eq!(of(&[]), "tidegate check api all");
        assert_eq!(of(&["client_ip"]), "tidegate check api 192.0.2.1");
        assert_eq!(
            of(&["header:a", "path:b"]),
            r#"curl --json '{"key":["example","example"],"rule":"api"}' http://127.0.0.1:8080/v1/check"#
        );
    }
}
