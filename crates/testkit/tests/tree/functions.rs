//! No function outside tests is longer than a screen.

use std::fs;
use std::path::Path;

use crate::{crates, files, root};

const MAX_LINES: usize = 70;

#[test]
fn no_function_has_more_than_70_lines() {
    let sources = crates().into_iter().filter(|(name, _)| name != "testkit");
    let files = sources.flat_map(|(_, folder)| files(&folder.join("src"), &["rs"]));
    let long: Vec<String> = files.flat_map(|file| long_in(&file)).collect();
    assert!(long.is_empty(), "split these:\n{}", long.join("\n"));
}

#[test]
fn a_long_function_is_found() {
    let body = "        work();\n".repeat(MAX_LINES - 1);
    let text = format!("impl A {{\n    fn short() {{}}\n    fn long() {{\n{body}    }}\n}}\n");
    assert_eq!(long_functions(&text), [(3, "long", MAX_LINES + 1)]);
}

fn long_in(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let file = file.strip_prefix(root()).unwrap_or(file).display();
    let line = |(line, name, length)| format!("{file}:{line}: {name} has {length} lines");
    long_functions(&text).into_iter().map(line).collect()
}

/// Line, name and length of long functions outside tests. They are recognised by the indentation
/// that rustfmt gives them.
fn long_functions(text: &str) -> Vec<(usize, &str, usize)> {
    let lines: Vec<&str> = text.lines().take_while(|line| *line != "#[cfg(test)]").collect();
    let mut long = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let is_end = |line: &&str| line.trim() == "}" && line.find('}') == Some(indent);
        let length = lines[first..].iter().position(is_end).map_or(1, |last| last + 1);
        if length > MAX_LINES && !line.ends_with(['}', ';']) {
            long.push((first + 1, name, length));
        }
    }
    long
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let words = ["pub", "pub(crate)", "pub(super)", "async", "const"];
    let is_function = before.split_whitespace().all(|word| words.contains(&word));
    let name = after.split(['(', '<']).next()?;
    (is_function && !name.is_empty()).then_some(name)
}
