//! A trial as a link, as a command and as a policy.

use maud::{Markup, html};
use tidegate::Span;
use tidegate::simulate::{Candidate, Report};

use super::trial::Trial;

/// The link that leads here again.
pub(super) fn link(trial: &Trial) -> Markup {
    let link = trial.link();
    html! {
        section.card.copies aria-labelledby="take" {
            h2 #take { "Link to this" }
            p { a #link href=(link) { (link) } }
            (copy("link", "the link"))
            p.muted { "It shows the same to the byte, on every server of this version." }
        }
    }
}

/// The command, and each candidate as a policy.
pub(super) fn copies(report: &Report, hold: Option<Span>) -> Markup {
    html! {
        div.deeds {
            section.card.copies aria-labelledby="command-title" {
                h2 #command-title { "As a command" }
                pre #command tabindex="0" { (command(report, hold)) }
                (copy("command", "the command"))
            }
            section.card.copies aria-labelledby="policy-title" {
                h2 #policy-title { "As a policy" }
                @for (place, run) in report.runs.iter().enumerate() {
                    @let id = format!("policy-{}", place + 1);
                    details open[place == 0] {
                        summary { code { (run.candidate) } }
                        pre id=(id) tabindex="0" { (policy(&run.candidate)) }
                        (copy(&id, "the policy"))
                    }
                }
            }
        }
    }
}

/// A button that only a script can make work, and only a script shows.
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
    command + &format!(" \\\n  --seed {}", report.seed)
}

/// One word to a shell, whatever stands in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A rule for each client's address. A text in JSON is one in YAML.
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
    use crate::config::Config;

    #[test]
    fn a_copied_policy_is_one() {
        for text in ["10/s + fixed-window 1000/d tz Asia/Shanghai", "concurrency 20 lease 30s"] {
            let candidate: Candidate = text.parse().unwrap();
            let loaded = Config::load_str("copied.yaml", &policy(&candidate)).unwrap();
            let limits = loaded.rules[0].rule.rule().limits();
            let limits: Vec<String> =
                limits.iter().map(|limit| limit.limit().to_string()).collect();
            assert_eq!(limits.join(" + "), candidate.to_string());
        }
    }

    #[test]
    fn a_shell_takes_a_quoted_text_for_one_word() {
        for text in ["a b", "it's; rm -rf /", "$(date) `id` \\ \"x\" !", "''"] {
            let shell = std::process::Command::new("sh")
                .args(["-c", &format!("printf %s {}", quoted(text))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(shell.stdout).unwrap(), text);
        }
    }
}
