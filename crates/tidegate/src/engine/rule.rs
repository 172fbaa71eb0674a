//! Rules: named lists of limits.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{Algorithm, Expiry, Limit};

use super::bounds;
use super::invalid_plans::InvalidPlans;
use super::rule_limit::{
    EnforcementMode, LeaseSize, LimitOrigin, OnReserve, OnStoreFailure, RuleLimit, SHADOW_PREFIX,
    Unit,
};
use crate::network::InvalidNetwork;

/// A name and the limits that apply together under it.
///
/// ```
/// use tidegate::Rule;
/// let rule = Rule::new("login", ["sliding-log 5/1m".parse()?, "fixed-window 100/d".parse()?])?;
/// assert_eq!(rule.limits()[1].policy(), "login.2");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rule {
    name: Arc<str>,
    limits: Arc<[Arc<RuleLimit>]>,
}

impl Rule {
    /// Largest number of limits in one rule.
    pub const MAX_LIMITS: usize = 16;
    /// The name of the rule of ad-hoc limits.
    pub const ADHOC: &'static str = "adhoc";
    /// The name of the rule that [`Rule::throttle`] makes.
    pub const THROTTLE: &'static str = "throttle";

    /// A rule. The name is 1 to 64 of `A-Z a-z 0-9 _ . -`, a letter or digit first, and neither
    /// [`Rule::ADHOC`] nor [`Rule::THROTTLE`].
    pub fn new(name: &str, limits: impl IntoIterator<Item = Limit>) -> Result<Self, InvalidRule> {
        Self::with_shadow(name, limits, [])
    }

    /// A rule with shadow limits: evaluated and counted, not enforced. A shadow limit is charged
    /// when the enforced limits allow a request and the shadow limit would allow it too.
    pub fn with_shadow(
        name: &str,
        limits: impl IntoIterator<Item = Limit>,
        shadow: impl IntoIterator<Item = Limit>,
    ) -> Result<Self, InvalidRule> {
        if !is_name(name) {
            return Err(InvalidRule::Name(name.into()));
        }
        if [Self::ADHOC, Self::THROTTLE].contains(&name) {
            return Err(InvalidRule::Reserved(name.into()));
        }
        let rule =
            Self::unchecked(name, limits.into_iter().collect(), shadow.into_iter().collect());
        if rule.limits.is_empty() || rule.limits.len() > Self::MAX_LIMITS {
            return Err(InvalidRule::LimitCount(rule.limits.len()));
        }
        for limit in rule.limits.iter() {
            if let Some(zone) = limit.unknown_zone() {
                return Err(InvalidRule::Zone(zone.into()));
            }
        }
        Ok(rule)
    }

    /// A rule supplied with each call, for example a tenant's plan. Rules of one name share their
    /// consumption, limit by limit of the same algorithm. A call fits if all consumption leaves
    /// room in its own limit. What was used recovers as the limit says that charged last, so a
    /// tenant with a smaller plan waits until earlier consumption fits into it; a reset ends that.
    ///
    /// The memory engine stores equal limits once, however many calls bring them.
    pub fn per_call(
        name: &str,
        limits: impl IntoIterator<Item = Limit>,
    ) -> Result<Self, InvalidRule> {
        Ok(Self::new(name, limits)?.with_origin(LimitOrigin::Call))
    }

    /// An ad-hoc limit, which belongs to no rule. The name of its state is the limit itself.
    pub fn adhoc(limit: Limit) -> Self {
        let state = format!("{}:{limit}", Self::ADHOC);
        Self::of_one(Self::ADHOC, state, limit, LimitOrigin::Call)
    }

    /// A limit supplied with each call, on a state named by the algorithm alone. Limits share it as
    /// in [`per_call`](Self::per_call).
    pub fn throttle(limit: Limit) -> Self {
        let state = format!("{}:{}1", Self::THROTTLE, limit.algorithm().name());
        Self::of_one(Self::THROTTLE, state, limit, LimitOrigin::Call)
    }

    /// A rule of one limit with this state name.
    pub(crate) fn named(name: &str, state: String, limit: Limit) -> Self {
        Self::of_one(name, state, limit, LimitOrigin::Rule)
    }

    fn of_one(name: &str, state: String, limit: Limit, origin: LimitOrigin) -> Self {
        let name: Arc<str> = name.into();
        let mut only = RuleLimit::new(&name, name.to_string(), state, limit);
        only.origin = origin;
        Self { name, limits: [Arc::new(only)].into() }
    }

    fn unchecked(name: &str, enforced: Vec<Limit>, shadow: Vec<Limit>) -> Self {
        let name: Arc<str> = name.into();
        let several = enforced.len() > 1;
        let enforced_states = state_names(format!("{name}:"), &enforced);
        let shadow_states = state_names(format!("{name}:{SHADOW_PREFIX}"), &shadow);
        let enforced =
            enforced.into_iter().zip(enforced_states).enumerate().map(|(i, (limit, state))| {
                let policy = if several { format!("{name}.{}", i + 1) } else { name.to_string() };
                RuleLimit::new(&name, policy, state, limit)
            });
        let shadow =
            shadow.into_iter().zip(shadow_states).enumerate().map(|(i, (limit, state))| {
                let policy = format!("{name}.shadow.{}", i + 1);
                let mut limit = RuleLimit::new(&name, policy, state, limit);
                limit.mode = EnforcementMode::Shadow;
                limit
            });
        let limits: Vec<RuleLimit> = enforced.chain(shadow).collect();
        // A call may leave out a `concurrency` limit, so such a limit represents the rule only if
        // there is no other.
        let first = limits.iter().position(|limit| limit.limit().lease().is_none()).unwrap_or(0);
        let limits = limits.into_iter().enumerate().map(|(i, mut limit)| {
            limit.first = i == first;
            Arc::new(limit)
        });
        Self { limits: limits.collect(), name: name.clone() }
    }

    /// Sets what happens while the store does not reply. Call it before the rule is shared: a
    /// shared rule stays as it is.
    #[must_use]
    pub fn on_store_failure(mut self, policy: OnStoreFailure) -> Self {
        self.set_on_store_failure(policy);
        self
    }

    pub(crate) fn set_on_store_failure(&mut self, policy: OnStoreFailure) {
        self.for_each_limit(|limit| limit.on_store_failure = policy);
    }

    /// Changes the limits, unless the rule is shared.
    fn for_each_limit(&mut self, change: impl Fn(&mut RuleLimit)) {
        let limits = Arc::get_mut(&mut self.limits).into_iter().flatten();
        limits.filter_map(Arc::get_mut).for_each(change);
    }

    /// Sets what the rule counts, and with it what a reservation does with the rule and when the
    /// reservation expires. Call it before the rule is shared: a shared rule stays as it is.
    #[must_use]
    pub fn unit(mut self, unit: Unit) -> Self {
        self.set_unit(unit);
        self
    }

    pub(crate) fn set_unit(&mut self, unit: Unit) {
        self.for_each_limit(|limit| limit.unit = Some(unit));
        self.set_on_reserve(unit.on_reserve());
        self.set_on_expiry(unit.on_expiry());
    }

    /// Sets what a reservation does with the rule. Call it before the rule is shared.
    #[must_use]
    pub fn on_reserve(mut self, on_reserve: OnReserve) -> Self {
        self.set_on_reserve(on_reserve);
        self
    }

    pub(crate) fn set_on_reserve(&mut self, on_reserve: OnReserve) {
        self.for_each_limit(|limit| limit.on_reserve = on_reserve);
    }

    /// Sets what happens to permits of the rule when a reservation expires. Call it before the rule
    /// is shared.
    #[must_use]
    pub fn on_expiry(mut self, on_expiry: Expiry) -> Self {
        self.set_on_expiry(on_expiry);
        self
    }

    pub(crate) fn set_on_expiry(&mut self, on_expiry: Expiry) {
        self.for_each_limit(|limit| limit.on_expiry = on_expiry);
    }

    /// Allows a process to borrow permits from the store and to decide by itself. Call it before
    /// the rule is shared: a shared rule stays as it is. `concurrency` limits, queues and shadow
    /// limits are always decided by the store.
    #[must_use]
    pub fn lease(mut self, size: LeaseSize) -> Self {
        self.set_lease(size);
        self
    }

    pub(crate) fn set_lease(&mut self, size: LeaseSize) {
        self.for_each_limit(|limit| {
            let can_lease = limit.limit().lease().is_none() && !limit.limit().is_queue();
            limit.lease_size = (can_lease && !limit.is_shadow()).then_some(size);
        });
    }

    /// Counts in states of this epoch, which begin unused. Call it before the rule is shared.
    pub(crate) fn set_epoch(&mut self, epoch: u64) {
        for limit in Arc::get_mut(&mut self.limits).into_iter().flatten() {
            if let Some(limit) = Arc::get_mut(limit) {
                limit.set_epoch(epoch);
            }
        }
    }

    /// Marks the limits as those of one plan. Call it before the rule is shared.
    pub(crate) fn for_plan(self) -> Self {
        self.with_origin(LimitOrigin::Plan)
    }

    /// Marks the limits as an override for one key. Call it before the rule is shared.
    pub(crate) fn for_one_key(self) -> Self {
        self.with_origin(LimitOrigin::Override)
    }

    fn with_origin(mut self, origin: LimitOrigin) -> Self {
        self.for_each_limit(|limit| limit.origin = origin);
        self
    }

    /// Activates the limits as of this generation. They are on different states, so they may share
    /// one generation.
    pub(crate) fn activate(&self, generation: u64) {
        for limit in self.limits.iter() {
            limit.activate(generation);
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limits in order: the enforced ones, then the shadow limits.
    pub fn limits(&self) -> &[Arc<RuleLimit>] {
        &self.limits
    }
}

/// The state name of the n-th limit of an algorithm is the algorithm and n.
fn state_names(prefix: String, limits: &[Limit]) -> Vec<String> {
    let algorithms: Vec<Algorithm> = limits.iter().map(Limit::algorithm).collect();
    let name = |(i, algorithm): (usize, &Algorithm)| {
        let nth = algorithms.iter().take(i + 1).filter(|a| *a == algorithm).count();
        format!("{prefix}{}{nth}", algorithm.name())
    };
    algorithms.iter().enumerate().map(name).collect()
}

fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
}

/// Why a rule is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidRule {
    /// Not a name.
    Name(Box<str>),
    /// No limits, or more than [`Rule::MAX_LIMITS`].
    LimitCount(usize),
    /// A time zone that is not in the database.
    Zone(Box<str>),
    /// Two rules of one name.
    Duplicate(Box<str>),
    /// A name that is reserved for ad-hoc limits.
    Reserved(Box<str>),
    /// More rules than [`Policy::MAX_RULES`](crate::Policy::MAX_RULES).
    TooManyRules,
    /// A list longer than [`PolicyRule::MAX_ENTRIES`](crate::PolicyRule::MAX_ENTRIES).
    TooManyEntries(usize),
    /// A list entry that looks like a network and is invalid.
    Entry(InvalidNetwork),
    /// A method that no request can have.
    Method(Box<str>),
    /// A host that no request can have.
    Host(Box<str>),
    /// A key of more parts than [`Key::MAX_PARTS`](crate::Key::MAX_PARTS).
    KeyParts(usize),
    /// A key part that names a segment which the path does not have.
    NoSuchSegment(Box<str>),
    /// An override whose key has another number of parts than the rule's key.
    OverrideKey {
        /// Parts of the override's key.
        given: usize,
        /// Parts of the rule's key.
        needed: usize,
    },
    /// Two overrides for one key.
    DuplicateOverride,
    /// A limit that cannot count this unit: a `concurrency` limit counts requests, and a
    /// `sliding-log` of money would hold at most 1 USD in millionths.
    Unit(Unit, Algorithm),
    /// Invalid plans.
    Plans(InvalidPlans),
    /// An estimate of zero, or above the capacity of a limit of the rule.
    Estimate {
        /// The estimate.
        given: u64,
        /// The smallest capacity of the rule.
        capacity: u64,
    },
}

impl fmt::Display for InvalidRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                f,
                "rule name {name:?}; use 1 to 64 of A-Z a-z 0-9 _ . - with a letter or digit first"
            ),
            Self::LimitCount(count) => {
                write!(
                    f,
                    "{count} limits; use 1 to {} in a rule and at most {} in all",
                    Rule::MAX_LIMITS,
                    bounds::MAX_CHARGES
                )
            }
            Self::Zone(zone) => {
                write!(f, "unknown time zone {zone:?}; use an IANA name like Europe/Berlin")
            }
            Self::Duplicate(name) => write!(f, "two rules named {name:?}; rename one"),
            Self::Reserved(name) => {
                write!(f, "the name {name:?} is reserved for ad-hoc limits; use another")
            }
            Self::TooManyRules => {
                write!(f, "too many rules; use at most {}", bounds::MAX_RULES)
            }
            Self::TooManyEntries(count) => {
                write!(f, "{count} entries in one list; use at most {}", bounds::MAX_LIST_ENTRIES)
            }
            Self::Entry(invalid) => write!(f, "in a list: {invalid}"),
            Self::Method(method) => write!(f, "method {method:?}; use one like GET or POST"),
            Self::Host(host) => write!(
                f,
                "host {host:?}; use a name like example.com or *.example.com, without a port"
            ),
            Self::KeyParts(count) => {
                write!(f, "a key of {count} parts; use at most {}", crate::Key::MAX_PARTS)
            }
            Self::NoSuchSegment(name) => write!(
                f,
                "the key names path:{name}, but the path has no {{{name}}}; write it into match.path"
            ),
            Self::OverrideKey { given, needed } => {
                write!(f, "an override for a key of {given} parts; the rule's key has {needed}")
            }
            Self::DuplicateOverride => f.write_str("two overrides for one key; remove one"),
            Self::Unit(unit, Algorithm::Concurrency) => write!(
                f,
                "a concurrency limit counts requests, not {}; put it into a rule of its own",
                unit.name()
            ),
            Self::Unit(unit, algorithm) => write!(
                f,
                "a {} holds at most {}, too few for {}: 1 USD in millionths; use fixed-window or \
                 sliding-window",
                algorithm.name(),
                Limit::MAX_LOG,
                unit.name()
            ),
            Self::Plans(invalid) => invalid.fmt(f),
            Self::Estimate { given, capacity } => write!(
                f,
                "estimate {given}; use 1 to {capacity}, the smallest capacity of the rule: above it \
                 no reservation is ever granted"
            ),
        }
    }
}

impl std::error::Error for InvalidRule {}
