//! Cost of a check: the memory engine alone, the whole limiter, and two other limiters.
//!
//! ```text
//! cargo bench -p tidegate                      all but the last two below, in about a minute
//! cargo bench -p tidegate -- 1M zipf denied    cases whose name contains all of these words
//! cargo bench -p tidegate -- 10M               needs 6 GB and some minutes
//! cargo bench -p tidegate -- flood             10M keys against a cap of 64 MiB
//! TIDEGATE_LONG=1 cargo bench -p tidegate      everything
//! ```
//!
//! All contenders run in one process and take turns, so that load of the machine affects all of
//! them; figures are medians over rounds. Every contender must return the result that the case
//! expects. With two threads, a figure is the time in which each of them makes one check: the same
//! as with one thread, if there are two CPUs and the threads do not contend; twice that on one CPU.
//!
//! # Layout
//!
//! - `contenders`: the limiters compared. `keys`: their keys, generated beforehand.
//! - `rounds`: contenders take turns. `comparison`: all contenders in all cases. `algorithms`:
//!   Tidegate's algorithms.
//! - `bytes`: memory per key. `flood`: more keys than fit in memory.
#![expect(clippy::unwrap_used, reason = "a benchmark")]

mod algorithms;
mod bytes;
mod comparison;
mod contenders;
mod flood;
mod keys;
mod rounds;

use std::io::Write as _;

use tidegate_model::CountingAllocator;

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

fn main() {
    let plan = Plan::from_arguments();
    comparison::run(&plan);
    algorithms::run(&plan);
    bytes::run(&plan);
    flood::run(&plan);
    if !plan.long && plan.words.is_empty() {
        print_line(
            "
not run: 10M, flood; name them, or set TIDEGATE_LONG=1",
        );
    }
}

/// Which cases run, and how long.
pub(crate) struct Plan {
    words: Vec<String>,
    long: bool,
    /// Checks of a contender in a round, by each thread.
    checks: usize,
    rounds: usize,
    /// Divides the number of keys of a case.
    divisor: u64,
}

impl Plan {
    fn from_arguments() -> Self {
        let (options, words): (Vec<_>, Vec<_>) =
            std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
        let long = std::env::var("TIDEGATE_LONG").is_ok_and(|value| value == "1");
        // `cargo test --benches` only tests that it runs.
        let is_test = options.iter().any(|option| option == "--test");
        let (checks, rounds, divisor) = if is_test { (100, 1, 1_000) } else { (60_000, 9, 1) };
        Self { words, long: long || is_test, checks, rounds, divisor }
    }

    /// Whether this case runs. A long one has to be named.
    pub(crate) fn wants(&self, name: &str, takes_long: bool) -> bool {
        let named = self.words.iter().all(|word| name.contains(word.as_str()));
        named && (!takes_long || self.long || !self.words.is_empty())
    }
}

pub(crate) fn print_line(line: &str) {
    writeln!(std::io::stdout().lock(), "{line}").unwrap();
}
