//! `tidegate ratelimit`: the server with the environment variables of envoyproxy/ratelimit.
//! Imports: serve.

mod go_values;
mod redis_url;
mod settings;
mod variables;

use clap::Args;
use tracing::warn;

use self::settings::RatelimitSettings;
use super::serve::{self, StartOutput};
use crate::error::{CliError, ExitStatus};
use tidegate_server::internal::observe::logging;
use tidegate_server::internal::transport::listener::panics;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  Limits in the files of /data/ratelimit/config, counts in Redis:
    RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 \\
      tidegate ratelimit
  Limits from a control plane:
    CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001 \\
      REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 tidegate ratelimit

Configured by the environment variables of envoyproxy/ratelimit alone. Variables without an effect
are logged; those that would change decisions and are not supported are refused. The table is in
docs/use/ratelimit.md. A program called ratelimit runs this command.")]
pub(crate) struct Options {}

pub(crate) fn run() -> Result<ExitStatus, CliError> {
    let given = variables::from_environment()?;
    let settings = RatelimitSettings::read(&given)?;
    logging::init_at(settings.log_format, settings.log_level)?;
    panics::log_panics();
    for warning in variables::without_effect(&given) {
        warn!("{warning}");
    }
    for warning in &settings.warnings {
        warn!("{warning}");
    }
    serve::run_server(settings.server, StartOutput::Log)
}
