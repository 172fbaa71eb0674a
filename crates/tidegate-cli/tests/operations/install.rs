//! `packaging/install.sh`, with a release in a folder instead of on a server.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::{at_root, output_text, read};
use testkit::server::TempFolder;

const TARGET: &str = "x86_64-unknown-linux-musl";
const FILE: &str = "tidegate-0.1.0-x86_64-unknown-linux-musl";

/// A release with one archive, which contains the built binary.
fn release() -> TempFolder {
    let folder = TempFolder::new();
    let files = folder.path("latest/download");
    std::fs::create_dir_all(files.join(FILE)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_tidegate"), files.join(FILE).join("tidegate")).unwrap();
    let pack =
        format!("tar -czf {FILE}.tar.gz {FILE} && sha256sum {FILE}.tar.gz > SHA256SUMS-{TARGET}");
    let packed = Command::new("sh").args(["-c", &pack]).current_dir(&files).status().unwrap();
    assert!(packed.success());
    folder
}

fn install(release: &TempFolder) -> (Output, PathBuf) {
    let prefix = release.path("installed");
    let output = Command::new("sh")
        .arg(at_root("packaging/install.sh"))
        .env("BASE", format!("file://{}", release.path("").display()))
        .env("PREFIX", &prefix)
        .env_remove("VERSION")
        .output()
        .unwrap();
    (output, prefix.join("bin/tidegate"))
}

#[test]
fn a_release_is_installed_over_an_older_one() {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return;
    }
    let release = release();
    for _ in 0..2 {
        let (output, binary) = install(&release);
        assert!(output.status.success(), "{}", output_text(&output));
        let version = Command::new(&binary).arg("--version").output().unwrap();
        assert!(output_text(&version).starts_with("tidegate 0."), "{}", output_text(&version));
    }
}

#[test]
fn a_file_with_a_wrong_checksum_is_not_installed() {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return;
    }
    let release = release();
    let archive = release.path("latest/download").join(format!("{FILE}.tar.gz"));
    let mut bytes = std::fs::read(&archive).unwrap();
    bytes.push(0);
    std::fs::write(&archive, bytes).unwrap();
    let (output, binary) = install(&release);
    assert!(!output.status.success());
    assert!(output_text(&output).contains("checksum"), "{}", output_text(&output));
    assert!(!binary.exists());
}

#[test]
fn a_release_without_a_file_for_this_machine_is_refused() {
    let release = release();
    std::fs::write(release.path("latest/download").join(format!("SHA256SUMS-{TARGET}")), "")
        .unwrap();
    let (output, binary) = install(&release);
    assert!(!output.status.success());
    assert!(!binary.exists());
}

/// `cargo binstall` takes the archive that the installer takes, from the same place.
#[test]
fn binstall_finds_the_archive_of_a_release() {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(at_root("")).output();
    let metadata: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|one| one["name"] == "tidegate-cli").unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (repository, version) = (text(&package["repository"]), text(&package["version"]));
    let fill = |field: &str| {
        let template = text(&package["metadata"]["binstall"][field]);
        let values = [("repo", &*repository), ("version", &version), ("target", TARGET)];
        let filled = values
            .iter()
            .chain(&[("bin", "tidegate")])
            .fold(template, |text, value| text.replace(&format!("{{ {} }}", value.0), value.1));
        assert!(!filled.contains('{'), "{filled}");
        filled
    };
    let base = format!("{repository}/releases");
    assert!(read("packaging/install.sh").contains(&base), "{base}");
    assert_eq!(fill("pkg-url"), format!("{base}/download/v{version}/{FILE}.tar.gz"));
    assert_eq!(fill("bin-dir"), format!("{FILE}/tidegate"));
}
