//! `site`: the documentation as a site.
//!
//! Pages link to each other by their paths in the repository, also outside `docs`, and mdBook reads
//! one folder. So the pages of `docs/SUMMARY.md` and the files they link to are copied into
//! `target/site/src` with their paths. `book.toml` has the settings.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::{NOT_INSTALLED, Result, install, workspace_root};

const SUMMARY: &str = "docs/SUMMARY.md";

pub(crate) fn run() -> Result<ExitCode> {
    let root = workspace_root()?;
    let is_installed = Command::new("mdbook").arg("--version").output().is_ok();
    if !is_installed && !install("mdbook")? {
        return Ok(ExitCode::from(NOT_INSTALLED));
    }
    copy_sources(&root, &root.join("target/site/src"))?;
    if !Command::new("mdbook").arg("build").arg(&root).status()?.success() {
        return Err("mdbook failed".into());
    }
    let html = root.join("target/site/html");
    let (links, broken) = check_links(&html)?;
    println!("{}: {links} links", html.display());
    if broken.is_empty() { Ok(ExitCode::SUCCESS) } else { Err(broken.join("\n").into()) }
}

/// Copies the pages of the summary and every file that they link to.
fn copy_sources(root: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    let summary = fs::read_to_string(root.join(SUMMARY))?;
    let mut paths = BTreeSet::new();
    for page in links(&summary, "](", ")").map(|link| resolve(SUMMARY, link)) {
        let text = fs::read_to_string(root.join(&page)).map_err(|e| format!("{page}: {e}"))?;
        let linked = links(&text, "](", ")").filter(|link| !link.contains(':'));
        paths.extend(linked.map(|link| resolve(&page, link)));
        paths.insert(page);
    }
    for path in paths.iter().filter(|path| root.join(path).is_file()) {
        let copy = to.join(path);
        copy.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::copy(root.join(path), copy)?;
    }
    fs::write(to.join("SUMMARY.md"), with_resolved_links(&summary))?;
    Ok(())
}

/// The summary with links from the root. Two of its pages are called `README.md`.
fn with_resolved_links(summary: &str) -> String {
    let mut parts = summary.split("](");
    let start = parts.next().unwrap_or_default().to_string();
    parts.fold(start, |text, part| match part.split_once(')') {
        Some((link, rest)) => format!("{text}]({}){rest}", resolve(SUMMARY, link)),
        None => format!("{text}]({part}"),
    })
}

/// Counts the links between the files of the site, and lists those that lead nowhere.
fn check_links(html: &Path) -> Result<(usize, Vec<String>)> {
    let mut count = 0;
    let mut broken = Vec::new();
    for page in pages(html)? {
        // Shown for unknown addresses, with links from the root of a server; and all pages in one.
        if page == "404.html" || page == "print.html" {
            continue;
        }
        let text = fs::read_to_string(html.join(&page))?;
        for link in links(&text, "href=\"", "\"").chain(links(&text, "src=\"", "\"")) {
            if link.contains(':') {
                continue;
            }
            count += 1;
            let link = &decoded(link);
            let anchor = link.split_once('#').map_or("", |(_, anchor)| anchor);
            let target = html.join(resolve(&page, link));
            let has_anchor = || {
                let text = fs::read_to_string(&target).unwrap_or_default();
                anchor.is_empty() || text.contains(&format!("id=\"{anchor}\""))
            };
            if !target.exists() || !has_anchor() {
                broken.push(format!("{page}: {link} leads nowhere"));
            }
        }
    }
    Ok((count, broken))
}

/// The pages of the site, with their paths in it.
fn pages(html: &Path) -> Result<Vec<String>> {
    let mut pages = Vec::new();
    let mut folders = vec![html.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "html") {
                pages.push(path.strip_prefix(html)?.display().to_string());
            }
        }
    }
    Ok(pages)
}

/// Without `%..`, as which mdBook writes all but ASCII in links.
fn decoded(link: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = link.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = link.get(link.len() - after.len()..).and_then(|text| text.get(..2));
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        let byte = code.filter(|_| *first == b'%');
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn links<'a>(text: &'a str, start: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(start).skip(1).filter_map(move |rest| rest.split(end).next())
}

/// The path that a link on a page leads to, without `..` and without its anchor.
fn resolve(page: &str, link: &str) -> String {
    let path = link.split('#').next().unwrap_or_default();
    if path.is_empty() {
        return page.to_string();
    }
    let mut resolved = PathBuf::from(page);
    resolved.pop();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            Component::CurDir => {}
            part => resolved.push(part),
        }
    }
    resolved.display().to_string()
}

#[cfg(test)]
#[test]
fn links_are_decoded() {
    assert_eq!(decoded("a.html#%E9%99%90%E6%B5%81-1"), "a.html#限流-1");
    assert_eq!(decoded("限%zz%4"), "限%zz%4");
}

#[cfg(test)]
#[test]
fn each_link_of_the_summary_is_resolved_once() {
    let summary = "[a](../README.md)\n[b](README.md)\n- [c](use/http.md)\n";
    let resolved = "[a](README.md)\n[b](docs/README.md)\n- [c](docs/use/http.md)\n";
    assert_eq!(with_resolved_links(summary), resolved);
}

#[cfg(test)]
#[test]
fn links_are_resolved_from_their_page() {
    assert_eq!(resolve("docs/use/http.md", "../operate/redis.md#cost"), "docs/operate/redis.md");
    assert_eq!(resolve("docs/use/http.md", "#tls"), "docs/use/http.md");
    assert_eq!(resolve("README.md", "./docs/README.md"), "docs/README.md");
}
