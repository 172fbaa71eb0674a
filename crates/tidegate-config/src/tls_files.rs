//! Paths of the files that TLS needs.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

/// Certificates in PEM format; paths are relative to the policy file.
#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Tls", extend("required" = ["cert", "key"]))]
pub struct TlsFiles {
    /// Certificate chain of the server.
    #[schemars(with = "String", extend("examples" = ["server.pem"], "minLength" = 1))]
    pub cert: PathBuf,
    /// Private key, unencrypted.
    #[schemars(with = "String", extend("examples" = ["server-key.pem"], "minLength" = 1))]
    pub key: PathBuf,
    /// CA for client certificates; enables mutual TLS.
    #[schemars(with = "String", extend("examples" = ["clients.pem"], "minLength" = 1))]
    pub client_ca: Option<PathBuf>,
}
