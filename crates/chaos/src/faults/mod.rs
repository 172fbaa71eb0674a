//! What goes wrong, one file for each.
//!
//! # Layout
//!
//! - `scene`: callers before, while and after something is wrong, and what can be said of any of it.
//! - `kill`, `freeze`, `frozen_long`, `slow`, `late_start`: a Redis that is not there, or hardly.
//! - `failover`, `lost_tail`: another one takes its place. `eviction`: it forgets.
//! - `saturate`, `waiters`: too many callers. `ambiguous`, `dropped`: answers that nobody hears.
//! - `soak`: one after the other, at random. `all`: everything.

pub(crate) mod all;
mod ambiguous;
mod dropped;
mod eviction;
mod failover;
mod freeze;
mod frozen_long;
mod kill;
mod late_start;
mod lost_tail;
mod saturate;
mod scene;
mod slow;
mod soak;
mod waiters;

use std::env;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::table::Table;

/// A failure, by the word for it on the command line.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum Fault {
    /// Redis is killed under load and started again
    Kill,
    /// Redis stands still, and then the link to it is down
    Freeze,
    /// Redis stands still for long, under much load
    FrozenLong,
    /// One key is asked for far more than its limit
    Saturate,
    /// Primaries of Sentinel and Cluster are killed, and others take their place
    Failover,
    /// Answers come later and later, and then sooner again
    Slow,
    /// Redis starts after the limiter
    LateStart,
    /// A primary is lost with charges that no replica has
    LostTail,
    /// Redis forgets keys to make room
    Eviction,
    /// Answers are lost after the work was done
    Ambiguous,
    /// Callers go away at every point of a call
    Dropped,
    /// A thousand callers wait for their turn, and some give up
    Waiters,
    /// A fault at random, again and again
    Soak,
    /// Everything, each in a process of its own, with a summary
    All,
}

/// How much of it.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// How long it is wrong, or goes on; each failure has its own default
    #[arg(long)]
    seconds: Option<u64>,
    /// Calls a second
    #[arg(long)]
    rate: Option<u64>,
    /// What is left to chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The long version, as with TIDEGATE_LONG=1
    #[arg(long)]
    long: bool,
}

impl Fault {
    pub(crate) async fn run(self, options: &Options) -> Table {
        match self {
            Self::Kill => kill::run(options).await,
            Self::Freeze => freeze::run(options).await,
            Self::FrozenLong => frozen_long::run(options).await,
            Self::Saturate => saturate::run(options).await,
            Self::Failover => failover::run(options).await,
            Self::Slow => slow::run(options).await,
            Self::LateStart => late_start::run(options).await,
            Self::LostTail => lost_tail::run(options).await,
            Self::Eviction => eviction::run(options).await,
            Self::Ambiguous => ambiguous::run(options).await,
            Self::Dropped => dropped::run(options).await,
            Self::Waiters => waiters::run(options).await,
            Self::Soak => soak::run(options).await,
            Self::All => unreachable!("each is a process of its own"),
        }
    }

    /// Its word on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().unwrap().get_name().to_owned()
    }
}

impl Options {
    fn is_long(&self) -> bool {
        self.long || env::var_os("TIDEGATE_LONG").is_some_and(|long| long == "1")
    }

    /// As many seconds as were asked for, or the one or the other.
    fn span(&self, short: Duration, long: Duration) -> Duration {
        let otherwise = if self.is_long() { long } else { short };
        self.seconds.map_or(otherwise, Duration::from_secs)
    }

    /// The one or the other number, for what is counted.
    fn count(&self, short: u64, long: u64) -> u64 {
        if self.is_long() { long } else { short }
    }

    /// The same for another process.
    fn words(&self) -> Vec<String> {
        let numbers =
            [("--seconds", self.seconds), ("--rate", self.rate), ("--seed", Some(self.seed))];
        let given = numbers.into_iter().filter_map(|(name, number)| Some((name, number?)));
        let words = given.flat_map(|(name, number)| [name.to_owned(), number.to_string()]);
        words.chain(self.long.then(|| "--long".to_owned())).collect()
    }

    fn rate(&self, otherwise: u64) -> u64 {
        self.rate.unwrap_or(otherwise)
    }
}
