//! The descriptors of a request, matched to limits and actions.

use smallvec::SmallVec;
use tidegate::{Call, Cost, Rule};

use super::error::EnvoyError;
use super::proto::{self, Entry, RateLimitDescriptor, RateLimitRequest};
use tidegate_config::envoy::lookup;
use tidegate_config::envoy::lookup::{DescriptorKey, LookupResult};
use tidegate_config::envoy::{DescriptorLimit, EnvoyConfig, EnvoyUnit};

/// The descriptors of a request, each with its limit.
pub(crate) struct LimitMatches<'a> {
    /// In the order of the descriptors.
    pub(crate) all: SmallVec<[LimitMatch<'a>; 4]>,
}

/// Limit of one descriptor.
pub(crate) enum LimitMatch<'a> {
    /// No limit matches, or another one replaces it.
    Free,
    /// Configured as `unlimited`.
    Unlimited(MatchedDescriptor<'a>),
    /// Limited by a rule.
    Limited(MatchedDescriptor<'a>),
}

/// One descriptor and its limit.
pub(crate) struct MatchedDescriptor<'a> {
    pub(crate) found: LookupResult<'a>,
    pub(crate) entries: &'a [Entry],
    pub(crate) hits: Hits,
}

/// Hits of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hits {
    /// Not given, or 1. Such descriptors are charged all or none.
    One,
    /// A number above 1: recorded even beyond the limit.
    Charge(Cost),
    /// 0: state of the limit only.
    Probe,
    /// A negative number: refunded.
    Refund(Cost),
}

impl Hits {
    /// The hits of `descriptor`, or else of the request, or else one.
    ///
    /// A number that is too large for one call counts as [`Cost::MAX`]. If it were refused, it
    /// would not be charged at all: a client that records usage ignores the response. A given 1 is
    /// an ordinary check: some clients always send it.
    fn of(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Self {
        let of_request = Some(u64::from(request.hits_addend)).filter(|hits| *hits > 0);
        let given = descriptor.hits_addend.or(of_request);
        let cost = Cost::new(given.unwrap_or(1)).unwrap_or(Cost::MAX);
        match given {
            _ if cost.is_zero() => Self::Probe,
            _ if descriptor.is_negative_hits => Self::Refund(cost),
            None | Some(1) => Self::One,
            Some(_) => Self::Charge(cost),
        }
    }

    /// Number of hits in the statistics.
    pub(crate) fn count(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Charge(cost) => cost.get(),
            Self::Probe | Self::Refund(_) => 0,
        }
    }
}

impl<'a> LimitMatches<'a> {
    /// Matches the descriptors of `request` to the limits of its domain.
    pub(crate) fn from_request(
        request: &'a RateLimitRequest,
        config: Option<&'a EnvoyConfig>,
    ) -> Result<Self, EnvoyError> {
        if request.domain.is_empty() {
            return Err(EnvoyError::Invalid(
                "rate limit domain must not be empty; name one".into(),
            ));
        }
        let count = request.descriptors.len();
        if count == 0 {
            let detail = "rate limit descriptor list must not be empty; send at least one";
            return Err(EnvoyError::Invalid(detail.into()));
        }
        if count > Call::MAX_CHARGES {
            let max = Call::MAX_CHARGES;
            return Err(EnvoyError::Invalid(format!("{count} descriptors; send at most {max}")));
        }
        let domain = config.and_then(|config| config.domain(&request.domain));
        let mut all = SmallVec::with_capacity(count);
        for descriptor in &request.descriptors {
            let found = match (domain, &descriptor.limit) {
                (None, _) => None,
                (Some(domain), None) => domain.find(&descriptor.entries),
                (Some(domain), Some(limit)) => {
                    let unit = unit(limit.unit)?;
                    domain.find_overridden(&descriptor.entries, limit.requests_per_unit, unit)
                }
            };
            let hits = Hits::of(request, descriptor);
            all.push(LimitMatch::new(found, &descriptor.entries, hits));
        }
        let mut matches = Self { all };
        matches.remove_replaced();
        matches.check_size()
    }

    /// Removes the limits that others replace.
    fn remove_replaced(&mut self) {
        let limits = || self.all.iter().filter_map(LimitMatch::limit);
        if limits().all(|limit| limit.replaces().len() == 0) {
            return;
        }
        let is_replaced =
            |name: &str| limits().any(|limit| limit.replaces().any(|other| other == name));
        let replaced: SmallVec<[bool; 4]> = self
            .all
            .iter()
            .map(|one| one.limit().and_then(DescriptorLimit::name).is_some_and(is_replaced))
            .collect();
        for (one, _) in self.all.iter_mut().zip(replaced).filter(|(_, replaced)| *replaced) {
            *one = LimitMatch::Free;
        }
    }

    /// Refuses more limits than an engine takes in one call, before any of them is charged.
    fn check_size(self) -> Result<Self, EnvoyError> {
        let rules = self.limited().filter_map(MatchedDescriptor::rule);
        let limits: usize = rules.map(|rule| rule.limits().len()).sum();
        if limits > Call::MAX_CHARGES {
            let max = Call::MAX_CHARGES;
            return Err(EnvoyError::Invalid(format!(
                "the descriptors match {limits} limits together; at most {max} are allowed"
            )));
        }
        Ok(self)
    }

    /// The descriptors under a limit, in order.
    pub(crate) fn limited(&self) -> impl Iterator<Item = &MatchedDescriptor<'a>> {
        self.all.iter().filter_map(|one| match one {
            LimitMatch::Limited(limited) => Some(limited),
            LimitMatch::Free | LimitMatch::Unlimited(_) => None,
        })
    }
}

impl<'a> LimitMatch<'a> {
    fn new(found: Option<LookupResult<'a>>, entries: &'a [Entry], hits: Hits) -> Self {
        let Some(found) = found else { return Self::Free };
        let matched = MatchedDescriptor { found, entries, hits };
        match matched.rule() {
            None => Self::Unlimited(matched),
            Some(_) => Self::Limited(matched),
        }
    }

    fn limit(&self) -> Option<&DescriptorLimit> {
        match self {
            Self::Free => None,
            Self::Unlimited(matched) | Self::Limited(matched) => Some(matched.limit()),
        }
    }
}

impl MatchedDescriptor<'_> {
    pub(crate) fn limit(&self) -> &DescriptorLimit {
        self.found.leaf()
    }

    /// The rule; none for [`LimitMatch::Unlimited`].
    pub(crate) fn rule(&self) -> Option<&Rule> {
        self.limit().rule()
    }

    /// The key that the descriptor is counted under.
    pub(crate) fn key(&self) -> DescriptorKey<'_> {
        self.found.subject(self.entries)
    }

    pub(crate) fn action(&self) -> Action {
        match self.hits {
            Hits::One if self.limit().charge_denied() => Action::Record,
            Hits::One if self.limit().is_quota() => Action::TakeQuota,
            Hits::One => Action::Take,
            Hits::Charge(_) => Action::Record,
            Hits::Probe => Action::Peek,
            Hits::Refund(_) => Action::Refund,
        }
    }

    pub(crate) fn cost(&self) -> Cost {
        match self.hits {
            Hits::One => Cost::ONE,
            Hits::Probe => Cost::ZERO,
            Hits::Charge(cost) | Hits::Refund(cost) => cost,
        }
    }
}

/// Effect of a descriptor on its limits. Descriptors with the same action are one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Charges one hit, if all limits allow it.
    Take,
    /// Charges one hit to each quota that allows it: the request is denied only if none does.
    TakeQuota,
    /// Charges hits even beyond the limit.
    Record,
    Peek,
    Refund,
}

impl lookup::DescriptorEntry for Entry {
    fn key(&self) -> &str {
        &self.key
    }

    fn value(&self) -> &str {
        &self.value
    }
}

/// The unit of a limit in a request. Two enums of the protocol have numbers for it, which agree.
fn unit(number: i32) -> Result<EnvoyUnit, EnvoyError> {
    Ok(match proto::Unit::try_from(number) {
        Ok(proto::Unit::Second) => EnvoyUnit::Second,
        Ok(proto::Unit::Minute) => EnvoyUnit::Minute,
        Ok(proto::Unit::Hour) => EnvoyUnit::Hour,
        Ok(proto::Unit::Day) => EnvoyUnit::Day,
        Ok(proto::Unit::Week) => EnvoyUnit::Week,
        Ok(proto::Unit::Month) => EnvoyUnit::Month,
        Ok(proto::Unit::Year) => EnvoyUnit::Year,
        Ok(proto::Unit::Unknown) | Err(_) => {
            let detail = "descriptor limit without unit; use SECOND to YEAR";
            return Err(EnvoyError::Invalid(detail.into()));
        }
    })
}
