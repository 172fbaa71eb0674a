//! One limit of a rule, and its settings for store failures and leases.

use std::any::Any;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use tidegate_core::{Expiry, Fraction, Limit, Micros, Moment};

use super::error::Refusal;
use crate::calendar::Calendar;
use crate::fingerprint::StateTag;
use crate::sync::atomic::{AtomicU64, Ordering};

/// One limit of a rule: what an engine charges.
#[derive(Debug)]
pub struct RuleLimit {
    rule: Arc<str>,
    policy: String,
    state: String,
    limit: Limit,
    calendar: Option<LimitZone>,
    generation: AtomicU64,
    pub(super) first: bool,
    pub(super) mode: EnforcementMode,
    pub(super) origin: LimitOrigin,
    pub(super) on_store_failure: OnStoreFailure,
    /// How many permits a process may borrow; `None` for limits that cannot be leased.
    pub(super) lease_size: Option<LeaseSize>,
    pub(super) unit: Option<Unit>,
    pub(super) on_reserve: OnReserve,
    pub(super) on_expiry: Expiry,
    /// The scaled limit of the fallback.
    local: ArcSwapOption<LocalLimit>,
    /// Of the scaled limits of one limit, the number of the change of the fraction.
    revision: u64,
    tag: StateTag,
    cached: OnceLock<Box<dyn Any + Send + Sync>>,
    /// The number that a memory engine has given this limit, in that engine's encoding; 0 if none.
    number: AtomicU64,
}

/// A limit scaled to the fraction that one process grants by itself.
#[derive(Debug)]
struct LocalLimit {
    fraction: Fraction,
    limit: Arc<RuleLimit>,
}

/// What happens under a rule while the store does not reply.
///
/// ```
/// use tidegate::{OnStoreFailure, Rule};
/// let login = Rule::new("login", ["5/m".parse()?])?.on_store_failure(OnStoreFailure::Deny);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnStoreFailure {
    /// This process counts by itself and grants this fraction of every limit, or less: see
    /// [`Fallback`](crate::Fallback).
    Fallback(Fraction),
    /// Every request is denied.
    Deny,
    /// Every request is allowed.
    Allow,
}

/// The fallback at half of every limit.
impl Default for OnStoreFailure {
    fn default() -> Self {
        Self::Fallback(Fraction::HALF)
    }
}

/// How many permits a process borrows from the store at a time; see [`Lease`](crate::Lease).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseSize {
    /// What the process spends in 250 ms.
    Auto,
    /// This many.
    Of(NonZeroU32),
}

/// What a rule counts. It decides what a reservation does with the rule, unless the rule says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Unit {
    /// Requests: charged when the reservation is made, so that long requests do not turn the rate
    /// into a concurrency limit.
    Requests,
    /// Tokens of a language model: held, and charged if the reservation expires.
    Tokens,
    /// Units of a currency: as tokens.
    Money,
}

impl Unit {
    /// What a reservation does with a rule of this unit.
    pub fn on_reserve(self) -> OnReserve {
        match self {
            Self::Requests => OnReserve::Charge,
            Self::Tokens | Self::Money => OnReserve::Hold,
        }
    }

    /// What happens to the permits of a rule of this unit when a reservation expires.
    pub fn on_expiry(self) -> Expiry {
        match self {
            Self::Requests => Expiry::Release,
            Self::Tokens | Self::Money => Expiry::Charge,
        }
    }

    /// The name in policy files and headers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Money => "money",
        }
    }
}

/// What a reservation does with a rule. `concurrency` limits are always held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum OnReserve {
    /// Charges it, as a check does.
    Charge,
    /// Holds permits until the reservation is settled.
    #[default]
    Hold,
}

/// Whether a limit is enforced or only evaluated and counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EnforcementMode {
    Enforced,
    Shadow,
}

/// Where a limit is defined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LimitOrigin {
    /// In a rule that exists independently of calls.
    Rule,
    /// In a rule, for one key alone.
    Override,
    /// In a rule, for callers of one plan: all consumption has to fit into the limit of each call.
    Plan,
    /// In the call itself: each call carries a limit, and all consumption has to fit into it.
    Call,
}

#[derive(Debug)]
enum LimitZone {
    Known(Calendar),
    Unknown(Box<str>),
}

/// Numbers limits in the order in which they were activated.
static GENERATIONS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

/// Reserves `count` generations newer than all before, and returns the first.
pub(crate) fn new_generations(count: u64) -> u64 {
    GENERATIONS.fetch_add(count, Ordering::Relaxed)
}

/// Stands between the rule and the algorithm in the state name of a shadow limit. Stored.
pub(super) const SHADOW_PREFIX: &str = "shadow:";

impl RuleLimit {
    pub(super) fn new(rule: &Arc<str>, policy: String, state: String, limit: Limit) -> Self {
        let calendar = limit.calendar().map(|(unit, zone)| {
            let zone = zone.unwrap_or("UTC");
            Calendar::new(unit, zone).map_or(LimitZone::Unknown(zone.into()), LimitZone::Known)
        });
        let tag = StateTag::new(&state);
        Self {
            rule: rule.clone(),
            policy,
            state,
            limit,
            calendar,
            generation: new_generations(1).into(),
            first: true,
            mode: EnforcementMode::Enforced,
            origin: LimitOrigin::Rule,
            on_store_failure: OnStoreFailure::default(),
            lease_size: None,
            unit: None,
            on_reserve: OnReserve::Hold,
            on_expiry: Expiry::Release,
            local: ArcSwapOption::empty(),
            revision: 0,
            tag,
            cached: OnceLock::new(),
            number: AtomicU64::new(0),
        }
    }

    /// Hash of the state name.
    pub(crate) fn tag(&self) -> StateTag {
        self.tag
    }

    /// Caches one derived value, for example the text of a header. `None` if a value of another
    /// type is cached already.
    pub fn cached<T: Any + Send + Sync>(&self, make: impl FnOnce(&Self) -> T) -> Option<&T> {
        self.cached.get_or_init(|| Box::new(make(self))).downcast_ref()
    }

    /// The number by which a memory engine knows this limit.
    pub(crate) fn number(&self) -> &AtomicU64 {
        &self.number
    }

    /// What happens while the store does not reply.
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// How many permits a process may borrow from the store at a time, if any.
    pub fn lease_size(&self) -> Option<LeaseSize> {
        self.lease_size
    }

    /// What the limit counts, if its rule says so.
    pub fn unit(&self) -> Option<Unit> {
        self.unit
    }

    /// What a reservation does with the limit.
    pub fn on_reserve(&self) -> OnReserve {
        self.on_reserve
    }

    /// What happens to permits of the limit when a reservation expires.
    pub fn on_expiry(&self) -> Expiry {
        self.on_expiry
    }

    /// The limit that the fallback counts by: this fraction of the limit.
    pub(crate) fn local(&self, fraction: Fraction) -> Arc<Self> {
        match &*self.local.load() {
            Some(local) if local.fraction == fraction => local.limit.clone(),
            _ => self.change_local(fraction),
        }
    }

    #[cold]
    fn change_local(&self, fraction: Fraction) -> Arc<Self> {
        let changed = |present: &Option<Arc<LocalLimit>>| match present {
            Some(present) if present.fraction == fraction => present.clone(),
            present => {
                let revision = present.as_ref().map_or(0, |present| present.limit.revision + 1);
                Arc::new(LocalLimit { fraction, limit: Arc::new(self.scaled(fraction, revision)) })
            }
        };
        self.local.rcu(|present| Some(changed(present)));
        // If another thread has changed it again, either one is right.
        changed(&self.local.load()).limit.clone()
    }

    fn scaled(&self, fraction: Fraction, revision: u64) -> Self {
        let limit = self.limit.scaled(fraction);
        let local = Self::new(&self.rule, self.policy.clone(), self.state.clone(), limit);
        local.generation.store(self.generation(), Ordering::Release);
        let &Self { first, origin, unit, on_reserve, on_expiry, .. } = self;
        Self { first, origin, unit, on_reserve, on_expiry, revision, ..local }
    }

    /// Whether the limit is in shadow mode: evaluated and counted, not enforced.
    pub fn is_shadow(&self) -> bool {
        self.mode == EnforcementMode::Shadow
    }

    /// Whether calls with different limits share the state: limits of a plan, those of
    /// [`Rule::per_call`](crate::Rule::per_call) and of [`Rule::throttle`](crate::Rule::throttle).
    pub fn is_per_call(&self) -> bool {
        matches!(self.origin, LimitOrigin::Plan | LimitOrigin::Call)
    }

    /// Whether the limit comes with each call, and belongs to no policy.
    pub(crate) fn is_adhoc(&self) -> bool {
        self.origin == LimitOrigin::Call
    }

    /// Whether the limit overrides a rule for one key.
    pub(crate) fn is_override(&self) -> bool {
        self.origin == LimitOrigin::Override
    }

    /// Whether the limit was activated after `other`, on the same state.
    pub(crate) fn is_newer_than(&self, other: &Self) -> bool {
        let order = |limit: &Self| (limit.generation(), limit.revision);
        self.is_per_call() || order(self) > order(other)
    }

    /// Whether this is the limit that represents its rule where each rule counts once. It is the
    /// first that is not a `concurrency` limit, since a request may leave those out.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// Order of activation on the same state. A call in flight while the limit changed must not
    /// reactivate the old limit.
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Bytes of the limit, if a memory engine has to keep it. Limits of a rule are kept by the
    /// rule; one that comes with calls is not.
    pub(crate) fn own_bytes(&self) -> usize {
        if !self.is_adhoc() {
            return 0;
        }
        let names = self.rule.len() + self.policy.capacity() + self.state.capacity();
        let zone = self.limit.calendar().map_or(0, |(_, zone)| zone.map_or(0, str::len));
        4 * size_of::<usize>() + size_of::<Self>() + names + zone
    }

    /// The name of the rule.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    pub(super) fn set_epoch(&mut self, epoch: u64) {
        self.state = format!("{}@{epoch}", self.state);
        self.tag = StateTag::new(&self.state);
    }

    /// The name in headers: that of the rule, with a number if the rule has several limits.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The name of the state: `login:sliding-log1`. A changed number keeps the state, a changed
    /// algorithm starts unused.
    pub fn state(&self) -> &str {
        &self.state
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The instant, with the calendar window around it if the limit needs one.
    #[inline]
    pub fn moment(&self, now: Micros) -> Moment {
        match &self.calendar {
            None => Moment::new(now),
            Some(zone) => self.moment_in(zone, now),
        }
    }

    fn moment_in(&self, zone: &LimitZone, now: Micros) -> Moment {
        let in_zone = self.limit.calendar().is_some_and(|(_, zone)| zone.is_some());
        match zone {
            LimitZone::Known(calendar) if in_zone => calendar.moment(now),
            // The arithmetic computes windows in UTC itself, future ones included.
            LimitZone::Known(_) | LimitZone::Unknown(_) => Moment::new(now),
        }
    }

    /// Boundaries of the calendar windows around `now`, for an engine whose clock may differ; empty
    /// if the limit does not follow the calendar.
    pub fn boundaries(&self, now: Micros) -> Vec<Micros> {
        match &self.calendar {
            Some(LimitZone::Known(calendar)) => calendar.boundaries(now),
            Some(LimitZone::Unknown(_)) | None => Vec::new(),
        }
    }

    /// The limit of a rule as it was stored with a hold, to settle the hold by.
    pub fn stored(rule: &str, policy: &str, state: &str, limit: Limit) -> Self {
        let name: Arc<str> = rule.into();
        let shadow = state.strip_prefix(rule).and_then(|rest| rest.strip_prefix(':'));
        let is_shadow = shadow.is_some_and(|rest| rest.starts_with(SHADOW_PREFIX));
        let mode = if is_shadow { EnforcementMode::Shadow } else { EnforcementMode::Enforced };
        let stored = Self::new(&name, policy.to_string(), state.to_string(), limit);
        // The oldest generation: settling an old hold must not reactivate its limit.
        stored.generation.store(0, Ordering::Relaxed);
        Self { mode, ..stored }
    }

    /// Refuses a limit whose time zone does not exist.
    pub(crate) fn check_zone(&self) -> Result<(), Refusal> {
        self.unknown_zone().map_or(Ok(()), |zone| Err(Refusal::UnknownZone(zone.into())))
    }

    /// The time zone of the limit, if it does not exist.
    pub(super) fn unknown_zone(&self) -> Option<&str> {
        match &self.calendar {
            Some(LimitZone::Unknown(zone)) => Some(zone),
            Some(LimitZone::Known(_)) | None => None,
        }
    }

    /// Activates the limit as of this generation.
    pub(super) fn activate(&self, generation: u64) {
        self.generation.store(generation, Ordering::Release);
        if let Some(local) = &*self.local.load() {
            local.limit.generation.store(generation, Ordering::Release);
        }
    }
}

/// Compares names, limit and what a reservation does with it, not the generation.
impl PartialEq for RuleLimit {
    fn eq(&self, other: &Self) -> bool {
        (&self.rule, &self.policy, &self.state) == (&other.rule, &other.policy, &other.state)
            && self.limit == other.limit
            && (self.on_reserve, self.on_expiry) == (other.on_reserve, other.on_expiry)
    }
}

impl Eq for RuleLimit {}
