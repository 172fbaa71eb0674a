//! What all listeners share: accepting, limits, timeouts, panics. Imports: auth.

pub(crate) mod accept;
pub(crate) mod body_deadline;
pub(crate) mod connection_limit;
mod connection_monitor;
pub(crate) mod exposure;
mod frame_budget;
pub(crate) mod guarded_body;
pub(crate) mod http_connection;
pub(crate) mod inherited;
pub(crate) mod log_throttle;
pub(crate) mod open_files;
mod options;
pub(crate) mod panics;
pub(crate) mod partial_requests;
pub(crate) mod request_activity;
pub(crate) mod stream;
mod timed_stream;
mod timeouts;

pub use self::options::ListenerOptions;
pub use self::timeouts::Timeouts;
