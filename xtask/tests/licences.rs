//! Licences of all dependencies, against the list that `cargo deny` uses. Needs no other tool.

use std::fs;
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, ParseMode};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The list `allow` of `deny.toml`.
fn allowed() -> Vec<String> {
    let text = fs::read_to_string(format!("{ROOT}/deny.toml")).expect("deny.toml is readable");
    let (_, list) = text.split_once("\nallow = [").expect("deny.toml has a list of licences");
    let (list, _) = list.split_once(']').expect("the list ends");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn is_allowed(licence: &str, allowed: &[String]) -> bool {
    // Lax: also the old syntax `MIT/Apache-2.0`.
    let expression = Expression::parse_mode(licence, ParseMode::LAX);
    expression.is_ok_and(|read| read.evaluate(|term| allowed.contains(&term.to_string())))
}

#[test]
fn every_dependency_has_an_allowed_licence_and_comes_from_crates_io() {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--all-features", "--locked"])
        .current_dir(ROOT)
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
    let (packages, allowed) = (metadata["packages"].as_array().unwrap(), allowed());
    assert!(packages.len() > 100 && allowed.len() > 5);
    for package in packages {
        let licence = package["license"].as_str().unwrap_or_default();
        assert!(is_allowed(licence, &allowed), "{}: licence {licence:?}", package["id"]);
        let source = package["source"].as_str();
        let is_known = source.is_none_or(|source| source.ends_with("/rust-lang/crates.io-index"));
        assert!(is_known, "{}: {source:?}", package["id"]);
    }
}

#[test]
fn a_licence_that_is_not_listed_is_refused_unless_there_is_an_alternative() {
    let allowed = allowed();
    for (licence, expected) in [
        ("MIT OR Apache-2.0", true),
        ("MIT/Apache-2.0", true),
        ("Unlicense OR MIT", true),
        ("(MIT OR GPL-3.0-only) AND Zlib", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Unlicense", false),
        ("MIT AND GPL-3.0-only", false),
        ("MIT OR", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(licence, &allowed), expected, "{licence}");
    }
}
