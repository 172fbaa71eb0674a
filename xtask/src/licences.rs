//! Whether every package in the build is under a licence we may ship.

mod spdx;

use std::process::Command;

use serde_json::Value;

use crate::{Finding, Result};

/// What a package may be under. `Unlicense` is not here: it is fine as an alternative to one of
/// these and not alone, since some places know no public domain.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Zlib",
];

/// Prints a line per offender and a summary.
pub(crate) fn run() -> Result<Finding> {
    let metadata = metadata()?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let offences: Vec<String> = packages.iter().filter_map(offence).collect();
    for offence in &offences {
        println!("{offence}");
    }
    println!("{} packages, {} with a licence that is not allowed", packages.len(), offences.len());
    Ok(if offences.is_empty() { Finding::Good } else { Finding::Faulty })
}

fn metadata() -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--all-features"])
        .current_dir(crate::workspace_root()?)
        .output()?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata failed: {}", complaint.trim()).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Why `package` may not be shipped, if so.
fn offence(package: &Value) -> Option<String> {
    let name = package["name"].as_str().unwrap_or("?");
    let version = package["version"].as_str().unwrap_or("?");
    let complaint = match package["license"].as_str() {
        None => "names no licence".to_owned(),
        Some(licence) => match spdx::permits(licence, |term| ALLOWED.contains(&term)) {
            Ok(true) => return None,
            Ok(false) => format!("`{licence}` is not on the list"),
            Err(error) => format!("cannot read `{licence}`: {error}"),
        },
    };
    Some(format!("{name} {version}: {complaint}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::offence;

    #[test]
    fn an_offender_is_named_with_its_version_and_the_reason() {
        for (licence, expected) in [
            (json!("MIT OR Apache-2.0"), None),
            (json!("Unlicense OR MIT"), None),
            (json!("Unlicense"), Some("p 1.0.0: `Unlicense` is not on the list")),
            (json!("GPL-3.0-only"), Some("p 1.0.0: `GPL-3.0-only` is not on the list")),
            (
                json!("MIT OR"),
                Some("p 1.0.0: cannot read `MIT OR`: a licence is missing at the end"),
            ),
            (json!(null), Some("p 1.0.0: names no licence")),
        ] {
            let package = json!({ "name": "p", "version": "1.0.0", "license": licence });
            assert_eq!(offence(&package).as_deref(), expected, "{licence}");
        }
    }
}
