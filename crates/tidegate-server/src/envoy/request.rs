//! What a request wants of each limit that it comes under.

use smallvec::SmallVec;
use tidegate::{Call, Cost, Rule};

use super::config::{EnvoyConfig, Leaf, Unit};
use super::lookup::{self, Found, Subject};
use super::proto::{self, Entry, RateLimitDescriptor, RateLimitRequest};
use super::service::Fault;

/// The descriptors of a request, each with what it comes under.
pub(super) struct Wishes<'a> {
    /// In the order of the descriptors.
    pub(super) all: SmallVec<[Wish<'a>; 4]>,
}

/// What one descriptor comes under.
pub(super) enum Wish<'a> {
    /// Nothing: no limit is about it, or another one is in its place.
    Free,
    /// The word that there is no limit.
    Unlimited(Placed<'a>),
    /// A limit.
    Limited(Placed<'a>),
}

/// One descriptor and what it comes under.
pub(super) struct Placed<'a> {
    pub(super) found: Found<'a>,
    pub(super) entries: &'a [Entry],
    pub(super) hits: Hits,
}

/// What it wants of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hits {
    /// Nobody said a number: one, all of them or none.
    One,
    /// So many, whatever is left.
    Charge(Cost),
    /// Nothing, just to know.
    Probe,
    /// To give so many back.
    Refund(Cost),
}

impl Hits {
    /// What `descriptor` says, else what the whole request says, else one.
    ///
    /// A number that is too large for one call counts as the largest: turned away, it would not
    /// be charged at all, since whoever reports what was used does not look at the answer.
    fn of(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Self {
        let of_request = Some(u64::from(request.hits_addend)).filter(|hits| *hits > 0);
        let said = descriptor.hits_addend.or(of_request);
        let cost = Cost::new(said.unwrap_or(1)).unwrap_or(Cost::MAX);
        match said {
            _ if cost.is_zero() => Self::Probe,
            _ if descriptor.is_negative_hits => Self::Refund(cost),
            Some(_) => Self::Charge(cost),
            None => Self::One,
        }
    }

    /// How many hits it counts as.
    pub(super) fn count(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Charge(cost) => cost.get(),
            Self::Probe | Self::Refund(_) => 0,
        }
    }
}

impl<'a> Wishes<'a> {
    /// What `request` wants under these limits.
    pub(super) fn of(
        request: &'a RateLimitRequest,
        config: Option<&'a EnvoyConfig>,
    ) -> Result<Self, Fault> {
        if request.domain.is_empty() {
            return Err(Fault::Invalid("rate limit domain must not be empty; name one".into()));
        }
        let count = request.descriptors.len();
        if count == 0 {
            let told = "rate limit descriptor list must not be empty; send at least one";
            return Err(Fault::Invalid(told.into()));
        }
        if count > Call::MAX_CHARGES {
            let most = Call::MAX_CHARGES;
            return Err(Fault::Invalid(format!("{count} descriptors; send at most {most}")));
        }
        let domain = config.and_then(|config| config.domain(&request.domain));
        let mut all = SmallVec::with_capacity(count);
        for descriptor in &request.descriptors {
            let found = match (domain, &descriptor.limit) {
                (None, _) => None,
                (Some(domain), None) => domain.find(&descriptor.entries),
                (Some(domain), Some(limit)) => {
                    let unit = Unit::try_from(limit.unit)?;
                    domain.find_overridden(&descriptor.entries, limit.requests_per_unit, unit)
                }
            };
            let hits = Hits::of(request, descriptor);
            all.push(Wish::new(found, &descriptor.entries, hits));
        }
        let mut wishes = Self { all };
        wishes.leave_out_replaced();
        wishes.check_size()
    }

    /// Leaves out those that others take the place of.
    fn leave_out_replaced(&mut self) {
        let leaves = || self.all.iter().filter_map(Wish::leaf);
        if leaves().all(|leaf| leaf.replaces().len() == 0) {
            return;
        }
        let is_replaced =
            |name: &str| leaves().any(|leaf| leaf.replaces().any(|other| other == name));
        let replaced: SmallVec<[bool; 4]> = self
            .all
            .iter()
            .map(|wish| wish.leaf().and_then(Leaf::name).is_some_and(is_replaced))
            .collect();
        for (wish, _) in self.all.iter_mut().zip(replaced).filter(|(_, replaced)| *replaced) {
            *wish = Wish::Free;
        }
    }

    /// Refuses what no engine takes in one call, before any part of it is charged.
    fn check_size(self) -> Result<Self, Fault> {
        let rules = self.limited().filter_map(Placed::rule);
        let limits: usize = rules.map(|rule| rule.limits().len()).sum();
        if limits > Call::MAX_CHARGES {
            let most = Call::MAX_CHARGES;
            return Err(Fault::Invalid(format!(
                "the descriptors come under {limits} limits together; use at most {most}"
            )));
        }
        Ok(self)
    }

    /// Those under a limit.
    pub(super) fn limited(&self) -> impl Iterator<Item = &Placed<'a>> {
        self.all.iter().filter_map(|wish| match wish {
            Wish::Limited(limited) => Some(limited),
            Wish::Free | Wish::Unlimited(_) => None,
        })
    }
}

impl<'a> Wish<'a> {
    fn new(found: Option<Found<'a>>, entries: &'a [Entry], hits: Hits) -> Self {
        let Some(found) = found else { return Self::Free };
        let placed = Placed { found, entries, hits };
        match placed.rule() {
            None => Self::Unlimited(placed),
            Some(_) => Self::Limited(placed),
        }
    }

    fn leaf(&self) -> Option<&Leaf> {
        match self {
            Self::Free => None,
            Self::Unlimited(placed) | Self::Limited(placed) => Some(placed.leaf()),
        }
    }
}

impl Placed<'_> {
    pub(super) fn leaf(&self) -> &Leaf {
        self.found.leaf()
    }

    /// Its limits. Whoever has none is [`Wish::Unlimited`].
    pub(super) fn rule(&self) -> Option<&Rule> {
        self.leaf().rule()
    }

    /// What it is counted by.
    pub(super) fn subject(&self) -> Subject<'_> {
        self.found.subject(self.entries)
    }

    /// What it does to its limits.
    pub(super) fn deed(&self) -> Deed {
        match self.hits {
            Hits::One if self.leaf().charge_denied() => Deed::Record,
            Hits::One if self.leaf().is_quota() => Deed::TakeQuota,
            Hits::One => Deed::Take,
            Hits::Charge(_) => Deed::Record,
            Hits::Probe => Deed::Peek,
            Hits::Refund(_) => Deed::Refund,
        }
    }

    /// How much it asks for.
    pub(super) fn cost(&self) -> Cost {
        match self.hits {
            Hits::One => Cost::ONE,
            Hits::Probe => Cost::ZERO,
            Hits::Charge(cost) | Hits::Refund(cost) => cost,
        }
    }
}

/// What a descriptor does to its limits. Those of a kind are one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deed {
    /// Takes one, if all can.
    Take,
    /// Takes one where there is one: others may have it instead.
    TakeQuota,
    /// Charges what has happened.
    Record,
    /// Looks.
    Peek,
    /// Gives back.
    Refund,
}

impl lookup::Entry for Entry {
    fn key(&self) -> &str {
        &self.key
    }

    fn value(&self) -> &str {
        &self.value
    }
}

/// The unit of a limit that comes with a request. The protocol has numbers for it in two places, which
/// mean the same as far as both know them.
impl TryFrom<i32> for Unit {
    type Error = Fault;

    fn try_from(number: i32) -> Result<Self, Fault> {
        Ok(match proto::Unit::try_from(number) {
            Ok(proto::Unit::Second) => Self::Second,
            Ok(proto::Unit::Minute) => Self::Minute,
            Ok(proto::Unit::Hour) => Self::Hour,
            Ok(proto::Unit::Day) => Self::Day,
            Ok(proto::Unit::Week) => Self::Week,
            Ok(proto::Unit::Month) => Self::Month,
            Ok(proto::Unit::Year) => Self::Year,
            Ok(proto::Unit::Unknown) | Err(_) => {
                let told = "a limit of a descriptor has no unit; use SECOND to YEAR";
                return Err(Fault::Invalid(told.into()));
            }
        })
    }
}
