//! Whether the tests notice every small change to the core.

mod argued;
mod flips;
mod lexer;
mod options;
mod report;
mod sources;
mod workshop;

use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::{Finding, Result};

use argued::Argued;
use flips::Edit;
use options::Options;
use sources::File;
use workshop::Workshop;

/// What is changed.
const SOURCES: &str = "crates/tidegate-core/src";

/// The arguments of `cargo test` that a mutant has to survive, one run after the other. Those
/// that build the least come first, since most mutants get no further.
const TESTS: &[&[&str]] = &[
    &["--package", "tidegate-core", "--lib"],
    &["--package", "tidegate-core", "--tests"],
    &["--package", "tidegate", "--tests"],
];

/// Tries the mutants that `options` choose and reports what became of them.
pub(crate) fn run(options: &Options) -> Result<Finding> {
    let root = crate::workspace_root()?;
    let files = sources::read(&root, SOURCES)?;
    let all: Vec<Mutant<'_>> = files.iter().flat_map(mutants).collect();
    let chosen = options.choose(&all);
    if options.list {
        chosen.iter().for_each(|mutant| println!("{mutant}"));
        println!("{} mutants", chosen.len());
        return Ok(Finding::Good);
    }
    if chosen.is_empty() {
        return Err("no mutant is chosen; see which there are with --list".into());
    }
    let argued = Argued::read(&root.join("mutants.txt"), &all)?;
    let target = root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
    let trials = try_all(&chosen, options.jobs, |number| Workshop::open(&root, &target, number))?;
    let (text, finding) = report::write(&trials, &argued);
    print!("\n{text}");
    fs::write(target.join("mutants").join("report.txt"), text)?;
    Ok(finding)
}

/// A file with one edit to try.
struct Mutant<'a> {
    file: &'a File,
    edit: Edit,
    line: usize,
    column: usize,
    /// 1, or 2 for the second with the same edit on the same line or an equal one, and so on.
    ordinal: usize,
}

impl Mutant<'_> {
    /// `old -> new`, and `old -> new #2` for the second of its kind.
    fn change(&self) -> String {
        let Edit { old, new, .. } = &self.edit;
        match self.ordinal {
            1 => format!("{old} -> {new}"),
            ordinal => format!("{old} -> {new} #{ordinal}"),
        }
    }

    fn looks_like(&self, other: &Self) -> bool {
        let (a, b) = (&self.edit, &other.edit);
        a.old == b.old && a.new == b.new && self.source_line() == other.source_line()
    }

    fn source_line(&self) -> &str {
        self.file.source.lines().nth(self.line - 1).unwrap_or_default().trim()
    }
}

impl fmt::Display for Mutant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file: File { path, .. }, line, column, .. } = self;
        write!(f, "{path}:{line}:{column}  {}  | {}", self.change(), self.source_line())
    }
}

/// What became of a mutant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    /// A test failed.
    Caught,
    /// The tests did not end in time.
    TimedOut,
    /// Nobody noticed.
    Survived,
    /// It does not compile.
    Unviable,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Caught => "caught",
            Self::TimedOut => "timed out",
            Self::Survived => "survived",
            Self::Unviable => "unviable",
        })
    }
}

/// A mutant and what became of it.
struct Trial<'a> {
    mutant: &'a Mutant<'a>,
    outcome: Outcome,
}

fn mutants(file: &File) -> Vec<Mutant<'_>> {
    let mut mutants: Vec<Mutant<'_>> = Vec::new();
    for edit in flips::edits(&file.source) {
        let before = &file.source[..edit.span.start];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&before| before != '\n').count() + 1;
        let mut mutant = Mutant { file, edit, line, column, ordinal: 1 };
        mutant.ordinal += mutants.iter().filter(|earlier| earlier.looks_like(&mutant)).count();
        mutants.push(mutant);
    }
    mutants
}

/// Tries every mutant, each in the next free workshop. The first error ends the run.
fn try_all<'a>(
    mutants: &[&'a Mutant<'a>],
    jobs: usize,
    open: impl Fn(usize) -> Result<Workshop> + Sync,
) -> Result<Vec<Trial<'a>>> {
    let next = AtomicUsize::new(0);
    let work = &|number| {
        let trials = open(number).and_then(|workshop| try_next(mutants, &next, &workshop));
        if trials.is_err() {
            next.store(mutants.len(), Ordering::Relaxed);
        }
        trials
    };
    let mut trials = thread::scope(|scope| -> Result<Vec<Trial<'a>>> {
        let workers: Vec<_> = (1..=jobs).map(|number| scope.spawn(move || work(number))).collect();
        let mut trials = Vec::new();
        for worker in workers {
            trials.extend(worker.join().map_err(|_| "a worker panicked")??);
        }
        Ok(trials)
    })?;
    trials.sort_by_key(|trial| (trial.mutant.file.path.as_str(), trial.mutant.edit.span.start));
    Ok(trials)
}

/// Takes the `next` mutant to `workshop`, until there is none.
fn try_next<'a>(
    mutants: &[&'a Mutant<'a>],
    next: &AtomicUsize,
    workshop: &Workshop,
) -> Result<Vec<Trial<'a>>> {
    let mut trials = Vec::new();
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(&mutant) = mutants.get(index) else { return Ok(trials) };
        let outcome = workshop.attempt(mutant)?;
        println!("[{}/{}] {outcome:<9}  {mutant}", index + 1, mutants.len());
        trials.push(Trial { mutant, outcome });
    }
}

#[cfg(test)]
mod tests {
    use super::{File, mutants};

    #[test]
    fn a_mutant_is_shown_with_its_place_its_change_and_its_line() {
        let file = File { path: "a.rs".into(), source: "fn f() {\n    é(b <\n c < d)\n}".into() };
        let shown: Vec<String> = mutants(&file).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a.rs:2:9  < -> <=  | é(b <", "a.rs:3:4  < -> <=  | c < d)"]);
    }

    #[test]
    fn mutants_that_look_the_same_are_numbered() {
        let source = "{\n    a + b + c;\n    a - b;\n        a + b + c;\n}";
        let file = File { path: "a.rs".into(), source: source.into() };
        let changes: Vec<String> = mutants(&file).iter().map(|mutant| mutant.change()).collect();
        assert_eq!(changes, ["+ -> -", "+ -> - #2", "- -> +", "+ -> - #3", "+ -> - #4"]);
    }
}
