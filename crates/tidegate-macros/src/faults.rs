//! Several faults in one error, so that nobody has to compile once for each.

use syn::{Error, Result};

/// What has been found wrong so far.
#[derive(Default)]
pub(crate) struct Faults(Option<Error>);

impl Faults {
    /// The value, or nothing and one fault more.
    pub(crate) fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        match (result, &mut self.0) {
            (Ok(value), _) => return Some(value),
            (Err(fault), None) => self.0 = Some(fault),
            (Err(fault), Some(faults)) => faults.combine(fault),
        }
        None
    }

    /// All of them, if there are any.
    pub(crate) fn none(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}
