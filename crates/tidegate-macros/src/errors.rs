//! Several compile errors at once.

use syn::{Error, Result};

/// The errors found so far.
#[derive(Default)]
pub(crate) struct CompileErrors(Option<Error>);

impl CompileErrors {
    /// The value, or `None` after recording the error.
    pub(crate) fn record<T>(&mut self, result: Result<T>) -> Option<T> {
        match (result, &mut self.0) {
            (Ok(value), _) => return Some(value),
            (Err(error), None) => self.0 = Some(error),
            (Err(error), Some(errors)) => errors.combine(error),
        }
        None
    }

    /// All recorded errors, if there are any.
    pub(crate) fn finish(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}
