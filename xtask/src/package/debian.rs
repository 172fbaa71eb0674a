//! The Debian package.

use std::fs;
use std::process::Command;

use super::tree::{self, Tree};
use super::{NAME, Released, VERSION};
use crate::Result;

const MAINTAINER: &str = "The Tidegate authors <tidegate@users.noreply.github.com>";
/// The scripts that dpkg runs, as they are in `packaging/debian`.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

impl Released {
    /// Makes it with `dpkg-deb`.
    pub(super) fn debian_package(&self) -> Result<String> {
        let architecture = architecture(&self.target)?;
        let tree = Tree::new(self.out.join("deb"))?;
        tree.program(&self.binary, "usr/bin/tidegate")?;
        tree.copy(&self.sample(), "etc/tidegate/policy.yaml")?;
        let systemd = self.root.join("packaging/systemd");
        tree.copy(&systemd.join("tidegate.service"), "lib/systemd/system/tidegate.service")?;
        for example in ["tokens.conf", "tls.conf"] {
            let to = format!("usr/share/doc/tidegate/examples/{example}");
            tree.copy(&systemd.join(example), &to)?;
        }
        self.completions(&tree, |(shell, file)| match shell {
            "bash" => Some("usr/share/bash-completion/completions/tidegate".into()),
            "zsh" => Some(format!("usr/share/zsh/vendor-completions/{file}")),
            "fish" => Some(format!("usr/share/fish/vendor_completions.d/{file}")),
            _ => None,
        })?;
        self.pages(&tree, "usr/share/man/man1")?;
        self.documents(&tree)?;
        for file in tree.files()?.iter().filter(|file| file.starts_with("usr/share/man/")) {
            tree.gzip(file)?;
        }
        self.control(&tree, architecture)?;
        let name = format!("{NAME}_{VERSION}_{architecture}.deb");
        tree::output(
            Command::new("dpkg-deb")
                .args(["--root-owner-group", "-Zxz", "--build"])
                .args([tree.path(), &self.out.join(&name)])
                .env("SOURCE_DATE_EPOCH", self.epoch.to_string()),
        )?;
        Ok(name)
    }

    fn documents(&self, tree: &Tree) -> Result<()> {
        let folder = "usr/share/doc/tidegate";
        tree.copy(&self.root.join("packaging/debian/copyright"), &format!("{folder}/copyright"))?;
        tree.write(&format!("{folder}/changelog"), &self.changelog()?)?;
        tree.gzip(&format!("{folder}/changelog"))?;
        tree.copy(&self.root.join("CHANGELOG.md"), &format!("{folder}/CHANGELOG.md"))?;
        tree.copy(&self.root.join("README.md"), &format!("{folder}/README.md"))?;
        tree.copy_all(&self.root.join("docs"), &format!("{folder}/docs"))?;
        for part in ["grafana", "prometheus"] {
            let from = self.root.join("packaging").join(part);
            tree.copy_all(&from, &format!("{folder}/examples/{part}"))?;
        }
        Ok(())
    }

    /// In the form that Debian has for it.
    fn changelog(&self) -> Result<String> {
        let date = format!("--date=@{}", self.epoch);
        let date = tree::output(Command::new("date").args(["--utc", "--rfc-email", &date]))?;
        Ok(format!(
            "{NAME} ({VERSION}) unstable; urgency=medium\n\n  * CHANGELOG.md beside this file has what is new.\n\n \
             -- {MAINTAINER}  {date}"
        ))
    }

    /// What dpkg wants to know. It comes last, since it counts what is there.
    fn control(&self, tree: &Tree, architecture: &str) -> Result<()> {
        let files = tree.files()?;
        let mut bytes = 0;
        for file in &files {
            bytes += fs::metadata(tree.path().join(file))?.len();
        }
        let libraries = if self.target.ends_with("-musl") { "" } else { "Depends: libc6\n" };
        let sums = tree::output(Command::new("md5sum").args(&files).current_dir(tree.path()))?;
        tree.write("DEBIAN/md5sums", &sums)?;
        tree.write("DEBIAN/conffiles", "/etc/tidegate/policy.yaml\n")?;
        tree.write(
            "DEBIAN/control",
            &format!(
                "Package: {NAME}\nVersion: {VERSION}\nArchitecture: {architecture}\n\
                 Maintainer: {MAINTAINER}\n\
                 Installed-Size: {}\n{libraries}Section: net\nPriority: optional\n\
                 Homepage: https://github.com/tidegate/tidegate\n\
                 Description: rate limiter for every language and gateway\n \
                 Tidegate decides whether a request may pass now and, if not, when to come back:\n \
                 over HTTP, gRPC for Envoy and the Redis protocol, in memory or with Redis for a\n \
                 fleet.\n",
                bytes.div_ceil(1_024)
            ),
        )?;
        for script in SCRIPTS {
            let path = format!("DEBIAN/{script}");
            tree.copy(&self.root.join("packaging/debian").join(script), &path)?;
            tree.executable(&path)?;
        }
        Ok(())
    }
}

/// Debian's word for the machine of a target.
fn architecture(target: &str) -> Result<&'static str> {
    match target.split('-').next() {
        Some("x86_64") => Ok("amd64"),
        Some("aarch64") => Ok("arm64"),
        Some("riscv64gc") => Ok("riscv64"),
        _ => Err(format!("no word of Debian's is known for {target}").into()),
    }
}
