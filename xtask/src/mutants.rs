//! `cargo xtask mutants --sample COUNT --seed SEED`: how many mutants of the core the quick tests
//! catch, of those that the full tests catch.
//!
//! Each pass runs on what the one before has missed, so that the slow tests see few mutants.

use std::fs;
use std::process::{Command, Stdio};

use crate::{Result, cargo, workspace_root};

/// The tests of a pass.
struct Pass {
    name: &'static str,
    packages: &'static [&'static str],
    /// Names of test modules; empty for all.
    filter: &'static [&'static str],
    is_quick: bool,
}

const PASSES: [Pass; 3] = [
    Pass {
        name: "quick tests of the core",
        packages: &["tidegate-core"],
        filter: &[],
        is_quick: true,
    },
    Pass {
        name: "quick model and conformance tests",
        packages: &["tidegate"],
        filter: &["reference_model", "conformance"],
        is_quick: true,
    },
    Pass {
        name: "full tests",
        packages: &["tidegate-core", "tidegate"],
        filter: &[],
        is_quick: false,
    },
];

pub(crate) fn sample(count: usize, seed: u64) -> Result<()> {
    let mut left = choose(list()?, count, seed);
    let all = left.len();
    let mut caught = Vec::new();
    for pass in &PASSES {
        let before = left.len();
        let outcome = pass.run(&left)?;
        println!("{}: {} of {before} caught", pass.name, outcome.caught);
        caught.push(outcome.caught);
        left = outcome.missed;
    }
    let (quick, full) = (caught[0] + caught[1], caught.iter().sum::<usize>());
    let percent = 100.0 * quick as f64 / full.max(1) as f64;
    println!(
        "seed {seed}, {all} mutants: quick {quick}, full {full}, {percent:.1} %; missed by all:"
    );
    left.iter().for_each(|mutant| println!("  {mutant}"));
    Ok(())
}

/// The names of all mutants of the core.
fn list() -> Result<Vec<String>> {
    let listed = mutants().arg("--list").stderr(Stdio::inherit()).output()?;
    Ok(String::from_utf8(listed.stdout)?.lines().map(String::from).collect())
}

/// Takes `count` of `all`, the same for the same seed.
fn choose(mut all: Vec<String>, count: usize, seed: u64) -> Vec<String> {
    let mut state = seed;
    let mut chosen = Vec::new();
    while chosen.len() < count && !all.is_empty() {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        chosen.push(all.swap_remove((mixed % all.len() as u64) as usize));
    }
    chosen
}

/// Mutants that do not compile are in neither. One whose tests do not end is caught.
struct Outcome {
    caught: usize,
    missed: Vec<String>,
}

impl Pass {
    fn run(&self, chosen: &[String]) -> Result<Outcome> {
        if chosen.is_empty() {
            return Ok(Outcome { caught: 0, missed: Vec::new() });
        }
        let names: Vec<String> = chosen.iter().map(|name| escaped(name)).collect();
        let output = workspace_root()?.join("target/mutants");
        let mut command = mutants();
        command.args(["--no-config", "--re", &format!("^({})$", names.join("|"))]);
        for package in self.packages {
            command.args(["--test-package", package]);
        }
        command.arg("--output").arg(&output).args(["--", "--all-features", "--lib", "--tests"]);
        if !self.filter.is_empty() {
            command.arg("--").args(self.filter);
        }
        if self.is_quick {
            command.env("TIDEGATE_QUICK", "1");
        }
        // The exit code says whether any mutant was missed.
        command.stdout(Stdio::null()).status()?;
        let names_in = |file: &str| -> Result<Vec<String>> {
            let text = fs::read_to_string(output.join("mutants.out").join(file))?;
            Ok(text.lines().map(String::from).collect())
        };
        let caught = names_in("caught.txt")?.len() + names_in("timeout.txt")?.len();
        Ok(Outcome { caught, missed: names_in("missed.txt")? })
    }
}

fn mutants() -> Command {
    let mut command = cargo();
    command.args(["mutants", "--package", "tidegate-core"]);
    command
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if "\\.+*?()|[]{}^$#&-~".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}
