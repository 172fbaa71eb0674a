//! The address of a store: `--store`, `--store-file`, `TIDEGATE_STORE` or `TIDEGATE_STORE_FILE`.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::environment_args::{text_variable, variable};
use crate::error::CliError;
use tidegate_server::internal::store::Store;

/// Environment variable of the address, for addresses with a password: other users can see the
/// command line.
pub(crate) const VARIABLE: &str = "TIDEGATE_STORE";
/// Environment variable with the path of a file, as `--store-file`.
const FILE_VARIABLE: &str = "TIDEGATE_STORE_FILE";

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
        if let Some(path) = &self.store_file {
            return Ok(Some(read("--store-file", path)?));
        }
        if let Some(url) = text_variable(VARIABLE)? {
            return Ok(Some(url.trim().parse()?));
        }
        let path = variable(FILE_VARIABLE).map(PathBuf::from);
        path.map(|path| read(FILE_VARIABLE, &path)).transpose()
    }

    /// Whether the command line names a store.
    pub(crate) fn is_given(&self) -> bool {
        self.store.is_some() || self.store_file.is_some()
    }
}

fn read(source: &str, path: &Path) -> Result<Store, CliError> {
    let url = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {source} {} ({error})", path.display()))?;
    Ok(url.trim().parse()?)
}
