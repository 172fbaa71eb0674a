//! The files to change: all that are built outside of tests.

use std::fs;
use std::path::{Path, PathBuf};

use super::flips;
use crate::Result;

/// A source file; the path is relative to the workspace.
pub(super) struct File {
    pub(super) path: String,
    pub(super) source: String,
}

/// The files below `folder`, in order of their paths.
pub(super) fn read(root: &Path, folder: &str) -> Result<Vec<File>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let path = folder.join(entry?.file_name());
            if root.join(&path).is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                let source = fs::read_to_string(root.join(&path))?;
                files.push(File { path: path.to_string_lossy().into_owned(), source });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(without_tests(files))
}

/// Leaves out the modules that exist for tests only, and what is below them.
fn without_tests(files: Vec<File>) -> Vec<File> {
    let for_tests: Vec<PathBuf> = files
        .iter()
        .flat_map(|file| {
            flips::test_modules(&file.source).into_iter().map(|name| module(file, name))
        })
        .collect();
    let is_for_tests = |file: &File| {
        let path = Path::new(&file.path).with_extension("");
        for_tests.iter().any(|module| path.starts_with(module))
    };
    files.into_iter().filter(|file| !is_for_tests(file)).collect()
}

/// Where the module `name` of `file` is, without the extension.
fn module(file: &File, name: &str) -> PathBuf {
    let path = Path::new(&file.path);
    let is_root = path.ends_with("lib.rs") || path.ends_with("main.rs") || path.ends_with("mod.rs");
    let folder = if is_root { path.with_file_name("") } else { path.with_extension("") };
    folder.join(name)
}

#[cfg(test)]
mod tests {
    use super::{File, without_tests};

    #[test]
    fn modules_for_tests_are_left_out_with_all_below_them() {
        let declares_tests = "mod real;\n#[cfg(test)]\nmod tests;";
        let files = [
            ("src/lib.rs", declares_tests),
            ("src/real.rs", declares_tests),
            ("src/real/real.rs", ""),
            ("src/real/tests.rs", ""),
            ("src/folder/mod.rs", declares_tests),
            ("src/folder/tests/mod.rs", ""),
            ("src/folder/tests/deep.rs", ""),
            ("src/tests.rs", ""),
            ("src/tests_of_speed.rs", ""),
        ];
        let files = files.map(|(path, source)| File { path: path.into(), source: source.into() });
        let left: Vec<String> =
            without_tests(files.into()).into_iter().map(|file| file.path).collect();
        let expected = [
            "src/lib.rs",
            "src/real.rs",
            "src/real/real.rs",
            "src/folder/mod.rs",
            "src/tests_of_speed.rs",
        ];
        assert_eq!(left, expected);
    }
}
