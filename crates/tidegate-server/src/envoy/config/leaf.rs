//! A limit of a file, with all that the file says about it.

use serde_json::{Map, Value};
use tidegate::Rule;

use super::Unit;

/// What a descriptor of a request comes under: a rule, or the word that there is none.
#[derive(Debug)]
pub struct Leaf {
    pub(super) rule: Option<Rule>,
    pub(super) stat: Box<str>,
    pub(super) name: Option<Box<str>>,
    pub(super) replaces: Box<[Box<str>]>,
    pub(super) current_limit: Option<(u32, Unit)>,
    pub(super) is_shadow: bool,
    pub(super) is_quota: bool,
    pub(super) detailed_metric: bool,
    pub(super) charge_denied: bool,
    pub(super) allow_override: bool,
    pub(super) says_unavailable: bool,
    pub(super) metadata: Option<Map<String, Value>>,
}

impl Leaf {
    /// The rule. `None` if it is `unlimited`: then everything passes and nothing is counted.
    ///
    /// Under `shadow_mode` all limits of the rule only look on.
    pub fn rule(&self) -> Option<&Rule> {
        self.rule.as_ref()
    }

    /// What it goes by in envoyproxy/ratelimit's metrics, as far as that does not depend on the
    /// request; see [`Found::stat_name`](crate::envoy::lookup::Found::stat_name).
    pub fn stat_name(&self) -> &str {
        &self.stat
    }

    /// The name that others may replace it by, which is in answers too.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The names of those that are left out of a request in which this one applies.
    pub fn replaces(&self) -> impl ExactSizeIterator<Item = &str> {
        self.replaces.iter().map(|name| &**name)
    }

    /// The limit as the protocol tells it. `None` if it is unlimited, or in our own notation.
    pub fn current_limit(&self) -> Option<(u32, Unit)> {
        self.current_limit
    }

    /// Does it only look on, as `shadow_mode: true` says?
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Is a request over the limit only when all such limits are, as `quota_mode: true` says?
    pub fn is_quota(&self) -> bool {
        self.is_quota
    }

    /// Does the metric tell every value of a request apart?
    pub fn detailed_metric(&self) -> bool {
        self.detailed_metric
    }

    /// Is a request charged even though it is denied, as in envoyproxy/ratelimit?
    pub fn charge_denied(&self) -> bool {
        self.charge_denied
    }

    /// May a request bring a limit of its own in place of this one?
    pub fn allow_override(&self) -> bool {
        self.allow_override
    }

    /// While the store does not answer, is Envoy told so, to decide by itself? The rule denies
    /// then.
    pub fn says_unavailable(&self) -> bool {
        self.says_unavailable
    }

    /// The descriptor's `metadata`, for the answer's dynamic metadata.
    pub fn metadata(&self) -> Option<&Map<String, Value>> {
        self.metadata.as_ref()
    }
}
