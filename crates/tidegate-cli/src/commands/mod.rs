//! Commands: arguments and output of each subcommand. Imports: bench, endpoint,
//! environment_args, error, http_client, number_args, output, progress, replay, store_args,
//! subject_args, table, tls_args.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod diff;
pub(crate) mod explain;
pub(crate) mod health;
pub(crate) mod init;
pub(crate) mod inspect_reset;
pub(crate) mod man;
pub(crate) mod overrides;
pub(crate) mod ratelimit;
pub(crate) mod replay;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod top;
pub(crate) mod validate;
