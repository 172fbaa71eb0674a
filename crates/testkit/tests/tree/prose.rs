//! Texts use the terms of the field (CONTRIBUTING.md) and fit on a screen.

use std::fs;
use std::path::Path;

use crate::{files, root};

/// Words and phrases that the project does not use. `*` stands for any ending.
const AVOIDED: [&str; 11] = [
    "door",
    "doors",
    "told",
    "whoever",
    "nobody",
    "somebody",
    "look on",
    "looks on",
    "reckon*",
    "as good as unused",
    "those who",
];

const MAX_COLUMNS: usize = 100;

#[test]
fn texts_avoid_the_words_on_the_list() {
    let this = Path::new(file!()).file_name().unwrap();
    let mut found = Vec::new();
    let extensions =
        ["rs", "md", "lua", "toml", "yaml", "yml", "json", "js", "css", "java", "service", "conf"];
    for file in files(&root(), &extensions) {
        if file.file_name().unwrap() == this {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        for (line, number) in text.lines().zip(1..) {
            let words = words(line);
            for avoided in AVOIDED.iter().filter(|avoided| contains(&words, avoided)) {
                found.push(format!("{}:{number}: {avoided}: {}", file.display(), line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{} places:\n{}", found.len(), found.join("\n"));
}

#[test]
fn markdown_is_wrapped() {
    let mut found = Vec::new();
    for file in files(&root(), &["md"]) {
        let text = fs::read_to_string(&file).unwrap();
        let mut is_code = false;
        for (line, number) in text.lines().zip(1..) {
            if line.trim_start().starts_with("```") {
                is_code = !is_code;
            }
            // Tables and lone addresses stay on one line.
            let can_wrap = !is_code && !line.starts_with('|') && line.trim().contains(' ');
            if can_wrap && line.chars().count() > MAX_COLUMNS {
                found.push(format!("{}:{number}", file.display()));
            }
        }
    }
    assert!(found.is_empty(), "above {MAX_COLUMNS} columns:\n{}", found.join("\n"));
}

#[test]
fn comments_are_wrapped() {
    let mut found = Vec::new();
    for (extension, start) in [("rs", "//"), ("lua", "--")] {
        for file in files(&root(), &[extension]) {
            let text = fs::read_to_string(&file).unwrap();
            for (line, number) in text.lines().zip(1..) {
                // Tables and lone addresses stay on one line.
                let comment = line.trim_start().strip_prefix(start).unwrap_or_default();
                let comment = comment.trim_start_matches(['/', '!', '-', ' ']);
                let can_wrap = comment.contains(' ') && !comment.starts_with(['|', '[']);
                if can_wrap && line.chars().count() > MAX_COLUMNS {
                    found.push(format!("{}:{number}", file.display()));
                }
            }
        }
    }
    assert!(found.is_empty(), "above {MAX_COLUMNS} columns:\n{}", found.join("\n"));
}

/// The words of a line in lower case, those of an identifier one by one.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lowercase = false;
    for c in line.chars() {
        if !c.is_alphanumeric() || (was_lowercase && c.is_uppercase()) {
            words.push(String::new());
        }
        was_lowercase = c.is_lowercase();
        let word = words.last_mut().unwrap();
        word.extend(c.is_alphanumeric().then_some(c).into_iter().flat_map(char::to_lowercase));
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn words_of_identifiers_are_found() {
    assert_eq!(words("fn look_on(HttpDoor);"), ["fn", "look", "on", "http", "door"]);
}

fn contains(words: &[String], avoided: &str) -> bool {
    let avoided: Vec<&str> = avoided.split(' ').collect();
    words.windows(avoided.len()).any(|window| {
        window.iter().zip(&avoided).all(|(word, avoided)| match avoided.strip_suffix('*') {
            Some(stem) => word.starts_with(stem),
            None => word == avoided,
        })
    })
}
