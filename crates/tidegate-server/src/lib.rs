//! The Tidegate server: HTTP, RESP and gRPC listeners over one rate limiter.
//!
//! ```no_run
//! use tidegate_server::{Server, ServerOptions};
//!
//! /// What `tidegate serve` does with the options of its command line.
//! async fn serve(options: ServerOptions) -> Result<(), Box<dyn std::error::Error>> {
//!     let server = Server::bind(options).await?;
//!     println!("HTTP on {:?}, RESP on {:?}", server.http_address(), server.resp_address());
//!     let stop = async { drop(tokio::signal::ctrl_c().await) };
//!     server.run(stop).await;
//!     Ok(())
//! }
//! ```
//!
//! # Layout
//!
//! Each module imports only modules above it in this list:
//!
//! - `text`: numbers, durations and foreign text for display.
//! - `shutdown`: the shutdown signal.
//! - `observe`: metrics, logs, traces, hot keys and traffic statistics.
//! - `tls`: certificates. `store`: store address to engine with layers. `store_monitor`: probes and
//!   logs of its health. `readiness`: when the server is ready. `chart`: SVG charts.
//! - `shares`: limits that are lent in parts.
//! - `check`: what every transport calls.
//! - `policy`: where the policy comes from.
//! - `transport`: HTTP, RESP and gRPC.
//! - `xds`: limits from a control plane.
//! - `console`: HTML pages.
//! - `server`: bind, run, shut down.
//! - `internal`: what the binary, tests and fuzz targets use of these.

pub(crate) mod chart;
pub(crate) mod check;
pub(crate) mod console;
#[doc(hidden)]
pub mod internal;
pub(crate) mod observe;
pub(crate) mod policy;
pub(crate) mod readiness;
pub(crate) mod server;
pub(crate) mod shares;
pub(crate) mod shutdown;
pub(crate) mod store;
pub(crate) mod store_monitor;
pub(crate) mod text;
pub(crate) mod tls;
pub(crate) mod transport;
pub(crate) mod xds;

pub use check::WaitLimits;
pub use observe::metrics::ListenerKind;
pub use observe::otlp::OtlpOptions;
pub use policy::{EnvoyOrigin, EnvoySource, PolicySource};
pub use readiness::ReadyWhen;
pub use server::{EnvoyOptions, Exposure, HttpRoutes, Server, ServerOptions};
pub use store::{Store, StoreError};
pub use tls::{ListenerTls, TlsSources};
pub use transport::allowed_hosts::{HostName, InvalidHostName};
pub use transport::auth::AuthTokens;
pub use transport::envoy::settings::{EnvoySettings, ResponseHeaders};
pub use transport::listener::{ListenerOptions, Timeouts};
pub use xds::{XdsAddress, XdsBackoff, XdsOptions, XdsStart, XdsTls};
