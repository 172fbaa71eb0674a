//! Modules import in one direction.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use crate::crates;
use crate::modules::{ModulePath, Modules};

/// Every algorithm of the core needs the enum of all of them, and that enum needs every algorithm.
const EXEMPT: &str = "tidegate-core";

#[test]
fn no_module_imports_itself_through_others() {
    let mut report = String::new();
    let mut read = 0;
    for (name, folder) in crates() {
        if name == EXEMPT || !folder.join("src").is_dir() {
            continue;
        }
        let modules = Modules::read(&folder.join("src"));
        read += modules.0.len();
        let mut edges: BTreeMap<ModulePath, BTreeMap<ModulePath, String>> = BTreeMap::new();
        for (from, to, written) in modules.imports() {
            edges.entry(from.clone()).or_default().entry(to).or_insert(written);
        }
        list_cycles(&name, "", &edges, &mut report);
        // The same between folders, whatever files in them import.
        for (parent, edges) in between_siblings(&edges) {
            list_cycles(&name, &format!(" in {}", show(&parent)), &edges, &mut report);
        }
    }
    assert!(report.is_empty(), "cycles between modules:\n{report}");
    println!("{read} modules, no cycle");
}

#[test]
fn folders_import_only_what_their_header_allows() {
    let mut report = String::new();
    for (name, folder) in crates() {
        if !folder.join("src").is_dir() || name == EXEMPT {
            continue;
        }
        let modules = Modules::read(&folder.join("src"));
        for (path, module) in &modules.0 {
            let is_folder =
                modules.0.keys().any(|other| other.len() > path.len() && other.starts_with(path));
            if is_folder && !path.is_empty() && module.allowed.is_none() {
                let _ = writeln!(report, "{name}: {}: the header has no `Imports: ..`", show(path));
            }
        }
        for (from, to, written) in modules.imports() {
            for (len, folder) in (1..=from.len()).map(|len| (len, &from[..len])) {
                let Some(allowed) =
                    modules.0.get(folder).and_then(|module| module.allowed.as_ref())
                else {
                    continue;
                };
                let is_sibling =
                    to.len() >= len && to[..len - 1] == folder[..len - 1] && to[..len] != *folder;
                if is_sibling && !allowed.contains(&to[len - 1]) {
                    let _ = writeln!(
                        report,
                        "{name}: {} imports {written}, which `{}` does not allow",
                        show(from),
                        show(folder)
                    );
                }
            }
        }
    }
    assert!(report.is_empty(), "imports against the stated direction:\n{report}");
}

#[test]
fn modules_at_a_root_import_only_what_its_layout_lists_above_them() {
    let mut report = String::new();
    for (name, folder) in crates() {
        let src = folder.join("src");
        let text = ["lib.rs", "main.rs"].map(|file| fs::read_to_string(src.join(file)));
        let Some(text) = text.into_iter().find_map(Result::ok) else { continue };
        let order = layout(&text);
        if order.is_empty() {
            let _ = writeln!(report, "{name}: the root has no `# Layout` with a list");
        }
        if name == EXEMPT {
            continue;
        }
        let place = |module: &String| order.iter().position(|listed| listed == module);
        let modules = Modules::read(&src);
        for path in modules.0.keys().filter(|path| path.len() == 1 && place(&path[0]).is_none()) {
            let _ = writeln!(report, "{name}: {} is not in the `# Layout`", show(path));
        }
        for (from, to, written) in modules.imports() {
            let (Some(above), Some(below)) = (to.first(), from.first()) else { continue };
            if above != below && place(above) > place(below) {
                let _ = writeln!(report, "{name}: {} imports {written} below it", show(from));
            }
        }
    }
    assert!(report.is_empty(), "imports against the order of the layout:\n{report}");
}

/// The names in backticks in the list under `# Layout`, in the order of their first mention.
fn layout(text: &str) -> Vec<String> {
    let header = text.lines().filter_map(|line| line.strip_prefix("//!")).map(str::trim);
    let section = header.skip_while(|line| *line != "# Layout").skip(1);
    let section = section.take_while(|line| !line.starts_with("# "));
    let list: Vec<&str> = section.skip_while(|line| !line.starts_with("- ")).collect();
    list.join(" ").split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_import_has_a_name() {
    let mut report = String::new();
    for (name, folder) in crates() {
        if folder.join("src").is_dir() {
            for (path, module) in Modules::read(&folder.join("src")).0 {
                for glob in module.globs {
                    let _ = writeln!(report, "{name}: {} imports {glob}::*", show(&path));
                }
            }
        }
    }
    assert!(report.is_empty(), "what these import cannot be followed:\n{report}");
}

/// The imports between the children of each module, those of their own children counted as theirs.
fn between_siblings(
    edges: &BTreeMap<ModulePath, BTreeMap<ModulePath, String>>,
) -> BTreeMap<ModulePath, BTreeMap<ModulePath, BTreeMap<ModulePath, String>>> {
    let mut levels: BTreeMap<_, BTreeMap<ModulePath, BTreeMap<ModulePath, String>>> =
        BTreeMap::new();
    for (from, targets) in edges {
        for (to, written) in targets {
            let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            if common < from.len() && common < to.len() {
                let level = levels.entry(from[..common].to_vec()).or_default();
                let written = format!("{} by {written}", show(from));
                level
                    .entry(from[..=common].to_vec())
                    .or_default()
                    .entry(to[..=common].to_vec())
                    .or_insert(written);
            }
        }
    }
    levels
}

/// Adds the modules that are left when those that import nothing (any more) are taken away.
fn list_cycles(
    name: &str,
    place: &str,
    edges: &BTreeMap<ModulePath, BTreeMap<ModulePath, String>>,
    report: &mut String,
) {
    let mut left: BTreeSet<&ModulePath> = edges.keys().collect();
    loop {
        let before = left.len();
        let now = left.clone();
        left.retain(|module| edges[*module].keys().any(|to| now.contains(to)));
        // Nor does one belong to a cycle that nothing left imports.
        let now = left.clone();
        left.retain(|module| now.iter().any(|from| edges[*from].contains_key(*module)));
        if left.len() == before {
            break;
        }
    }
    for from in &left {
        for (to, written) in edges[*from].iter().filter(|(to, _)| left.contains(to)) {
            let _ = writeln!(report, "{name}{place}: {} -> {} ({written})", show(from), show(to));
        }
    }
}

fn show(path: &[String]) -> String {
    if path.is_empty() { "the root".into() } else { path.join("::") }
}

#[test]
fn a_layout_is_read_in_the_order_of_first_mention() {
    let text = "//! A crate.\n//! # Layout\n//! Each `x`..\n//!\n//! - [`low`]: [`Type`].\n//!   `mid`\n\
                //! - `high` uses `low`.\n//! # Notes\n//! - `other`\n";
    assert_eq!(layout(text), ["low", "Type", "mid", "high", "low"]);
    assert!(layout("//! A crate.\n//! - `low`\n").is_empty());
}
