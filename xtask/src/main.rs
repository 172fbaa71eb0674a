//! Project tools, run as `cargo xtask <tool>`.
//!
//! - `protos`: generates the Rust code of the Envoy protocol.
//! - `deny`, `mutants`, `deb`, `generate-rpm`, `cyclonedx`: the cargo tool of that name, installed
//!   if it is missing.
//! - `site`: the documentation as a site, by mdBook, which is installed if it is missing.

mod mutants;
mod protos;
mod site;

use std::error::Error;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "\
usage: cargo xtask protos
       cargo xtask deny check            licences, sources and advisories of dependencies
       cargo xtask mutants [OPTIONS]     mutation testing of the core
       cargo xtask mutants --sample COUNT --seed SEED
                                         what the quick tests catch, of what the full tests catch
       cargo xtask site                  documentation in target/site/html, links checked
       cargo xtask deb|generate-rpm|cyclonedx ..
                                         used by packaging/build";

/// Exit code if the tool is not installed and cannot be.
const NOT_INSTALLED: u8 = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let run = match arguments.split_first() {
        Some((tool, [])) if tool == "protos" => protos::run().map(|()| ExitCode::SUCCESS),
        Some((tool, [])) if tool == "site" => site::run(),
        Some((tool, rest))
            if ["deny", "mutants", "deb", "generate-rpm", "cyclonedx"].contains(&&**tool) =>
        {
            cargo_tool(tool, rest)
        }
        _ => Err(USAGE.into()),
    };
    run.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(2)
    })
}

/// Runs `cargo TOOL`, after `cargo install cargo-TOOL` if it is missing.
fn cargo_tool(tool: &str, arguments: &[String]) -> Result<ExitCode> {
    let is_installed = cargo().args([tool, "--version"]).output()?.status.success();
    if !is_installed && !install(&format!("cargo-{tool}"))? {
        return Ok(ExitCode::from(NOT_INSTALLED));
    }
    if let [sample, count, seed, number] = arguments
        && (tool, &**sample, &**seed) == ("mutants", "--sample", "--seed")
    {
        mutants::sample(count.parse()?, number.parse()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = cargo();
    command.arg(tool);
    if tool == "mutants" {
        // Slow tests read the variable and try fewer cases.
        command.args(["--package", "tidegate-core"]).env("TIDEGATE_MUTANTS", "1");
    }
    let status = command.args(arguments).status()?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2)))
}

/// Installs a program from crates.io. Returns whether that succeeded.
fn install(package: &str) -> Result<bool> {
    eprintln!("{package} is not installed; running cargo install --locked {package}");
    let is_installed = cargo().args(["install", "--locked", package]).status()?.success();
    if !is_installed {
        eprintln!("skipped: {package} could not be installed; is there a network?");
    }
    Ok(is_installed)
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The root folder of the workspace.
fn workspace_root() -> Result<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("run this as `cargo xtask`")?;
    let root = PathBuf::from(package).parent().map(PathBuf::from);
    root.ok_or_else(|| "xtask is not in a workspace".into())
}
