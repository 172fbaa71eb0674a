//! The descriptors of a request, matched to limits and actions.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate::{Call, Cost, Rule};

use super::error::EnvoyError;
use super::phase::ReservePhase;
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
    /// Those that are counted.
    pub(crate) entries: Cow<'a, [Entry]>,
    pub(crate) hits: Hits,
    /// Of a reserve or a commit; else empty.
    pub(crate) request_id: &'a str,
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
    /// Held until the commit.
    Reserve(Cost),
    /// What a hold is settled at, if it is known.
    Commit(Option<Cost>),
}

impl Hits {
    /// The hits of `descriptor`, or else of the request, or else one.
    ///
    /// A number that is too large for one call counts as [`Cost::MAX`]. If it were refused, it
    /// would not be charged at all: a client that records usage ignores the response. A given 1 is
    /// an ordinary check: some clients always send it.
    fn of(
        request: &RateLimitRequest,
        descriptor: &RateLimitDescriptor,
        phase: ReservePhase<'_>,
        limit: Option<&DescriptorLimit>,
    ) -> Self {
        let of_request = Some(u64::from(request.hits_addend)).filter(|hits| *hits > 0);
        let given = descriptor.hits_addend.or(of_request);
        let cost_of = |hits: u64| Cost::new(hits).unwrap_or(Cost::MAX);
        let cost = cost_of(given.unwrap_or(1));
        match given {
            _ if matches!(phase, ReservePhase::Commit(_)) => Self::Commit(given.map(cost_of)),
            None | Some(0) if phase != ReservePhase::None => {
                Self::Reserve(limit.map_or(Cost::ONE, |limit| limit.reservation().estimate))
            }
            _ if phase != ReservePhase::None => Self::Reserve(cost),
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
            Self::Charge(cost) | Self::Commit(Some(cost)) => cost.get(),
            // Counted by the commit.
            Self::Reserve(_) | Self::Commit(None) => 0,
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
        if config.is_some_and(EnvoyConfig::is_pending) {
            let detail = "no configuration from the control plane yet; nothing was charged";
            return Err(EnvoyError::Unavailable(detail.into()));
        }
        let domain = config.and_then(|config| config.domain(&request.domain));
        let mut all = SmallVec::with_capacity(count);
        for descriptor in &request.descriptors {
            let (phase, entries) = ReservePhase::of(&descriptor.entries)?;
            let found = match (domain, &descriptor.limit) {
                (None, _) => None,
                (Some(domain), None) => domain.find(&entries),
                (Some(domain), Some(limit)) => {
                    let unit = unit(limit.unit)?;
                    domain.find_overridden(&entries, limit.requests_per_unit, unit)
                }
            };
            let limit = found.as_ref().map(LookupResult::leaf);
            if phase != ReservePhase::None {
                check_phase(descriptor, limit)?;
            }
            let hits = Hits::of(request, descriptor, phase, limit);
            all.push(LimitMatch::new(found, entries, hits, phase.request_id()));
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
    fn new(
        found: Option<LookupResult<'a>>,
        entries: Cow<'a, [Entry]>,
        hits: Hits,
        request_id: &'a str,
    ) -> Self {
        let Some(found) = found else { return Self::Free };
        let matched = MatchedDescriptor { found, entries, hits, request_id };
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
        self.found.subject(&self.entries)
    }

    pub(crate) fn action(&self) -> Action {
        match self.hits {
            _ if self.limit().shares().is_some() => Action::Shared,
            Hits::Charge(_) if !self.limit().charge_if_allowed() => Action::Record,
            Hits::One | Hits::Charge(_) if self.limit().charge_denied() => Action::Record,
            Hits::One | Hits::Charge(_) if self.limit().is_quota() => Action::TakeQuota,
            Hits::One | Hits::Charge(_) => Action::Take,
            Hits::Probe => Action::Peek,
            Hits::Refund(_) => Action::Refund,
            Hits::Reserve(_) => Action::Reserve,
            Hits::Commit(_) => Action::Commit,
        }
    }

    pub(crate) fn cost(&self) -> Cost {
        match self.hits {
            Hits::One => Cost::ONE,
            Hits::Probe | Hits::Commit(None) => Cost::ZERO,
            Hits::Charge(cost) | Hits::Refund(cost) => cost,
            Hits::Reserve(cost) | Hits::Commit(Some(cost)) => cost,
        }
    }
}

/// Effect of a descriptor on its limits. Descriptors with the same action are one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Charges the hits, if all limits allow it.
    Take,
    /// Charges the hits to each quota that allows it: the request is denied only if none does.
    TakeQuota,
    /// Charges hits even beyond the limit.
    Record,
    Peek,
    Refund,
    /// Holds hits, if all limits allow it.
    Reserve,
    /// Ends a hold and charges hits.
    Commit,
    /// Whatever it does, the limit is lent in shares and not counted by the engine.
    Shared,
}

/// Refuses what a reserve or a commit cannot do.
fn check_phase(
    descriptor: &RateLimitDescriptor,
    limit: Option<&DescriptorLimit>,
) -> Result<(), EnvoyError> {
    let detail = if descriptor.is_negative_hits {
        "a reserve or a commit with negative hits; send a number from 0"
    } else if limit.is_some_and(DescriptorLimit::is_quota) {
        "a limit in quota_mode cannot be reserved"
    } else if limit.is_some_and(|limit| limit.shares().is_some()) {
        "a limit with rlqs cannot be reserved"
    } else {
        return Ok(());
    };
    Err(EnvoyError::Invalid(detail.into()))
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
