//! Which limit a descriptor of a request comes under, and what it is counted by.
//!
//! Level by level: the descriptor of the entry's key and value, else the first one in the file
//! whose wildcard fits, else the one of the key alone. There is no way back: a level that was
//! entered is not left for another one that would have fitted too. The limit is that of the last
//! level, so that a request of two entries never comes under a limit of one, nor the other way
//! round.
//!
//! ```
//! use tidegate_server::envoy::config::EnvoyConfig;
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
//! # Ok::<(), tidegate_server::config::Problems>(())
//! ```

mod level;
mod stat;
mod subject;
mod wildcard;

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

pub(in crate::envoy) use self::level::{Level, Node};
pub(in crate::envoy) use self::stat::sanitised;
pub use self::subject::Subject;
pub(in crate::envoy) use self::wildcard::is_wildcard;

use self::level::Step;
use super::config::{Domain, Leaf, Unit};

/// One entry of a descriptor of a request.
pub trait Entry {
    /// Its key.
    fn key(&self) -> &str;
    /// Its value, which may be empty.
    fn value(&self) -> &str;
}

/// A key and a value.
impl Entry for (&str, &str) {
    fn key(&self) -> &str {
        self.0
    }

    fn value(&self) -> &str {
        self.1
    }
}

/// What a descriptor of a request comes under.
#[derive(Debug)]
pub struct Found<'c> {
    domain: &'c Domain,
    leaf: Which<'c>,
    /// How each entry was found; nothing if the limit came with the request.
    steps: SmallVec<[Step<'c>; 4]>,
}

#[derive(Debug)]
enum Which<'c> {
    FromFile(&'c Leaf),
    FromRequest(Arc<Leaf>),
}

impl Domain {
    /// What these entries come under. `None`: no limit, and everything passes.
    pub fn find(&self, entries: &[impl Entry]) -> Option<Found<'_>> {
        let mut steps: SmallVec<[Step<'_>; 4]> = SmallVec::with_capacity(entries.len());
        let mut level = self.level();
        for entry in entries {
            let step = level.step(entry)?;
            level = step.node.below();
            steps.push(step);
        }
        let leaf = Which::FromFile(steps.last()?.node.leaf()?);
        Some(Found { domain: self, leaf, steps })
    }

    /// The same for entries that come with a limit of their own. It applies in place of what the
    /// file says, even where that is nothing, unless the file has `allow_override: false` there.
    pub fn find_overridden(
        &self,
        entries: &[impl Entry],
        requests: u32,
        unit: Unit,
    ) -> Option<Found<'_>> {
        let found = self.find(entries);
        let allowed = found.as_ref().map_or(self.allow_override(), |f| f.leaf().allow_override());
        if !allowed || entries.is_empty() {
            return found;
        }
        let leaf = Which::FromRequest(self.override_leaf(requests, unit)?);
        Some(Found { domain: self, leaf, steps: SmallVec::new() })
    }
}

impl Found<'_> {
    /// The limit, with all that is said about it.
    pub fn leaf(&self) -> &Leaf {
        match &self.leaf {
            Which::FromFile(leaf) => leaf,
            Which::FromRequest(leaf) => leaf,
        }
    }

    /// Did the limit come with the request?
    pub fn is_override(&self) -> bool {
        matches!(self.leaf, Which::FromRequest(_))
    }

    /// What the entries are counted by: the domain and all of them. Where values share a
    /// threshold, their wildcard stands for them. The entries are those that were looked up.
    pub fn subject<'a, E: Entry>(&'a self, entries: &'a [E]) -> Subject<'a> {
        let value = |(i, entry): (usize, &'a E)| {
            let shared = self.steps.get(i).and_then(|step| step.shared(entry.key()));
            (entry.key(), shared.unwrap_or(entry.value()))
        };
        Subject::new(self.domain.name(), entries.iter().enumerate().map(value))
    }

    /// What it goes by in envoyproxy/ratelimit's metrics: `domain.key_value.key`, with the values
    /// of the request where the file asks for them.
    pub fn stat_name(&self, entries: &[impl Entry]) -> Cow<'_, str> {
        match &self.leaf {
            Which::FromFile(leaf) => stat::of_file(self.domain.name(), leaf, &self.steps, entries),
            Which::FromRequest(_) => stat::of_request(self.domain.name(), entries).into(),
        }
    }
}
