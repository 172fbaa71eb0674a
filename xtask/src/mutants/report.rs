//! What a mutation run found, in words.

use super::argued::Argued;
use super::{Outcome, Trial};
use crate::Finding;

/// The report, which is faulty when a mutant survived that nobody has argued for.
pub(super) fn write(trials: &[Trial<'_>], argued: &Argued) -> (String, Finding) {
    let is_argued = |trial: &&Trial<'_>| argued.covers(trial.mutant);
    let (harmless, survived): (Vec<_>, Vec<_>) =
        with(trials, Outcome::Survived).into_iter().partition(is_argued);
    let timed_out = with(trials, Outcome::TimedOut);
    let caught = with(trials, Outcome::Caught);
    let settled: Vec<_> = caught.iter().copied().filter(is_argued).collect();
    let unviable = with(trials, Outcome::Unviable);

    let mut text = String::new();
    list(&mut text, "timed out, which counts as caught", &timed_out);
    list(&mut text, "argued in mutants.txt, yet caught; take the line out", &settled);
    list(&mut text, "survived", &survived);
    let totals = [
        (caught.len(), "caught"),
        (timed_out.len(), "timed out"),
        (survived.len(), "survived"),
        (harmless.len(), "argued"),
        (unviable.len(), "unviable"),
    ];
    let totals = totals.map(|(count, name)| format!("{count} {name}")).join(", ");
    text += &format!("{} mutants: {totals}\n", trials.len());
    (text, if survived.is_empty() { Finding::Good } else { Finding::Faulty })
}

fn with<'a>(trials: &'a [Trial<'a>], outcome: Outcome) -> Vec<&'a Trial<'a>> {
    trials.iter().filter(|trial| trial.outcome == outcome).collect()
}

fn list(text: &mut String, headline: &str, trials: &[&Trial<'_>]) {
    if trials.is_empty() {
        return;
    }
    let lines: String = trials.iter().map(|trial| format!("{}\n", trial.mutant)).collect();
    *text += &format!("{headline}:\n{lines}\n");
}

#[cfg(test)]
mod tests {
    use super::super::{File, mutants};
    use super::{Argued, Finding, Outcome, Trial, write};

    #[test]
    fn a_survivor_is_a_fault_until_it_is_argued() {
        let file = File { path: "a.rs".into(), source: "f(a < b, a > b)".into() };
        let all = mutants(&file);
        let outcomes = [Outcome::Survived, Outcome::Caught];
        let trials: Vec<Trial<'_>> =
            all.iter().zip(outcomes).map(|(mutant, outcome)| Trial { mutant, outcome }).collect();
        for (arguments, finding, expected) in [
            (
                "",
                Finding::Faulty,
                "survived:\na.rs:1:5  < -> <=  | f(a < b, a > b)\n\n\
                 2 mutants: 1 caught, 0 timed out, 1 survived, 0 argued, 0 unviable\n",
            ),
            (
                "a.rs: f(a < b, a > b): < -> <=: never equal",
                Finding::Good,
                "2 mutants: 1 caught, 0 timed out, 0 survived, 1 argued, 0 unviable\n",
            ),
            (
                "a.rs: f(a < b, a > b): > -> >=: a mistake",
                Finding::Faulty,
                "argued in mutants.txt, yet caught; take the line out:\n\
                 a.rs:1:12  > -> >=  | f(a < b, a > b)\n\n\
                 survived:\na.rs:1:5  < -> <=  | f(a < b, a > b)\n\n\
                 2 mutants: 1 caught, 0 timed out, 1 survived, 0 argued, 0 unviable\n",
            ),
        ] {
            let argued = Argued::parse(arguments, &all).unwrap();
            assert_eq!(write(&trials, &argued), (expected.to_owned(), finding), "{arguments}");
        }
    }
}
