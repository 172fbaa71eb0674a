//! Links lead somewhere, and every page of the manual can be found and begins with an example.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::{files, root};

/// A link in Markdown: the file that has it, its line, the path it leads to and the heading.
struct Link {
    place: String,
    path: PathBuf,
    heading: Option<String>,
}

#[test]
fn every_link_leads_somewhere() {
    let mut found = Vec::new();
    for link in markdown().iter().flat_map(|file| links(file)) {
        let is_there = link.path.exists() && link.path.starts_with(root());
        let has_heading = link.heading.as_ref().is_none_or(|heading| {
            is_there && link.path.is_file() && anchors(&link.path).contains(heading)
        });
        if !is_there || !has_heading {
            let heading = link.heading.map(|heading| format!("#{heading}")).unwrap_or_default();
            found.push(format!("{}: {}{heading}", link.place, relative(&link.path)));
        }
    }
    assert!(found.is_empty(), "{} links lead nowhere:\n{}", found.len(), found.join("\n"));
}

/// The site has the pages of the summary; a language model reads `llms.txt`.
#[test]
fn every_page_is_in_the_index_in_the_summary_and_in_llms_txt() {
    let [index, summary, llms] = ["docs/README.md", "docs/SUMMARY.md", "llms.txt"]
        .map(|name| (name, BTreeSet::from_iter(links(&root().join(name)).map(|link| link.path))));
    let mut missing = Vec::new();
    for page in pages().into_iter().chain(recipes()) {
        for (name, linked) in [&index, &summary, &llms] {
            if !linked.contains(&page) && page != root().join(name) {
                missing.push(format!("{name} does not link to {}", relative(&page)));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn every_page_begins_with_its_purpose_and_an_example() {
    let mut found = Vec::new();
    for page in pages() {
        if page.ends_with("README.md") {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap();
        let mut lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("<!--"));
        let has_title = lines.next().is_some_and(|line| line.starts_with("# "));
        let purpose = lines.next().unwrap_or_default();
        let is_text = !purpose.starts_with("```") && !purpose.starts_with(['#', '|', '-', '!']);
        let is_before_second_section =
            text.split("\n## ").take(2).any(|part| part.contains("\n```"));
        if !has_title || !is_text || !is_before_second_section {
            found.push(relative(&page));
        }
    }
    assert!(found.is_empty(), "no purpose or no example at the start:\n{}", found.join("\n"));
}

/// As llmstxt.org defines it: a title, a quoted summary, and sections that are lists of links.
#[test]
fn llms_txt_has_its_format() {
    let text = fs::read_to_string(root().join("llms.txt")).unwrap();
    let (head, sections) = text.split_once("\n## ").unwrap();
    assert!(head.starts_with("# Tidegate\n\n> "), "{head}");
    for section in sections.split("\n## ") {
        let mut lines = section.lines();
        assert!(lines.next().is_some_and(|title| !title.is_empty()));
        for line in lines.filter(|line| !line.is_empty()) {
            let item = line.strip_prefix("- [").and_then(|item| item.split_once("]("));
            assert!(item.is_some_and(|(_, rest)| rest.contains("): ")), "{line}");
        }
    }
}

#[test]
fn the_readme_fits_on_few_screens() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(text.lines().count() <= 200, "{} lines", text.lines().count());
    let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 100).collect();
    assert!(long.is_empty(), "{long:#?}");
    let first = "Tidegate is a rate limiter: a server for any language and a Rust library.";
    assert!(text.contains(first));
}

/// All Markdown except that in source folders, whose links rustdoc resolves.
fn markdown() -> Vec<PathBuf> {
    let mut all = files(&root(), &["md"]);
    all.retain(|path| !path.components().any(|part| part == Component::Normal("src".as_ref())));
    all.push(root().join("llms.txt"));
    all
}

/// The pages of the manual.
fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), &["md"]);
    pages.retain(|path| !path.ends_with("SUMMARY.md"));
    pages
}

/// The entry pages of the recipes.
fn recipes() -> Vec<PathBuf> {
    let folder = root().join("examples/recipes");
    let mut recipes = if folder.is_dir() { files(&folder, &["md"]) } else { Vec::new() };
    recipes.retain(|path| path.ends_with("README.md"));
    recipes
}

/// The links of a file to other files, code left out.
fn links(file: &Path) -> impl Iterator<Item = Link> {
    let mut found = Vec::new();
    for (line, number) in prose(&fs::read_to_string(file).unwrap()) {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains(':') {
                continue;
            }
            let (path, heading) = match target.split_once('#') {
                Some((path, heading)) => (path, Some(heading.to_string())),
                None => (target, None),
            };
            let path = match path {
                "" => file.to_path_buf(),
                _ => normalised(&file.parent().unwrap().join(path)),
            };
            found.push(Link { place: format!("{}:{number}", relative(file)), path, heading });
        }
    }
    found.into_iter()
}

/// The lines outside code blocks without code spans, with their numbers.
fn prose(text: &str) -> Vec<(String, usize)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push((line.split('`').step_by(2).collect(), number));
        }
    }
    lines
}

/// The anchors of the headings of a page, as GitHub and mdBook make them.
fn anchors(page: &Path) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut is_code = false;
    for line in fs::read_to_string(page).unwrap().lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let heading = line.trim_start_matches('#');
        if is_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.flat_map(char::to_lowercase).collect();
        let anchor = anchor.replace(' ', "-");
        let again = (1..).map(|count| format!("{anchor}-{count}"));
        let free = std::iter::once(anchor.clone()).chain(again).find(|a| !anchors.contains(a));
        anchors.extend(free);
    }
    anchors
}

#[test]
fn anchors_are_those_of_github() {
    let page = std::env::temp_dir().join(format!("tidegate-anchors-{}.md", std::process::id()));
    let text = "# A `code`: B, C_d\n```\n# no heading\n```\n## Same\n## Same\n#5 is none\n";
    fs::write(&page, text).unwrap();
    let expected = ["a-code-b-c_d", "same", "same-1"].map(String::from);
    assert_eq!(anchors(&page), BTreeSet::from(expected));
    fs::remove_file(page).unwrap();
}

/// The path without `..` and `.`, whether it exists or not.
fn normalised(path: &Path) -> PathBuf {
    let mut normalised = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normalised.pop()),
            Component::CurDir => {}
            part => normalised.push(part),
        }
    }
    normalised
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
