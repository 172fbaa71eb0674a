//! The faults, one file each. Imports: checker, isolated_redis, load, log, process_memory, proxy,
//! stack, table.
//!
//! - `scenario`: load before, during and after a fault, and the figures that every fault reports.
//! - `kill`, `freeze`, `long_freeze`, `slow`, `redis_starts_late`: an unavailable or slow Redis.
//! - `failover`, `lost_writes`: a replica becomes the primary. `eviction`: Redis evicts keys.
//! - `overload`, `wait_queue`: too many callers. `lost_replies`, `cancelled_calls`: lost replies,
//!   dropped calls.
//! - `stall`: four processes on a Redis that pauses for a moment, and for long.
//! - `soak`: random faults, one after the other. `all`: every fault in its own process.

pub(crate) mod all;
mod cancelled_calls;
mod eviction;
mod failover;
mod freeze;
mod kill;
mod long_freeze;
mod lost_replies;
mod lost_writes;
mod options;
mod overload;
mod redis_starts_late;
mod scenario;
mod slow;
mod soak;
mod stall;
mod wait_queue;

use clap::ValueEnum;

pub(crate) use self::options::Options;

use crate::table::FigureTable;

/// A fault, by its name on the command line.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(crate) enum Experiment {
    /// Redis is killed under load and started again
    Kill,
    /// Redis is suspended, and then the link to it is down
    Freeze,
    /// Redis is suspended for long, under high load
    LongFreeze,
    /// One key is checked far more often than its limit allows
    Overload,
    /// Primaries behind Sentinel and in a Cluster are killed, and replicas are promoted
    Failover,
    /// Replies are delayed more and more, and then less again
    Slow,
    /// Redis starts after the limiter
    RedisStartsLate,
    /// A primary is lost with charges that no replica has
    LostWrites,
    /// Redis evicts keys
    Eviction,
    /// Replies are lost after the charge was made
    LostReplies,
    /// Callers drop their futures at every point of a call
    CancelledCalls,
    /// A thousand callers wait for permits, and some give up
    WaitQueue,
    /// Four processes share a Redis that pauses, for a moment and for long
    Stall,
    /// Random faults, one after the other
    Soak,
    /// Every fault in its own process, with a summary
    All,
}

impl Experiment {
    pub(crate) async fn run(self, options: &Options) -> FigureTable {
        match self {
            Self::Kill => kill::run(options).await,
            Self::Freeze => freeze::run(options).await,
            Self::LongFreeze => long_freeze::run(options).await,
            Self::Overload => overload::run(options).await,
            Self::Failover => failover::run(options).await,
            Self::Slow => slow::run(options).await,
            Self::RedisStartsLate => redis_starts_late::run(options).await,
            Self::LostWrites => lost_writes::run(options).await,
            Self::Eviction => eviction::run(options).await,
            Self::LostReplies => lost_replies::run(options).await,
            Self::CancelledCalls => cancelled_calls::run(options).await,
            Self::WaitQueue => wait_queue::run(options).await,
            Self::Stall => stall::run(options).await,
            Self::Soak => soak::run(options).await,
            Self::All => unreachable!("`all` starts processes"),
        }
    }

    /// Name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().unwrap().get_name().to_owned()
    }
}
