//! What is released: a tarball, a Debian package, a bill of materials, and the sums of all three.
//!
//! The same sources, tools and cargo folder make the same bytes: files are sorted, belong to nobody, and are as old as
//! `SOURCE_DATE_EPOCH`, or else as the last commit.

mod debian;
mod options;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Finding, Result, sbom, workspace_root};

pub(crate) use options::Options;
use tree::Tree;

/// What everything in here is called.
const NAME: &str = "tidegate";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Runs wherever Linux does.
const STATIC_TARGET: &str = "x86_64-unknown-linux-musl";
const SHELLS: [(&str, &str); 5] = [
    ("bash", "tidegate.bash"),
    ("zsh", "_tidegate"),
    ("fish", "tidegate.fish"),
    ("elvish", "tidegate.elv"),
    ("powershell", "_tidegate.ps1"),
];

/// Builds the binary and everything around it.
pub(crate) fn run(options: &Options) -> Result<Finding> {
    let root = workspace_root()?;
    let target = match &options.target {
        Some(target) => target.clone(),
        None => usual_target()?,
    };
    let out = options.out.clone().unwrap_or_else(|| root.join("target/package"));
    fs::create_dir_all(&out)?;
    let out = out.canonicalize()?;
    let epoch = epoch(&root)?;
    let binary = match &options.binary {
        Some(binary) => binary.canonicalize()?,
        None => build(&root, &target)?,
    };
    let released = Released { root, out, target, epoch, binary };
    let mut made = vec![released.bill()?, released.tarball()?];
    if tree::is_there("dpkg-deb") {
        made.push(released.debian_package()?);
    } else {
        println!("skipped: no dpkg-deb, so no Debian package");
    }
    made.sort();
    let sums = tree::output(Command::new("sha256sum").args(&made).current_dir(&released.out))?;
    fs::write(released.out.join("SHA256SUMS"), &sums)?;
    print!("in {}, for {}:\n{sums}", released.out.display(), released.target);
    Ok(Finding::Good)
}

/// What is being released.
struct Released {
    root: PathBuf,
    /// Where it goes.
    out: PathBuf,
    target: String,
    /// How old every file is, in seconds since 1970.
    epoch: u64,
    binary: PathBuf,
}

impl Released {
    fn bill(&self) -> Result<String> {
        let name = format!("{NAME}-{VERSION}.cdx.json");
        let bill = sbom::bill(&self.target, self.epoch)?;
        fs::write(self.out.join(&name), format!("{bill:#}\n"))?;
        Ok(name)
    }

    fn tarball(&self) -> Result<String> {
        let folder = format!("{NAME}-{VERSION}-{}", self.target);
        let tree = Tree::new(self.out.join(&folder))?;
        tree.program(&self.binary, "tidegate")?;
        self.completions(&tree, |(_, file)| Some(format!("completions/{file}")))?;
        self.pages(&tree, "man/man1")?;
        for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            tree.copy(&self.root.join(file), file)?;
        }
        tree.copy_all(&self.root.join("docs"), "docs")?;
        tree.copy_all(&self.root.join("packaging"), "packaging")?;
        tree.copy(&self.sample(), "policy.yaml")?;
        tree.copy(&self.out.join(format!("{NAME}-{VERSION}.cdx.json")), "sbom.cdx.json")?;
        let name = format!("{folder}.tar.gz");
        tree.pack(&self.out.join(&name), self.epoch)?;
        Ok(name)
    }

    /// What each shell needs, where `place` puts it.
    fn completions(
        &self,
        tree: &Tree,
        place: impl Fn((&str, &str)) -> Option<String>,
    ) -> Result<()> {
        for (shell, file) in SHELLS {
            if let Some(path) = place((shell, file)) {
                let script = tree::output(Command::new(&self.binary).args(["completions", shell]))?;
                tree.write(&path, &script)?;
            }
        }
        Ok(())
    }

    /// The manual pages, in a folder of the tree.
    fn pages(&self, tree: &Tree, folder: &str) -> Result<()> {
        tree::output(Command::new(&self.binary).arg("man").arg(tree.folder(folder)?))?;
        Ok(())
    }

    fn sample(&self) -> PathBuf {
        self.root.join("crates/tidegate-server/src/sample.yaml")
    }
}

/// The static target if it can be built for, else this machine's.
fn usual_target() -> Result<String> {
    let rustc = || Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let folder =
        tree::output(rustc().args(["--print", "target-libdir", "--target", STATIC_TARGET]));
    if folder.is_ok_and(|folder| Path::new(folder.trim()).is_dir()) && tree::is_there("musl-gcc") {
        return Ok(STATIC_TARGET.into());
    }
    println!("not static: rustup target add {STATIC_TARGET}, and install musl-tools");
    let told = tree::output(rustc().arg("-vV"))?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not tell what machine this is".into())
}

fn build(root: &Path, target: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--release", "--locked", "--package", "tidegate-server"]);
    let status = command.args(["--target", target]).current_dir(root).status()?;
    if !status.success() {
        return Err("the binary does not build".into());
    }
    let folder = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(root.join(folder).join(target).join("release").join(NAME))
}

fn epoch(root: &Path) -> Result<u64> {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        return given.parse().map_err(|_| "SOURCE_DATE_EPOCH is not a number of seconds".into());
    }
    let log = ["log", "-1", "--format=%ct"];
    match tree::output(Command::new("git").args(log).current_dir(root)) {
        Ok(seconds) => Ok(seconds.trim().parse()?),
        Err(_) => Err("no commit to take the date from; set SOURCE_DATE_EPOCH".into()),
    }
}
