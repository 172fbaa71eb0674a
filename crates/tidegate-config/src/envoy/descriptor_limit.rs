//! The limit of one descriptor, with its settings.

use serde_json::{Map, Value};
use tidegate::Rule;

use super::reservation::EnvoyReservation;
use super::share_limit::ShareLimit;
use super::unit::EnvoyUnit;

/// The limit of a descriptor: a rule, or `unlimited`.
#[derive(Debug)]
pub struct DescriptorLimit {
    pub(crate) rule: Option<Rule>,
    pub(crate) stat: Box<str>,
    pub(crate) name: Option<Box<str>>,
    pub(crate) replaces: Box<[Box<str>]>,
    pub(crate) current_limit: Option<(u32, EnvoyUnit)>,
    pub(crate) is_shadow: bool,
    pub(crate) is_quota: bool,
    pub(crate) detailed_metric: bool,
    pub(crate) charge_denied: bool,
    pub(crate) allow_override: bool,
    pub(crate) says_unavailable: bool,
    pub(crate) charge_if_allowed: bool,
    pub(crate) reservation: EnvoyReservation,
    pub(crate) shares: Option<ShareLimit>,
    pub(crate) metadata: Option<Map<String, Value>>,
}

impl DescriptorLimit {
    /// The rule. `None` if it is `unlimited`: every request is allowed and nothing is counted.
    ///
    /// With `shadow_mode` all limits of the rule are shadow limits.
    pub fn rule(&self) -> Option<&Rule> {
        self.rule.as_ref()
    }

    /// The name in the metrics of envoyproxy/ratelimit, without values of the request; see
    /// [`LookupResult::stat_name`](crate::envoy::lookup::LookupResult::stat_name).
    pub fn stat_name(&self) -> &str {
        &self.stat
    }

    /// The name by which other limits can replace it; responses contain it too.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The names of the limits that do not apply to a request if this one does.
    pub fn replaces(&self) -> impl ExactSizeIterator<Item = &str> {
        self.replaces.iter().map(|name| &**name)
    }

    /// The limit for responses. `None` if it is unlimited, or in the notation of the library.
    pub fn current_limit(&self) -> Option<(u32, EnvoyUnit)> {
        self.current_limit
    }

    /// `shadow_mode`: the limit is evaluated and counted, not enforced.
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// `quota_mode`: a request is over the limit only if all such limits are exceeded.
    pub fn is_quota(&self) -> bool {
        self.is_quota
    }

    /// `detailed_metric`: the metric has a series for every value.
    pub fn detailed_metric(&self) -> bool {
        self.detailed_metric
    }

    /// `charge_denied`: denied requests are charged too, as in envoyproxy/ratelimit.
    pub fn charge_denied(&self) -> bool {
        self.charge_denied
    }

    /// `allow_override`: a limit that comes with a request replaces this one.
    pub fn allow_override(&self) -> bool {
        self.allow_override
    }

    /// `on_store_failure: unavailable`: while the store is unavailable, the call fails and Envoy
    /// decides. The rule itself denies.
    pub fn says_unavailable(&self) -> bool {
        self.says_unavailable
    }

    /// `charge: if_allowed`: a number of hits above 1 is charged only if the limit allows it.
    pub fn charge_if_allowed(&self) -> bool {
        self.charge_if_allowed
    }

    /// How permits are held between a reserve and its commit.
    pub fn reservation(&self) -> &EnvoyReservation {
        &self.reservation
    }

    /// `rlqs`: Envoy's rate limit quota service lends the limit in shares.
    pub fn shares(&self) -> Option<ShareLimit> {
        self.shares
    }

    /// `metadata` of the descriptor, for the dynamic metadata of responses.
    pub fn metadata(&self) -> Option<&Map<String, Value>> {
        self.metadata.as_ref()
    }
}
