//! Traffic of the last 15 minutes, for `/v1/live` and the console. Imports: hot_keys, metrics.

mod build_snapshot;
pub(crate) mod denials;
mod history;
mod ring;
mod seconds;
pub(crate) mod snapshot;
mod snapshot_json;
mod stats;
mod tick_cache;

pub(crate) use self::seconds::{MAX_SECONDS, WindowSeconds};
pub(crate) use self::snapshot::CurrentStatus;
pub use self::snapshot::TrafficSnapshot;
pub use self::stats::TrafficStats;
pub(crate) use self::tick_cache::TickCache;
