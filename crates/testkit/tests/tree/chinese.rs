//! Chinese pages have the commands and limits of the English ones, and every limit is valid.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tidegate::Limit;

use crate::{files, root};

/// Pages in both languages.
const PAIRS: [(&str, &str); 2] = [
    ("README.md", "README.zh-CN.md"),
    ("docs/use/choosing-a-limit.md", "docs/zh-CN/choosing-a-limit.md"),
];

const ALGORITHMS: [&str; 6] = [
    "concurrency ",
    "fixed-window ",
    "leaky-bucket ",
    "sliding-log ",
    "sliding-window ",
    "token-bucket ",
];

#[test]
fn both_languages_have_the_same_commands() {
    for (english, chinese) in PAIRS {
        let pages = [english, chinese].map(read);
        let [there, here] = pages.each_ref().map(|text| blocks(text));
        assert!(there.len() > 5, "{english} has only {} blocks", there.len());
        assert_eq!(here, there, "{chinese} and {english}");
    }
}

#[test]
fn both_languages_have_the_same_limits() {
    for (english, chinese) in PAIRS {
        let [there, here] = [english, chinese].map(|page| limits(&read(page)));
        assert!(there.len() > 8, "{english} has only {} limits", there.len());
        assert_eq!(here, there, "{chinese} and {english}");
    }
}

#[test]
fn limits_in_chinese_pages_are_valid() {
    let mut count = 0;
    for file in files(&root().join("docs/zh-CN"), &["md"]) {
        for text in limits(&fs::read_to_string(&file).unwrap()) {
            let parsed = text.parse::<Limit>();
            assert!(parsed.is_ok(), "{}: {text}: {}", file.display(), parsed.unwrap_err());
            count += 1;
        }
    }
    assert!(count > 30, "only {count} limits found");
}

fn read(page: &str) -> String {
    fs::read_to_string(root().join(Path::new(page))).unwrap()
}

/// The fenced blocks, in order.
fn blocks(text: &str) -> Vec<&str> {
    text.split("\n```").skip(1).step_by(2).collect()
}

/// What has the form of a limit: in backticks, and in quotation marks within code.
fn limits(text: &str) -> BTreeSet<String> {
    let code = blocks(text).into_iter();
    let prose = text.split("\n```").step_by(2);
    let spans = prose.flat_map(|part| part.split('`').skip(1).step_by(2));
    let parts = code.chain(spans).flat_map(|part| part.split(['"', '\'']));
    parts.filter(|part| is_limit(part)).map(str::to_owned).collect()
}

/// A count, `/` and a unit, or the name of an algorithm and a count; not two limits with a `+`.
fn is_limit(text: &str) -> bool {
    let starts_with_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let is_rate = starts_with_digit(text)
        && text.split_once('/').is_some_and(|(count, _)| count.bytes().all(|b| b.is_ascii_digit()));
    let has_name = ALGORITHMS.iter().filter_map(|name| text.strip_prefix(name));
    let is_one_line = !text.contains('\n') && !text.contains(" + ");
    is_one_line && (is_rate || has_name.into_iter().any(starts_with_digit))
}

#[test]
fn limits_are_found_in_tables_and_in_code() {
    let text =
        "| `5/m` | 5/m |\n```yaml\nlimits: [\"sliding-log 5/1m\"] # 1/2\n```\n`2L - 1` `[\"7/s\"]`";
    let found = ["5/m", "7/s", "sliding-log 5/1m"].map(str::to_owned);
    assert_eq!(limits(text), BTreeSet::from(found));
}
