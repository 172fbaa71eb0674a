//! What a check costs: the memory engine alone and the whole limiter, beside two limiters of others.
//!
//! ```text
//! cargo bench -p tidegate                      all but the last two below, in about a minute
//! cargo bench -p tidegate -- 1M zipf denied    what has all of these words in its name
//! cargo bench -p tidegate -- 10M               needs 6 GB and some minutes
//! cargo bench -p tidegate -- flood             10M keys against a cap of 64 MiB
//! TIDEGATE_LONG=1 cargo bench -p tidegate      everything
//! ```
//!
//! All contenders are in one process and take turns, so that a busy machine is busy for all of them;
//! figures are medians over rounds. Every contender must give the answer that the case expects. With
//! two threads, a figure is the time in which each of them makes one check: as with one thread, if
//! there are two processors and neither thread is in the other's way; twice that, if there is one.
//!
//! # Layout
//!
//! - `contenders`: who takes part. `keys`: which keys they are asked about, drawn beforehand.
//! - `rounds`: taking turns. `versus`: all contenders in all cases. `algorithms`: ours among themselves.
//! - `bytes`: memory per key. `flood`: more keys than there is memory for.
#![expect(clippy::unwrap_used, reason = "a benchmark")]

mod algorithms;
mod bytes;
mod contenders;
mod flood;
mod keys;
mod rounds;
mod versus;

use std::io::Write as _;

use tidegate_model::Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

fn main() {
    let plan = Plan::from_arguments();
    versus::run(&plan);
    algorithms::run(&plan);
    bytes::run(&plan);
    flood::run(&plan);
    if !plan.long && plan.words.is_empty() {
        say("\nnot run: 10M, flood; name them, or set TIDEGATE_LONG=1");
    }
}

/// What is to be run, and how long.
pub(crate) struct Plan {
    words: Vec<String>,
    long: bool,
    /// Checks of a contender in a round, by each thread.
    checks: usize,
    rounds: usize,
    /// By how much there are fewer keys than a case says.
    fewer: u64,
}

impl Plan {
    fn from_arguments() -> Self {
        let (options, words): (Vec<_>, Vec<_>) =
            std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
        let long = std::env::var("TIDEGATE_LONG").is_ok_and(|value| value == "1");
        // `cargo test --benches` only wants to know that it runs.
        let is_test = options.iter().any(|option| option == "--test");
        let (checks, rounds, fewer) = if is_test { (100, 1, 1_000) } else { (60_000, 9, 1) };
        Self { words, long: long || is_test, checks, rounds, fewer }
    }

    /// Is this one wanted? One that takes long has to be named.
    pub(crate) fn wants(&self, name: &str, takes_long: bool) -> bool {
        let named = self.words.iter().all(|word| name.contains(word.as_str()));
        named && (!takes_long || self.long || !self.words.is_empty())
    }
}

pub(crate) fn say(line: &str) {
    writeln!(std::io::stdout().lock(), "{line}").unwrap();
}
