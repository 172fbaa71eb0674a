//! Errors with their position, excerpts with carets, and redaction. Imports: nothing.

pub(crate) mod excerpt;
pub(crate) mod field_error;
pub(crate) mod problem;
pub(crate) mod redact;
pub(crate) mod sources;
