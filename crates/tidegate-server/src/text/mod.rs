//! Numbers, durations and foreign text for display. Imports: nothing.

pub(crate) mod escape;
pub(crate) mod format;
