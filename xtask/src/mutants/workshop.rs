//! A copy of the workspace, to break and mend.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{Mutant, Outcome, TESTS};
use crate::Result;

/// A build that takes longer has hung.
const BUILD_LIMIT: Duration = Duration::from_secs(600);

/// What the tests may take beyond five times what they take unchanged.
const GRACE: Duration = Duration::from_secs(10);

/// A loop without an end may allocate without one, so every process is held to 4 GiB.
const MEMORY_KIB: &str = "4194304";

/// A copy of the workspace with a build of its own.
pub(super) struct Workshop {
    tree: PathBuf,
    target: PathBuf,
    test_limit: Duration,
}

/// How a run of cargo ended.
enum End {
    Success,
    Failure(Output),
    Late,
}

impl Workshop {
    /// Copies the workspace and runs its tests unchanged, to see that they pass and how long
    /// that takes. The copy and its build are kept for the next time.
    pub(super) fn open(root: &Path, target: &Path, number: usize) -> Result<Self> {
        let place = target.join("mutants").join(format!("worker-{number}"));
        let mut workshop = Self {
            tree: place.join("tree"),
            target: place.join("target"),
            test_limit: BUILD_LIMIT,
        };
        let left_out = [root.join("target"), root.join(".git"), target.to_owned()];
        mirror(root, &workshop.tree, &left_out)?;
        for tests in TESTS {
            require_success(workshop.cargo_test(tests, &["--no-run"], BUILD_LIMIT)?)?;
        }
        let began = now();
        for tests in TESTS {
            require_success(workshop.cargo_test(tests, &[], BUILD_LIMIT)?)?;
        }
        workshop.test_limit = began.elapsed() * 5 + GRACE;
        Ok(workshop)
    }

    /// Makes the change, runs the tests and takes the change back.
    pub(super) fn attempt(&self, mutant: &Mutant<'_>) -> Result<Outcome> {
        let path = self.tree.join(&mutant.file.path);
        fs::write(&path, mutant.edit.apply(&mutant.file.source))?;
        let outcome = self.judge();
        fs::write(&path, &mutant.file.source)?;
        outcome
    }

    fn judge(&self) -> Result<Outcome> {
        for tests in TESTS {
            // Built apart from the run: cargo's exit code is the same for an error and a failure.
            match self.cargo_test(tests, &["--no-run"], BUILD_LIMIT)? {
                End::Success => {}
                End::Failure(_) => return Ok(Outcome::Unviable),
                End::Late => return Ok(Outcome::TimedOut),
            }
            match self.cargo_test(tests, &[], self.test_limit)? {
                End::Success => {}
                End::Failure(_) => return Ok(Outcome::Caught),
                End::Late => return Ok(Outcome::TimedOut),
            }
        }
        Ok(Outcome::Survived)
    }

    /// `timeout` runs cargo in a process group of its own and ends that group, and so the test
    /// that cargo has started, even when this process is gone by then.
    fn cargo_test(&self, tests: &[&str], more: &[&str], limit: Duration) -> Result<End> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new("bash")
            .args(["-c", "ulimit -v \"$0\" && exec timeout --signal=KILL \"$@\"", MEMORY_KIB])
            .arg(limit.as_secs().to_string())
            .arg(cargo)
            .arg("test")
            .args(tests)
            .args(more)
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .env("TIDEGATE_MUTANTS", "1")
            .env_remove("TIDEGATE_LONG")
            .stdin(Stdio::null())
            .output()?;
        Ok(match output.status.code() {
            Some(0) => End::Success,
            None | Some(124 | 137) => End::Late,
            Some(_) => End::Failure(output),
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a build takes, only a real clock can tell")]
fn now() -> Instant {
    Instant::now()
}

fn require_success(end: End) -> Result<()> {
    match end {
        End::Success => Ok(()),
        End::Late => Err("the tests hang before anything is changed".into()),
        End::Failure(Output { stdout, stderr, .. }) => {
            let (stdout, stderr) =
                (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
            Err(format!("the tests fail before anything is changed\n{stdout}{stderr}").into())
        }
    }
}

/// Makes `to` equal to `from`. What is equal already is not written again, so that cargo need not
/// build it again.
fn mirror(from: &Path, to: &Path, left_out: &[PathBuf]) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(to)? {
        let name = entry?.file_name();
        if !from.join(&name).exists() {
            remove(&to.join(&name))?;
        }
    }
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        let (source, copy) = (from.join(&name), to.join(&name));
        if left_out.contains(&source) {
            continue;
        }
        if source.is_dir() {
            mirror(&source, &copy, left_out)?;
        } else if fs::read(&copy).ok() != Some(fs::read(&source)?) {
            fs::copy(&source, &copy)?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::mirror;

    #[test]
    fn a_mirrored_folder_has_what_the_original_has_and_no_more() {
        let place = std::env::temp_dir().join(format!("xtask-mirror-{}", std::process::id()));
        let (from, to) = (place.join("from"), place.join("to"));
        for (path, text) in [
            ("from/same", "same"),
            ("from/folder/changed", "new"),
            ("from/target/huge", "left out"),
            ("to/same", "same"),
            ("to/folder/changed", "old"),
            ("to/folder/gone", "gone"),
            ("to/gone/gone", "gone"),
        ] {
            fs::create_dir_all(place.join(path).parent().unwrap()).unwrap();
            fs::write(place.join(path), text).unwrap();
        }
        let written = || fs::metadata(to.join("same")).unwrap().modified().unwrap();
        let before = written();
        mirror(&from, &to, &[from.join("target")]).unwrap();
        assert_eq!(written(), before);
        assert_eq!(fs::read_to_string(to.join("folder/changed")).unwrap(), "new");
        for gone in ["folder/gone", "gone", "target"] {
            assert!(!to.join(gone).exists(), "{gone}");
        }
        fs::remove_dir_all(place).unwrap();
    }
}
