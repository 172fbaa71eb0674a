//! How much a test does: a mutation run repeats every test hundreds of times, `./test` runs before
//! every commit, `./test full` before a merge.

/// The number of cases: `usual`, a tenth of it with `TIDEGATE_QUICK=1`, `long` with
/// `TIDEGATE_LONG=1`, and `mutants` with `TIDEGATE_MUTANTS=1`.
#[must_use]
pub fn run_size(mutants: u64, usual: u64, long: u64) -> u64 {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| value == "1");
    if is_set("TIDEGATE_MUTANTS") {
        mutants
    } else if is_set("TIDEGATE_LONG") {
        long
    } else if is_set("TIDEGATE_QUICK") {
        usual / 10
    } else {
        usual
    }
}
