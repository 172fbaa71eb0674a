//! Reading a policy file neither panics nor takes long, whatever the file contains.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use tidegate::{Clock, SystemClock};
use tidegate_config::{
    Environment, LoadedPolicy, PolicyLoader, Problems, RuleFile, ServerSettings,
};
use tidegate_model::{TraceRng, run_size};

use crate::reference::EXAMPLE;

const SEED: u64 = 0x7469_6465_6761_7465;

/// A second file to mutate, with aliases, merges, blocks and escapes.
const SECOND_EXAMPLE: &str = r#"
namespace: "tg-\x41"
include: [more.yaml, "${V}.yaml"]
defaults: &d
  key: [client_ip]
  lease: 3
rules:
  - &one
    name: one
    limits: [ "concurrency 5 lease 1m", 'leaky-bucket 10/s queue' ]
  - <<: [*one, *d]
    name: two
    match: { header: { x-a: "b*" }, method: [GET, HEAD] }
    overrides:
      - key: >-
          folded
          text
        limits: [1/s]
        until: 2030-06-01T12:00:00+02:00
  - { "name": "drei-${V}", limits: ["fixed-window 3/month tz Europe/Berlin"], allow: [::1, ünï] }
"#;

/// The file under test, and one that it may include.
struct MutatedFile(Vec<u8>);

impl Environment for MutatedFile {
    fn read(&self, path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
        match path.to_str() {
            Some("main.yaml") => Ok(self.0.iter().copied().take(max_bytes + 1).collect()),
            Some("more.yaml") => Ok(b"rules: [{ name: more, limits: [1/s] }]".to_vec()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        (name != "W").then(|| "more".into())
    }
}

fn load(bytes: Vec<u8>) -> Result<LoadedPolicy, Problems> {
    PolicyLoader::load_from("main.yaml", &MutatedFile(bytes))
}

const SNIPPETS: [&str; 40] = [
    "&a ",
    "*a",
    "<<: *a",
    "[",
    "]",
    "{",
    "}",
    "- ",
    ": ",
    "? ",
    "| ",
    ">\n",
    "\"",
    "'",
    "#",
    "!x ",
    "---\n",
    "...\n",
    "%YAML 1.2\n",
    "\t",
    "\r",
    "\0",
    "\u{feff}",
    "\u{2028}",
    "${V}",
    "${W}",
    "$${",
    "${",
    "~",
    "null",
    "true",
    "99999999999999999999999999",
    "-1e999",
    "0.5",
    ".inf",
    "name: ",
    "limits: [5/s]",
    "\\x00",
    "secret: hunter2\n",
    "key: [path:id]",
];

fn mutate(text: &mut Vec<u8>, draw: &mut TraceRng) {
    let at = draw.index(text.len() + 1);
    match draw.index(9) {
        0 if !text.is_empty() => {
            let at = draw.index(text.len());
            text[at] ^= 1 << draw.index(8);
        }
        1 => text.truncate(at),
        2 => {
            let lines: Vec<&[u8]> = text.split_inclusive(|b| *b == b'\n').collect();
            let (from, to) = (draw.index(lines.len()), draw.index(lines.len()));
            let (line, mut lines) = (lines.get(from).copied().unwrap_or_default(), lines.clone());
            lines.insert(to.min(lines.len()), line);
            *text = lines.concat();
        }
        3 => {
            let lines: Vec<&[u8]> = text.split_inclusive(|b| *b == b'\n').collect();
            let out = draw.index(lines.len());
            let kept = lines.iter().enumerate().filter(|(i, _)| *i != out).map(|(_, line)| *line);
            *text = kept.collect::<Vec<_>>().concat();
        }
        4 => {
            let deep =
                draw.pick(&["[", "{a: ", "- ", "? ", "&x [", "\"${V}\", "]).repeat(draw.index(80));
            text.splice(at..at, deep.bytes());
        }
        5 => {
            let end = (at + draw.index(20)).min(text.len());
            text.drain(at..end);
        }
        6 => {
            let end = (at + draw.index(40)).min(text.len());
            let moved: Vec<u8> = text[at..end].to_vec();
            let to = draw.index(text.len() + 1);
            text.splice(to..to, moved);
        }
        _ => {
            let snippet = draw.pick(&SNIPPETS).bytes();
            text.splice(at..at, snippet);
        }
    }
}

#[test]
fn no_mutated_policy_panics_or_leaks() {
    let mut draw = TraceRng::new(SEED);
    let (cases, mut loaded) = (run_size(2_000, 20_000, 200_000), 0);
    for case in 0..cases {
        let mut text = draw.pick(&[EXAMPLE, SECOND_EXAMPLE]).as_bytes().to_vec();
        for _ in 0..=draw.index(4) {
            mutate(&mut text, &mut draw);
        }
        match load(text) {
            Ok(policy) => {
                loaded += 1;
                for rule in &policy.rules {
                    let json = serde_json::to_string(&rule.file).unwrap();
                    let reloaded =
                        RuleFile::from_json(&json).unwrap().load(&ServerSettings::default());
                    assert_eq!(reloaded.unwrap().file, rule.file, "case {case} of seed {SEED}");
                }
            }
            Err(problems) => {
                let report = problems.to_string();
                assert!(problems.count() > 0 && !report.is_empty());
                assert!(!report.contains("hunter2"), "case {case} of seed {SEED}: {report}");
                for problem in problems.iter() {
                    let lines = problem.to_string();
                    let longest = lines.lines().map(|line| line.chars().count()).max();
                    assert!(longest < Some(500), "case {case} of seed {SEED}: {lines}");
                }
            }
        }
    }
    assert!(loaded > cases / 20, "too few mutated files load: {loaded}");
}

fn oversized_inputs() -> Vec<(&'static str, String)> {
    let full = |unit: &str| unit.repeat(PolicyLoader::MAX_BYTES / unit.len());
    let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..30 {
        let all = vec![format!("*a{}", i - 1); 10].join(", ");
        laughs += &format!("a{i}: &a{i} [{all}]\n");
    }
    let anchors: String = (0..30).map(|i| format!("&a{i} [")).collect();
    let inside = "x, ".repeat(100_000);
    let rules: String =
        (0..10_001).map(|i| format!("  - {{ name: r{i}, limits: [1/s], stop: true }}\n")).collect();
    let stops: String = (0..10_000)
        .map(|i| {
            format!(
                "  - {{ name: r{i}, match: {{ path: /a/b/c/{i} }}, limits: [1/s], stop: true }}\n"
            )
        })
        .collect();
    let numbers: String = (0..40_000).map(|i| format!("{i}: [{i}, {i}]\n")).collect();
    vec![
        ("aliases of aliases", laughs),
        ("anchors around anchors", format!("rules: {anchors}{inside}{}", "]".repeat(30))),
        ("one alias many times", format!("a: &a [{inside}]\nb: [{}]", "*a, ".repeat(1_000))),
        (
            "merges of merges",
            format!("- &a {{ x: 1 }}\n{}", "- &a { <<: [*a, *a], y: 1 }\n".repeat(9_000)),
        ),
        ("open lists", full("[")),
        ("open maps", full("{a: ")),
        ("lists in lists", full("- ")),
        ("keys of keys", full("? ")),
        ("maps in maps", full("a: ")),
        ("closed lists", full("]")),
        ("many lists", format!("[{}]", full("[],").split_at(PolicyLoader::MAX_BYTES - 4).0)),
        ("many quotes", full("\"")),
        ("many escapes", format!("\"{}", full("\\x41").split_at(PolicyLoader::MAX_BYTES - 4).0)),
        ("many comments", full("#\n")),
        ("one comment", full("#")),
        ("many documents", full("---\n")),
        ("many directives", full("%TAG ! x\n")),
        ("many tags", full("!x ")),
        ("many anchors", full("&a ")),
        ("many blanks", full(" ")),
        ("many tabs", full("\t")),
        ("many line ends", full("\r\n")),
        ("one word", full("a")),
        ("many words", full("a ")),
        ("many colons", full(":")),
        ("many secrets", full("secret: x\n")),
        ("many secrets in a line", format!("{{{}}}", "secret: x, ".repeat(90_000))),
        ("many unknown fields", numbers.clone()),
        ("many fields in a rule", format!("rules: [{{{}}}]", full("a: 1, ").split_at(900_000).0)),
        ("one field many times", full("a: 1\n")),
        ("many variables", format!("secret: \"{}\"", full("${V}").split_at(900_000).0)),
        ("many bad variables", format!("secret: \"{}\"", full("${").split_at(900_000).0)),
        ("many bad limits", format!("rules: [{{name: a, limits: [{}]}}]", "x, ".repeat(100_000))),
        (
            "many bad entries",
            format!("rules: [{{name: a, limits: [1/s], deny: [{}]}}]", "1.1.1.1/8, ".repeat(9_999)),
        ),
        ("many bad rules", format!("rules: [{}]", "{}, ".repeat(200_000))),
        ("many includes", format!("include: [{}]", "x.yaml, ".repeat(100_000))),
        ("a long block", format!("secret: |\n{}", full("  x\n").split_at(900_000).0)),
        ("a rule too many", format!("rules:\n{rules}")),
        ("rules that all stop", format!("rules:\n{stops}")),
        ("a byte too many", " ".repeat(PolicyLoader::MAX_BYTES + 1)),
    ]
}

#[test]
fn no_oversized_input_takes_long() {
    for (case, text) in oversized_inputs() {
        let before = SystemClock.elapsed();
        let report = match load(text.into_bytes()) {
            Ok(_) => String::new(),
            Err(problems) => problems.to_string(),
        };
        let took = Duration::from(SystemClock.elapsed().saturating_sub(before));
        println!("{case}: {took:?}: {}", report.lines().next().unwrap_or(""));
        assert!(took < Duration::from_secs(60), "{case} took {took:?}");
        assert!(report.len() < 200_000, "{case} reported {} bytes", report.len());
    }
}
