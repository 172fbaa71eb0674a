//! The address of a store: `--store`, `--store-file` or `TIDEGATE_STORE`.

use std::path::PathBuf;

use clap::Args;

use crate::error::CliError;
use tidegate_server::internal::store::Store;

/// Environment variable of the address, for addresses with a password: other users can see the
/// command line.
pub(crate) const VARIABLE: &str = "TIDEGATE_STORE";

#[derive(Args, Debug)]
pub(crate) struct StoreArgs {
    /// Store: memory or redis://[user:pw@]host[:port][/db]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// File that contains the URL of the store
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    store_file: Option<PathBuf>,
}

impl StoreArgs {
    /// The store, if any is given. `warn` is called if the command line shows a password.
    pub(crate) fn store(&self, warn: impl FnOnce(&str)) -> Result<Option<Store>, CliError> {
        if let Some(url) = &self.store {
            let store: Store = url.parse()?;
            if store.has_password() {
                warn(
                    "other users can see the password in --store; use --store-file or TIDEGATE_STORE",
                );
            }
            return Ok(Some(store));
        }
        let url = match &self.store_file {
            Some(path) => std::fs::read_to_string(path).map_err(|error| {
                format!("cannot read --store-file {} ({error})", path.display())
            })?,
            None => match std::env::var(VARIABLE) {
                Ok(url) if !url.is_empty() => url,
                Ok(_) | Err(std::env::VarError::NotPresent) => return Ok(None),
                Err(error) => return Err(format!("{VARIABLE}: {error}").into()),
            },
        };
        Ok(Some(url.trim().parse()?))
    }
}
