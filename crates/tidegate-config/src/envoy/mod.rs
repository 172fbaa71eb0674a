//! Files of envoyproxy/ratelimit: loading, and lookup of descriptors. Imports: environment, errors,
//! limits, on_expiry, parse, ratio.
//!
//! ```
//! use tidegate_config::envoy::EnvoyConfig;
//! let config = EnvoyConfig::load_str("edge.yaml", r#"
//! domain: edge_proxy_per_ip
//! descriptors:
//!   - key: remote_address
//!     rate_limit: { unit: second, requests_per_unit: 10 }
//!   - key: remote_address
//!     value: 50.0.0.5
//!     rate_limit: { unit: second, requests_per_unit: 0 }
//!   - key: api_key                        # an extension of Tidegate
//!     limits: ["sliding-window 1000/h", "100/s burst 20"]
//! "#)?;
//! assert_eq!(config.leaves().count(), 3);
//!
//! let text = "domain: edge\ndescriptors: [{ key: ip, rate_limit: { unit: parsec } }]";
//! let problems = EnvoyConfig::load_str("edge.yaml", text).unwrap_err();
//! assert!(problems.to_string().starts_with(r#"edge.yaml:2:46: unknown unit "parsec"; use "#));
//! # Ok::<(), tidegate_config::Problems>(())
//! ```
//!
//! Everything that envoyproxy/ratelimit accepts is accepted. A warning reports fields without an
//! effect, or with a surprising one.

mod config;
mod descriptor;
mod descriptor_limit;
mod diagnostics;
mod fields;
mod folder;
mod inherit;
mod load;
pub mod lookup;
mod rate_limit;
mod reservation;
mod rlqs;
mod rule_name;
mod share_limit;
mod unit;

pub use self::config::{DuplicateDomain, EnvoyConfig, EnvoyLoadOptions};
pub use self::descriptor_limit::DescriptorLimit;
pub use self::lookup::Domain;
pub use self::reservation::EnvoyReservation;
pub use self::share_limit::{FillInterval, ShareLimit, UnsuitableLimit};
pub use self::unit::{EnvoyUnit, EnvoyWindows};
