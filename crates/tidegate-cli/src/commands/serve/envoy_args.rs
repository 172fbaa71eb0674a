//! Options of Envoy's rate limit service, of `tidegate serve`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tidegate::policy::Enforcement;
use tidegate_config::envoy::{DuplicateDomain, EnvoyWindows};
use tidegate_server::internal::policy::{EnvoyOrigin, EnvoySource};
use tidegate_server::internal::transport::envoy::settings::{EnvoySettings, ResponseHeaders};
use tidegate_server::{EnvoyOptions, XdsAddress, XdsBackoff, XdsOptions, XdsStart, XdsTls};

/// Envoy's rate limit service.
#[derive(Args, Debug)]
pub(super) struct EnvoyArgs {
    /// Directory of envoyproxy/ratelimit configuration files
    #[arg(long, value_name = "DIR", group = "envoy_source")]
    envoy_config: Option<PathBuf>,
    #[command(flatten)]
    xds: XdsArgs,
    /// Merge files or resources of the same domain instead of refusing them
    #[arg(long, requires = "envoy_source")]
    envoy_merge: bool,
    /// Shadow mode for Envoy: evaluate and count, never deny
    #[arg(long, requires = "envoy_source")]
    envoy_shadow: bool,
    /// Windows of Envoy's units: fixed, sliding, bucket
    #[arg(long, value_name = "KIND", default_value = "fixed", value_parser = windows)]
    envoy_windows: EnvoyWindows,
    /// Rate limit headers for Envoy: off, envoy or tidegate
    #[arg(long, value_name = "STYLE", default_value = "off", hide_possible_values = true)]
    envoy_headers: EnvoyHeadersArg,
    /// Also export metrics under envoyproxy/ratelimit's names
    #[arg(long)]
    envoy_stats: bool,
}

fn windows(text: &str) -> Result<EnvoyWindows, &'static str> {
    let known = EnvoyWindows::NAMES.into_iter().find(|(name, _)| *name == text);
    known.map(|(_, windows)| windows).ok_or("expected fixed, sliding or bucket")
}

/// Headers that Envoy adds to responses.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum EnvoyHeadersArg {
    Off,
    Envoy,
    Tidegate,
}

/// The control plane.
#[derive(Args, Debug)]
struct XdsArgs {
    /// Control plane (xDS) for Envoy's limits: [https://]host:port
    #[arg(long, value_name = "ADDRESS", group = "envoy_source")]
    xds: Option<XdsAddress>,
    /// Node id for the control plane
    #[arg(long, value_name = "ID", default_value = "tidegate", requires = "xds")]
    xds_node: String,
    /// CA of the control plane; enables TLS [default: CAs of the system]
    #[arg(long, value_name = "FILE", requires = "xds")]
    xds_ca: Option<PathBuf>,
    /// Client certificate for the control plane; enables TLS
    #[arg(long, value_name = "FILE", requires_all = ["xds", "xds_key"])]
    xds_cert: Option<PathBuf>,
    /// Key of the client certificate
    #[arg(long, value_name = "FILE", requires = "xds_cert")]
    xds_key: Option<PathBuf>,
    /// Name in its certificate; enables TLS [default: its host]
    #[arg(long, value_name = "NAME", requires = "xds")]
    xds_server_name: Option<String>,
    /// Start before the first configuration; not ready until then
    #[arg(long, requires = "xds")]
    xds_optional: bool,
}

impl XdsArgs {
    fn options(&self) -> Option<XdsOptions> {
        let address = self.xds.clone()?;
        let has_tls = address.is_https()
            || self.xds_ca.is_some()
            || self.xds_cert.is_some()
            || self.xds_server_name.is_some();
        let tls = XdsTls {
            ca: self.xds_ca.clone(),
            identity: self.xds_cert.clone().zip(self.xds_key.clone()),
            server_name: self.xds_server_name.clone(),
        };
        Some(XdsOptions {
            address,
            node_id: self.xds_node.clone(),
            metadata: Vec::new(),
            headers: Vec::new(),
            tls: has_tls.then_some(tls),
            start: if self.xds_optional { XdsStart::NotReady } else { XdsStart::Wait },
            backoff: XdsBackoff::default(),
        })
    }
}

impl EnvoyArgs {
    pub(super) fn options(&self) -> EnvoyOptions {
        let same_domain =
            if self.envoy_merge { DuplicateDomain::Merge } else { DuplicateDomain::Refuse };
        let xds = self.xds.options();
        let directory = self.envoy_config.clone().map(EnvoyOrigin::Folder);
        let origin = directory.or(xds.as_ref().map(|_| EnvoyOrigin::ControlPlane));
        EnvoyOptions {
            source: origin.map(|origin| EnvoySource {
                origin,
                same_domain,
                windows: self.envoy_windows,
            }),
            xds,
            settings: EnvoySettings {
                headers: match self.envoy_headers {
                    EnvoyHeadersArg::Off => ResponseHeaders::Off,
                    EnvoyHeadersArg::Envoy => ResponseHeaders::Envoy,
                    EnvoyHeadersArg::Tidegate => ResponseHeaders::Tidegate,
                },
                enforcement: match self.envoy_shadow {
                    true => Enforcement::Shadow,
                    false => Enforcement::Enforce,
                },
            },
            stats: self.envoy_stats,
        }
    }
}
