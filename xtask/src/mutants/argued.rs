//! `mutants.txt`: the mutants that survive because they change nothing.

use std::fs;
use std::path::Path;

use super::Mutant;
use crate::Result;

/// The lines of `mutants.txt` that argue for a mutant.
pub(super) struct Argued {
    arguments: Vec<String>,
}

impl Argued {
    /// Reads the file; no file argues for nothing. Refuses a line that no mutant in `all` is
    /// meant by: its source has changed, and its argument with it.
    pub(super) fn read(path: &Path, all: &[Mutant<'_>]) -> Result<Self> {
        let text = if path.exists() { fs::read_to_string(path)? } else { String::new() };
        Ok(Self::parse(&text, all)?)
    }

    pub(super) fn parse(text: &str, all: &[Mutant<'_>]) -> std::result::Result<Self, String> {
        let mut arguments = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if !all.iter().any(|mutant| argues(line, mutant)) {
                return Err(format!(
                    "mutants.txt:{number}: no mutant is meant by this line, or it gives no \
                     reason; write `file: source line: old -> new: reason`"
                ));
            }
            arguments.push(line.to_owned());
        }
        Ok(Self { arguments })
    }

    /// Somebody has argued that `mutant` changes nothing.
    pub(super) fn covers(&self, mutant: &Mutant<'_>) -> bool {
        self.arguments.iter().any(|line| argues(line, mutant))
    }
}

/// Compared as a whole and not taken apart: a source line may hold any of the separators.
fn argues(line: &str, mutant: &Mutant<'_>) -> bool {
    let Mutant { file, .. } = mutant;
    let meant = format!("{}: {}: {}: ", file.path, mutant.source_line(), mutant.change());
    line.strip_prefix(&meant).is_some_and(|reason| !reason.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::{File, mutants};
    use super::Argued;

    #[test]
    fn a_line_argues_for_the_mutant_it_spells_out() {
        let source = "{\n    let x: u8 = a: b -> c < d + e;\n}";
        let file = File { path: "a.rs".into(), source: source.into() };
        let all = mutants(&file);
        let text = "# why\n\na.rs: let x: u8 = a: b -> c < d + e;: < -> <=: as d: is even\n";
        let argued = Argued::parse(text, &all).unwrap();
        let covered: Vec<_> = all.iter().map(|mutant| argued.covers(mutant)).collect();
        assert_eq!(covered, [true, false]);
    }

    #[test]
    fn a_line_that_means_no_mutant_is_refused() {
        let file = File { path: "a.rs".into(), source: "f(a < b)".into() };
        let all = mutants(&file);
        for line in [
            "a.rs: f(a < b): < -> <=",
            "a.rs: f(a < b): < -> <=: ",
            "a.rs: f(a < c): < -> <=: moved on",
            "b.rs: f(a < b): < -> <=: another file",
            "a.rs: f(a < b): < -> >: another change",
        ] {
            let refused = Argued::parse(&format!("# one\n{line}"), &all).err().unwrap();
            assert!(refused.starts_with("mutants.txt:2: no mutant"), "{line}: {refused}");
        }
    }
}
