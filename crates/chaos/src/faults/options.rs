//! Options of every fault.

use std::env;
use std::time::Duration;

use clap::Args;

/// Options of every fault.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Duration of the fault in seconds; each fault has its own default
    #[arg(long)]
    pub(super) seconds: Option<u64>,
    /// Calls per second
    #[arg(long)]
    pub(super) rate: Option<u64>,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// The long version, as with TIDEGATE_LONG=1
    #[arg(long)]
    pub(super) long: bool,
}

impl Options {
    pub(super) fn is_long(&self) -> bool {
        self.long || env::var_os("TIDEGATE_LONG").is_some_and(|long| long == "1")
    }

    /// `--seconds`, or the default of the short or the long version.
    pub(super) fn span(&self, short: Duration, long: Duration) -> Duration {
        let default = if self.is_long() { long } else { short };
        self.seconds.map_or(default, Duration::from_secs)
    }

    /// The number for the short or the long version.
    pub(super) fn count(&self, short: u64, long: u64) -> u64 {
        if self.is_long() { long } else { short }
    }

    /// These options as arguments of another process.
    pub(super) fn arguments(&self) -> Vec<String> {
        let numbers =
            [("--seconds", self.seconds), ("--rate", self.rate), ("--seed", Some(self.seed))];
        let given = numbers.into_iter().filter_map(|(name, number)| Some((name, number?)));
        let arguments = given.flat_map(|(name, number)| [name.to_owned(), number.to_string()]);
        arguments.chain(self.long.then(|| "--long".to_owned())).collect()
    }

    pub(super) fn rate(&self, default: u64) -> u64 {
        self.rate.unwrap_or(default)
    }
}
