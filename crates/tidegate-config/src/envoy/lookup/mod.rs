//! Finds the limit for a descriptor of a request, and its key. Imports: descriptor_limit, inherit,
//! reservation, unit.
//!
//! The lookup goes level by level: first the descriptor with the key and value of the entry, then
//! the first one in the file with a matching wildcard, then the one with the key alone. It never
//! backtracks: after a level is entered, other descriptors that match are not tried. Only the limit
//! of the last level applies, so a request with two entries never matches a limit for one entry,
//! nor the reverse.
//!
//! ```
//! use tidegate_config::envoy::EnvoyConfig;
//! let config = EnvoyConfig::load_str("messaging.yaml", r#"
//! domain: messaging
//! descriptors:
//!   - key: to_number
//!     rate_limit: { unit: day, requests_per_unit: 100 }
//! "#)?;
//! let domain = config.domain("messaging").unwrap();
//! let entries = [("to_number", "2061111111")];
//! let found = domain.find(&entries).unwrap();
//! let rule = found.leaf().rule().unwrap();
//! assert_eq!(rule.name(), "messaging.to_number");
//! assert_eq!(rule.limits()[0].limit().to_string(), "fixed-window 100/24h");
//! assert_eq!(found.subject(&entries).key().parts().count(), 3);
//! assert_eq!(found.stat_name(&entries), "messaging.to_number");
//! # Ok::<(), tidegate_config::Problems>(())
//! ```

mod domain;
mod entry;
mod find;
mod key;
mod level;
mod stat_name;
mod wildcard;

pub use self::domain::Domain;
pub use self::entry::DescriptorEntry;
pub use self::find::LookupResult;
pub use self::key::DescriptorKey;
pub(crate) use self::level::{DescriptorLevel, DescriptorNode};
pub(crate) use self::stat_name::sanitized;
pub(crate) use self::wildcard::is_wildcard;
