//! The input as a link, as a command and as a policy.

use maud::{Markup, html};
use tidegate::Span;
use tidegate::simulate::{Candidate, Report};

use super::input::PlaygroundInput;

/// The link that reproduces the page.
pub(super) fn link(input: &PlaygroundInput) -> Markup {
    let link = input.link();
    html! {
        section.card.copies aria-labelledby="take" {
            h2 #take { "Permalink" }
            p { a #link href=(link) { (link) } }
            (copy("link", "the link"))
            p.muted { "Deterministic: the same result on every server of this version." }
        }
    }
}

/// The command line, and each candidate as a policy.
pub(super) fn copies(report: &Report, hold: Option<Span>) -> Markup {
    html! {
        div.actions {
            section.card.copies aria-labelledby="command-title" {
                h2 #command-title { "As a command" }
                pre #command tabindex="0" { (command(report, hold)) }
                (copy("command", "the command"))
            }
            section.card.copies aria-labelledby="policy-title" {
                h2 #policy-title { "As a policy" }
                @for (index, run) in report.runs.iter().enumerate() {
                    @let id = format!("policy-{}", index + 1);
                    details open[index == 0] {
                        summary { code { (run.candidate) } }
                        pre id=(id) tabindex="0" { (policy(&run.candidate)) }
                        (copy(&id, "the policy"))
                    }
                }
            }
        }
    }
}

/// A copy button; visible only with scripts.
fn copy(id: &str, what: &str) -> Markup {
    html! { button.copy.quiet type="button" data-copy=(id) { "Copy" span.hidden { " " (what) } } }
}

fn command(report: &Report, hold: Option<Span>) -> String {
    let mut command = String::from("tidegate simulate");
    for run in &report.runs {
        command += &format!(" \\\n  --limit {}", quoted(&run.candidate.to_string()));
    }
    command += &format!(" \\\n  --traffic {}", quoted(&report.traffic.to_string()));
    if let Some(hold) = hold {
        command += &format!(" \\\n  --hold {}", quoted(&hold.to_string()));
    }
    if let Some(calls) = report.calls {
        command += &format!(" \\\n  --calls {}", quoted(&calls.to_string()));
    }
    command + &format!(" \\\n  --seed {}", report.seed)
}

/// Quotes a text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A policy with one rule per client address. JSON strings are valid YAML.
fn policy(candidate: &Candidate) -> String {
    let mut policy =
        String::from("rules:\n  - name: playground\n    key: [client_ip]\n    limits:\n");
    for limit in candidate.limits() {
        let limit = serde_json::Value::from(limit.to_string());
        policy += &format!("      - {limit}\n");
    }
    policy
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_config::PolicyLoader;

    #[test]
    fn a_copied_policy_loads() {
        for text in ["10/s + fixed-window 1000/d tz Asia/Shanghai", "concurrency 20 lease 30s"] {
            let candidate: Candidate = text.parse().unwrap();
            let loaded = PolicyLoader::load_str("copied.yaml", &policy(&candidate)).unwrap();
            let limits = loaded.rules[0].rule.rule().limits();
            let limits: Vec<String> =
                limits.iter().map(|limit| limit.limit().to_string()).collect();
            assert_eq!(limits.join(" + "), candidate.to_string());
        }
    }

    #[test]
    fn a_quoted_text_is_one_word_of_a_shell() {
        for text in ["a b", "it's; rm -rf /", "$(date) `id` \\ \"x\" !", "''"] {
            let shell = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {}", quoted(text))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(shell.stdout).unwrap(), text);
        }
    }
}
