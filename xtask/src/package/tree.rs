//! A folder of files to release, and the tools that pack it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

/// A folder that is made anew.
pub(super) struct Tree(PathBuf);

impl Tree {
    pub(super) fn new(path: PathBuf) -> Result<Self> {
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// A folder in it, made if it is not there.
    pub(super) fn folder(&self, path: &str) -> Result<PathBuf> {
        let folder = self.0.join(path);
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    pub(super) fn write(&self, path: &str, text: &str) -> Result<()> {
        fs::write(self.place(path, 0o644)?, text)?;
        Ok(())
    }

    pub(super) fn copy(&self, from: &Path, path: &str) -> Result<()> {
        let bytes = fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
        fs::write(self.place(path, 0o644)?, bytes)?;
        Ok(())
    }

    /// A folder with all that is in it.
    pub(super) fn copy_all(&self, from: &Path, path: &str) -> Result<()> {
        for entry in fs::read_dir(from)? {
            let (entry, path) = {
                let entry = entry?;
                let name = entry.file_name();
                (entry, format!("{path}/{}", name.to_str().ok_or("a file without a name")?))
            };
            if entry.file_type()?.is_dir() {
                self.copy_all(&entry.path(), &path)?;
            } else {
                self.copy(&entry.path(), &path)?;
            }
        }
        Ok(())
    }

    /// A file that can be run, without what only a debugger reads.
    pub(super) fn program(&self, from: &Path, path: &str) -> Result<()> {
        self.copy(from, path)?;
        // This machine's tool may be missing, or not know another machine's files. They run all the same.
        let _ = output(Command::new("strip").arg("--strip-all").arg(self.0.join(path)));
        self.executable(path)
    }

    pub(super) fn executable(&self, path: &str) -> Result<()> {
        Ok(fs::set_permissions(self.0.join(path), fs::Permissions::from_mode(0o755))?)
    }

    /// Squeezes a file, always to the same bytes.
    pub(super) fn gzip(&self, path: &str) -> Result<()> {
        output(Command::new("gzip").args(["-9", "-n", "-f"]).arg(self.0.join(path)))?;
        Ok(())
    }

    /// Every file in it by its path, sorted.
    pub(super) fn files(&self) -> Result<Vec<String>> {
        let mut files = Vec::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push(path.strip_prefix(&self.0)?.to_string_lossy().into_owned());
                }
            }
        }
        files.sort();
        Ok(files)
    }

    /// Makes a tarball of the folder, in which everything is as old as `epoch`.
    pub(super) fn pack(&self, to: &Path, epoch: u64) -> Result<()> {
        let (parent, name) = (self.0.parent().ok_or("a folder is in another")?, self.0.file_name());
        let tar = to.with_extension("");
        output(
            Command::new("tar")
                .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
                .args(["--format=ustar", "--mode=u+rw,go=rX", &format!("--mtime=@{epoch}")])
                .arg("-cf")
                .arg(&tar)
                .arg("-C")
                .arg(parent)
                .args(name),
        )?;
        output(Command::new("gzip").args(["-9", "-n", "-f"]).arg(&tar))?;
        Ok(())
    }

    /// Where a file goes, which has these rights.
    fn place(&self, path: &str, mode: u32) -> Result<PathBuf> {
        let to = self.0.join(path);
        fs::create_dir_all(to.parent().ok_or("a file is in a folder")?)?;
        fs::write(&to, "")?;
        fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
        Ok(to)
    }
}

/// Is there a program of this name?
pub(super) fn is_there(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

/// What a command says, if it succeeds.
pub(super) fn output(command: &mut Command) -> Result<String> {
    let ran = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !ran.status.success() {
        let complaint = String::from_utf8_lossy(&ran.stderr);
        return Err(format!("{command:?} failed: {}", complaint.trim()).into());
    }
    Ok(String::from_utf8(ran.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_make_the_same_tarball_however_old_they_are() {
        let folder = std::env::temp_dir().join(format!("tidegate-package-{}", std::process::id()));
        let make = |nth: u32| {
            let tree = Tree::new(folder.join("tree")).unwrap();
            let names = if nth == 0 { ["b/x", "a"] } else { ["a", "b/x"] };
            names.iter().for_each(|name| tree.write(name, "text").unwrap());
            tree.executable("a").unwrap();
            let long_ago =
                std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(nth.into());
            fs::File::options()
                .write(true)
                .open(folder.join("tree/a"))
                .unwrap()
                .set_modified(long_ago)
                .unwrap();
            assert_eq!(tree.files().unwrap(), ["a", "b/x"]);
            let to = folder.join(format!("{nth}.tar.gz"));
            tree.pack(&to, 1_700_000_000).unwrap();
            fs::read(to).unwrap()
        };
        let (one, other) = (make(0), make(1));
        fs::remove_dir_all(&folder).unwrap();
        assert!(!one.is_empty() && one == other);
    }
}
