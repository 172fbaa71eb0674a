//! What is counted, logged and exported. Imports: shutdown, text.

pub(crate) mod hot_keys;
pub(crate) mod logging;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod otlp;
pub(crate) mod systemd;
pub(crate) mod traffic;
