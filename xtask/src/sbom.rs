//! What the binary is made of, as a bill of materials in CycloneDX 1.5.
//!
//! What goes into the binary is listed: dependencies for building and testing are left out, and those of other
//! platforms.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::{Value, json};

use crate::{Result, workspace_root};

/// The package that the binary is of.
const ROOT: &str = "tidegate-server";
const SPEC_VERSION: &str = "1.5";

/// The bill for a target, made at this instant, in seconds since 1970.
pub(crate) fn bill(target: &str, epoch: u64) -> Result<Value> {
    let lock = std::fs::read_to_string(workspace_root()?.join("Cargo.lock"))?;
    let metadata = ["metadata", "--format-version", "1", "--locked", "--filter-platform", target];
    let metadata = serde_json::from_slice(&cargo(&metadata)?)?;
    compose(&metadata, &shipped(target)?, &checksums(&lock), &rfc3339(epoch))
}

/// The packages whose code is in the binary, as `name vVersion`. Metadata alone has more: what tests turn on
/// in a dependency is turned on there.
fn shipped(target: &str) -> Result<BTreeSet<String>> {
    let tree = ["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let told = cargo(&[&tree[..], &["--package", ROOT, "--target", target]].concat())?;
    let told = String::from_utf8(told)?;
    // Behind it may be where it comes from.
    let shorten = |line: &str| line.split(" (").next().unwrap_or_default().to_owned();
    Ok(told.lines().map(shorten).collect())
}

fn cargo(arguments: &[&str]) -> Result<Vec<u8>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(arguments).current_dir(workspace_root()?).output()?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo {} failed: {}", arguments[0], complaint.trim()).into());
    }
    Ok(output.stdout)
}

fn compose(
    metadata: &Value,
    shipped: &BTreeSet<String>,
    checksums: &Checksums,
    made_at: &str,
) -> Result<Value> {
    let mut packages = by_id(&metadata["packages"]);
    packages.retain(|_, package| {
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        shipped.contains(&format!("{} v{}", text("name"), text("version")))
    });
    let nodes = by_id(&metadata["resolve"]["nodes"]);
    let root = packages.values().find(|package| package["name"] == ROOT);
    let root = root.and_then(|root| root["id"].as_str()).ok_or("there is no server to bill")?;
    let mut reached = BTreeSet::new();
    let mut next = vec![root];
    while let Some(id) = next.pop() {
        if packages.contains_key(id) && reached.insert(id) {
            next.extend(normal_dependencies(nodes.get(id).ok_or("a package without a node")?));
        }
    }
    let component = |id: &&str| packages.get(*id).map(|package| component(package, checksums));
    let dependency = |id: &&str| {
        let wanted: BTreeSet<_> =
            nodes.get(*id).into_iter().flat_map(|n| normal_dependencies(n)).collect();
        let wanted = wanted.iter().filter_map(|id| packages.get(*id)).map(|one| reference(one));
        let own = packages.get(*id).map(|one| reference(one)).unwrap_or_default();
        json!({ "ref": own, "dependsOn": wanted.collect::<Vec<_>>() })
    };
    let mut main = component(&root).ok_or("the server is no package")?;
    main["type"] = "application".into();
    let others = reached.iter().filter(|id| **id != root).filter_map(component);
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "version": 1,
        "metadata": { "timestamp": made_at, "component": main },
        "components": others.collect::<Vec<_>>(),
        "dependencies": reached.iter().map(dependency).collect::<Vec<_>>(),
    }))
}

fn by_id(list: &Value) -> BTreeMap<&str, &Value> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(|item| Some((item["id"].as_str()?, item))).collect()
}

/// The packages whose code becomes part of this one's.
fn normal_dependencies(node: &Value) -> Vec<&str> {
    let dependencies = node["deps"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_normal = |dependency: &&Value| {
        let kinds = dependency["dep_kinds"].as_array().map(Vec::as_slice).unwrap_or_default();
        kinds.iter().any(|kind| kind["kind"].is_null())
    };
    dependencies
        .iter()
        .filter(is_normal)
        .filter_map(|dependency| dependency["pkg"].as_str())
        .collect()
}

fn component(package: &Value, checksums: &Checksums) -> Value {
    let text = |field: &str| package[field].as_str().unwrap_or_default();
    let (name, version) = (text("name"), text("version"));
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(package),
        "name": name,
        "version": version,
        "purl": reference(package),
    });
    if let Some(licence) = package["license"].as_str() {
        // As crates.io once wrote it.
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    if let Some(repository) = package["repository"].as_str() {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    if let Some(sum) = checksums.get(&(name.to_owned(), version.to_owned())) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    component
}

fn reference(package: &Value) -> String {
    let text = |field: &str| package[field].as_str().unwrap_or_default();
    format!("pkg:cargo/{}@{}", text("name"), text("version").replace('+', "%2B"))
}

/// The sum of what was downloaded, by name and version.
type Checksums = BTreeMap<(String, String), String>;

fn checksums(lock: &str) -> Checksums {
    let value = |block: &str, field: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(" = \""));
        line.and_then(|rest| rest.strip_suffix('"')).map(str::to_owned)
    };
    let read = |block| {
        let name = (value(block, "name")?, value(block, "version")?);
        Some((name, value(block, "checksum")?))
    };
    lock.split("[[package]]").filter_map(read).collect()
}

/// An instant as in `2026-11-15T22:13:20Z`.
fn rfc3339(epoch: u64) -> String {
    let (days, second) = (epoch / 86_400, epoch % 86_400);
    // Years are counted from March, so that the day that some of them have more is the last. An era is 400.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<'a>(value: &'a Value, field: &str) -> &'a str {
        value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"))
    }

    #[test]
    fn the_bill_has_what_the_specification_asks_for() {
        let bill = bill("x86_64-unknown-linux-gnu", 1_700_000_000).unwrap();
        assert_eq!(
            (&bill["bomFormat"], &bill["specVersion"]),
            (&json!("CycloneDX"), &json!("1.5"))
        );
        assert!(bill["version"].as_u64() >= Some(1));
        assert_eq!(bill["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
        let main = &bill["metadata"]["component"];
        assert_eq!((text(main, "type"), text(main, "name")), ("application", ROOT));
        let components = bill["components"].as_array().unwrap();
        let mut references: BTreeSet<&str> = BTreeSet::from([text(main, "bom-ref")]);
        for component in components {
            assert_eq!(text(component, "type"), "library");
            assert!(!text(component, "name").is_empty() && !text(component, "version").is_empty());
            assert!(text(component, "purl").starts_with("pkg:cargo/"));
            assert!(references.insert(text(component, "bom-ref")), "{component} is there twice");
            assert!(!text(&component["licenses"][0], "expression").contains('/'), "{component}");
            let is_ours = text(component, "name").starts_with("tidegate");
            let sum = component["hashes"][0]["content"].as_str().unwrap_or_default();
            assert_eq!(sum.len(), if is_ours { 0 } else { 64 }, "{component}");
        }
        let dependencies = bill["dependencies"].as_array().unwrap();
        let refs: BTreeSet<&str> = dependencies.iter().map(|one| text(one, "ref")).collect();
        assert_eq!((refs.len(), &refs), (dependencies.len(), &references), "each has its list");
        for wanted in dependencies.iter().flat_map(|one| one["dependsOn"].as_array().unwrap()) {
            assert!(references.contains(wanted.as_str().unwrap()), "{wanted} is not listed");
        }
        let has = |name: &str| components.iter().any(|component| component["name"] == name);
        for name in ["tokio", "hyper", "tidegate-core", "clap"] {
            assert!(has(name), "{name} is in the binary");
        }
        for name in ["tidegate-model", "hyper-timeout", "trybuild", "windows-sys", "protox"] {
            assert!(!has(name), "{name} is not");
        }
    }

    #[test]
    fn an_instant_is_written_by_the_book() {
        for (epoch, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(epoch), expected);
        }
    }
}
