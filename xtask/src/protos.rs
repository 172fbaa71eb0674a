//! Generates the Rust code of the protocols in `proto/`, without `protoc`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Result, workspace_root};

/// The services of the server, which reflection describes.
const SERVICES: [&str; 2] =
    ["envoy/service/ratelimit/v3/rls.proto", "envoy/service/rate_limit_quota/v3/rlqs.proto"];
/// What is compiled besides them: messages of a control plane.
const MESSAGES: [&str; 2] =
    ["envoy/service/discovery/v3/discovery.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];
/// The folder of the generated code.
const CODE: &str = "crates/tidegate-server/src/transport/envoy/proto";
/// The file descriptors, for reflection.
const DESCRIPTORS: &str = "descriptors.bin";

/// Regenerates the code.
pub(crate) fn run() -> Result<()> {
    let folder = workspace_root()?.join(CODE);
    let wanted = compile()?;
    fs::create_dir_all(&folder)?;
    for name in read(&folder)?.keys().filter(|name| !wanted.contains_key(*name)) {
        fs::remove_file(folder.join(name))?;
    }
    for (name, bytes) in &wanted {
        fs::write(folder.join(name), bytes)?;
    }
    println!("{} files in {CODE}", wanted.len());
    Ok(())
}

/// Files by name.
type Files = BTreeMap<String, Vec<u8>>;

fn compile() -> Result<Files> {
    let out = TempDir::new()?;
    let mut protocols = protox::Compiler::new([workspace_root()?.join("proto")])?;
    protocols.include_imports(true).open_files(SERVICES)?;
    let descriptors = protocols.encode_file_descriptor_set();
    protocols.include_source_info(true).open_files(MESSAGES)?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .out_dir(&out.0)
        .compile_fds(protocols.file_descriptor_set())?;
    let mut files = read(&out.0)?;
    files.insert(DESCRIPTORS.into(), descriptors);
    Ok(files)
}

fn read(folder: &Path) -> Result<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().into_string().map_err(|_| "a file without a name")?;
        files.insert(name, fs::read(entry.path())?);
    }
    Ok(files)
}

/// A temporary folder, removed when dropped.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("tidegate-protos-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A folder that is left behind does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generated_code_is_up_to_date() {
        let there = read(&workspace_root().unwrap().join(CODE)).unwrap();
        let wanted = compile().unwrap();
        let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&there), names(&wanted), "run `cargo xtask protos`");
        for (name, bytes) in &wanted {
            assert!(there[name] == *bytes, "{name} differs; run `cargo xtask protos`");
        }
    }
}
