//! Checks, as every transport calls them. Imports: observe, text.

mod accounting;
pub(crate) mod active_policy;
mod adhoc;
#[cfg(test)]
pub(crate) mod counting_engine;
mod decision;
pub(crate) mod explain;
mod hot_key_state;
mod model_costs;
mod request;
pub(crate) mod service;
mod wait_limits;

pub use self::active_policy::{ActivePolicy, AdhocLimits};
pub(crate) use self::decision::CheckDecision;
pub use self::decision::CheckError;
pub use self::model_costs::{ModelUsage, UsageCosts};
pub use self::request::{Operation, QuantityRange, ReserveOptions, SettleAction, Throttle};
pub use self::service::CheckService;
pub(crate) use self::wait_limits::WaitCount;
pub use self::wait_limits::WaitLimits;
