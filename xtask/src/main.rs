//! The project's own tools, called as `cargo xtask <tool>`.
//!
//! # Layout
//!
//! - `licences`: every dependency's licence is one we may ship. `spdx` reads licence expressions.
//! - `mutants`: every small change to the core breaks a test. `sources` are the files to change,
//!   `lexer` finds their tokens and `flips` what to change; `workshop` is a copy of the workspace
//!   to change it in, `argued` the changes that cannot matter, `report` what is said in the end.
//! - `package`: what is released. `debian` is the package for dpkg, `tree` a folder to pack, `options` what was asked
//!   for. `sbom`: what the binary is made of.
//! - `protos`: the code of the protocols that the server speaks and did not invent.

mod licences;
mod mutants;
mod package;
mod protos;
mod sbom;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "\
usage: cargo xtask licences
       cargo xtask protos
       cargo xtask mutants [--jobs N] [--shard K/N] [--file PATTERN] [--list]
       cargo xtask package [--target TARGET] [--out DIR] [--binary FILE]";

/// What a tool found: exit code 0 or 1. Code 2 is kept for a tool that could not do its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finding {
    Good,
    Faulty,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(Finding::Good) => ExitCode::SUCCESS,
        Ok(Finding::Faulty) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &[String]) -> Result<Finding> {
    match arguments.split_first() {
        Some((tool, [])) if tool == "licences" => licences::run(),
        Some((tool, [])) if tool == "protos" => protos::run(),
        Some((tool, options)) if tool == "mutants" => mutants::run(&options.try_into()?),
        Some((tool, options)) if tool == "package" => {
            package::run(&package::Options::try_from(options)?)
        }
        _ => Err(USAGE.into()),
    }
}

/// The folder that holds the workspace.
fn workspace_root() -> Result<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("run this as `cargo xtask`")?;
    let root = PathBuf::from(package).parent().map(PathBuf::from);
    root.ok_or_else(|| "xtask is not in a workspace".into())
}
