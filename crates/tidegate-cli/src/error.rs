//! Result of a command: exit status and error.

use std::error::Error;

/// Exit status of a command that ran to its end; an error exits with 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExitStatus {
    /// Exit code 0: done, allowed, valid or healthy.
    Success,
    /// Exit code 1: denied, invalid or unhealthy.
    Negative,
}

/// Printed on standard error together with its sources.
pub(crate) type CliError = Box<dyn Error + Send + Sync>;
