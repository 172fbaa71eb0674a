//! `tidegate schema`

use crate::error::{CliError, ExitStatus};
use crate::output::print;

pub(crate) fn run() -> Result<ExitStatus, CliError> {
    let schema = serde_json::to_string_pretty(&tidegate_config::schema())?;
    print(format!("{schema}\n").as_bytes())?;
    Ok(ExitStatus::Success)
}
