//! Rules: named lists of limits.

use std::any::Any;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock};

use tidegate_core::{Algorithm, Limit, Micros, Moment, Share};

use crate::address::InvalidNetwork;
use crate::calendar::Calendar;
use crate::engine::Refusal;
use crate::fingerprint::StateTag;
use crate::sync::atomic::{AtomicU64, Ordering};

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

/// One limit of a rule: what an engine charges.
#[derive(Debug)]
pub struct RuleLimit {
    rule: Arc<str>,
    policy: String,
    state: String,
    limit: Limit,
    calendar: Option<Zone>,
    generation: AtomicU64,
    first: bool,
    decides: Decides,
    comes_from: Origin,
    on_store_failure: OnStoreFailure,
    /// How much a process may borrow of it; nothing where that would mean nothing.
    lease_size: Option<LeaseSize>,
    /// The limit that is gone by while the store does not answer, once it was asked for.
    local: OnceLock<Arc<Self>>,
    tag: StateTag,
    memo: OnceLock<Box<dyn Any + Send + Sync>>,
    /// Its number in the memory engine that has it, as that engine writes it; 0 if it has none.
    number: AtomicU64,
}

/// What happens under a rule while the store does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnStoreFailure {
    /// This process counts alone, and grants this share of every limit.
    Fallback(Share),
    /// Everything is denied.
    Deny,
    /// Everything passes.
    Allow,
}

/// A half of every limit.
impl Default for OnStoreFailure {
    fn default() -> Self {
        Self::Fallback(Share::HALF)
    }
}

/// How many permits of a rule a process borrows from the store at a time; see
/// [`Lease`](crate::Lease).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeaseSize {
    /// What it spends in a quarter of a second.
    Auto,
    /// This many.
    Of(NonZeroU32),
}

/// Does a limit decide, or only look on?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decides {
    Yes,
    LooksOn,
}

/// Where a limit comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    /// From a rule, which is there anyway.
    Rule,
    /// From a rule, for one key alone.
    Override,
    /// With a call: each call brings its own, and it is the newest.
    Call,
}

/// Counts limits in the order in which they came into force.
static GENERATIONS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

/// The first of `count` generations that are newer than all before.
pub(crate) fn new_generations(count: u64) -> u64 {
    GENERATIONS.fetch_add(count, Ordering::Relaxed)
}

#[derive(Debug)]
enum Zone {
    Known(Calendar),
    Unknown(Box<str>),
}

impl Rule {
    /// The most limits in one rule.
    pub const MAX_LIMITS: usize = 16;
    /// The name of the rule that ad-hoc limits belong to.
    pub const ADHOC: &'static str = "adhoc";
    /// The name of the rule that [`Rule::throttle`] makes.
    pub const THROTTLE: &'static str = "throttle";

    /// A rule. The name is one to 64 of `A-Z a-z 0-9 _ . -`, a letter or digit first, and neither
    /// [`Rule::ADHOC`] nor [`Rule::THROTTLE`].
    pub fn new(name: &str, limits: impl IntoIterator<Item = Limit>) -> Result<Self, InvalidRule> {
        Self::with_shadow(name, limits, [])
    }

    /// A rule in which some limits only look on. What they would have denied passes; they are
    /// charged when those that decide allow a request and they would themselves.
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
            if let Some(Zone::Unknown(zone)) = &limit.calendar {
                return Err(InvalidRule::Zone(zone.clone()));
            }
        }
        Ok(rule)
    }

    /// A rule that comes with every call anew, as the plan that a tenant has paid for does. Of
    /// several such rules of one name, the one that came with the latest charge counts, and what was
    /// used under another is kept, at most up to the new limit: a tenant who changes plans keeps
    /// what is used, limit by limit of the same algorithm.
    ///
    /// Make each plan once and pass it on. The memory engine counts the bytes of its limits for every key,
    /// as if each call had made its own.
    pub fn brought_along(
        name: &str,
        limits: impl IntoIterator<Item = Limit>,
    ) -> Result<Self, InvalidRule> {
        Ok(Self::new(name, limits)?.coming_from(Origin::Call))
    }

    /// A limit that belongs to no rule. Its state goes by the limit itself.
    pub fn adhoc(limit: Limit) -> Self {
        let state = format!("{}:{limit}", Self::ADHOC);
        Self::of_one(Self::ADHOC, state, limit, Origin::Call)
    }

    /// A limit that comes with every call anew, on a state that goes by the algorithm alone: the
    /// limit of the latest call counts, and what was used before is kept.
    pub fn throttle(limit: Limit) -> Self {
        let state = format!("{}:{}1", Self::THROTTLE, limit.algorithm().name());
        Self::of_one(Self::THROTTLE, state, limit, Origin::Call)
    }

    /// A rule of one limit whose state goes by this name.
    pub(crate) fn named(name: &str, state: String, limit: Limit) -> Self {
        Self::of_one(name, state, limit, Origin::Rule)
    }

    fn of_one(name: &str, state: String, limit: Limit, comes_from: Origin) -> Self {
        let name: Arc<str> = name.into();
        let only = RuleLimit::new(&name, name.to_string(), state, limit);
        Self { name, limits: [Arc::new(RuleLimit { comes_from, ..only })].into() }
    }

    fn unchecked(name: &str, enforced: Vec<Limit>, shadow: Vec<Limit>) -> Self {
        let name: Arc<str> = name.into();
        let several = enforced.len() > 1;
        let deciding = state_names(format!("{name}:"), &enforced);
        let looking_on = state_names(format!("{name}:{SHADOW}"), &shadow);
        let enforced = enforced.into_iter().zip(deciding).enumerate().map(|(i, (limit, state))| {
            let policy = if several { format!("{name}.{}", i + 1) } else { name.to_string() };
            RuleLimit::new(&name, policy, state, limit)
        });
        let shadow = shadow.into_iter().zip(looking_on).enumerate().map(|(i, (limit, state))| {
            let policy = format!("{name}.shadow.{}", i + 1);
            RuleLimit { decides: Decides::LooksOn, ..RuleLimit::new(&name, policy, state, limit) }
        });
        let limits: Vec<RuleLimit> = enforced.chain(shadow).collect();
        // One that counts holders may be left out of a call, so it stands for the rule only if
        // there is no other.
        let first = limits.iter().position(|limit| limit.limit.lease().is_none()).unwrap_or(0);
        let limits = limits.into_iter().enumerate();
        let limits = limits.map(|(i, limit)| Arc::new(RuleLimit { first: i == first, ..limit }));
        Self { limits: limits.collect(), name: name.clone() }
    }

    /// The same limits with what happens while the store does not answer. Made for a rule that
    /// nobody else has yet; another one stays as it is.
    #[must_use]
    pub fn on_store_failure(mut self, what: OnStoreFailure) -> Self {
        self.set_on_store_failure(what);
        self
    }

    pub(crate) fn set_on_store_failure(&mut self, what: OnStoreFailure) {
        for limit in Arc::get_mut(&mut self.limits).into_iter().flatten() {
            if let Some(limit) = Arc::get_mut(limit) {
                limit.on_store_failure = what;
            }
        }
    }

    /// The same limits, of which a process may borrow some from the store to decide by itself. Made for a
    /// rule that nobody else has yet; another one stays as it is. Limits that count holders, that
    /// queue, or that only look on are asked of the store every time.
    #[must_use]
    pub fn lease(mut self, size: LeaseSize) -> Self {
        self.set_lease(size);
        self
    }

    pub(crate) fn set_lease(&mut self, size: LeaseSize) {
        for limit in Arc::get_mut(&mut self.limits).into_iter().flatten() {
            if let Some(limit) = Arc::get_mut(limit) {
                let counts = limit.limit.lease().is_none() && !limit.limit.is_queue();
                limit.lease_size = (counts && !limit.is_shadow()).then_some(size);
            }
        }
    }

    /// The same limits for one key alone. Made for a rule that nobody else has yet.
    pub(crate) fn for_one_key(self) -> Self {
        self.coming_from(Origin::Override)
    }

    fn coming_from(mut self, origin: Origin) -> Self {
        for limit in Arc::get_mut(&mut self.limits).into_iter().flatten() {
            if let Some(limit) = Arc::get_mut(limit) {
                limit.comes_from = origin;
            }
        }
        self
    }

    /// Makes its limits come into force as this generation. They are on different states, so that
    /// it is not asked which of them is the newest.
    pub(crate) fn enact_as(&self, generation: u64) {
        for limit in self.limits.iter() {
            limit.generation.store(generation, Ordering::Release);
            if let Some(local) = limit.local.get() {
                local.generation.store(generation, Ordering::Release);
            }
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limits in order: those that decide, then those that only look on.
    pub fn limits(&self) -> &[Arc<RuleLimit>] {
        &self.limits
    }
}

/// Comes between the rule and the algorithm in the name of the state of a limit that looks on.
const SHADOW: &str = "shadow:";

/// The n-th limit of an algorithm goes by the algorithm and n.
fn state_names(prefix: String, limits: &[Limit]) -> Vec<String> {
    let algorithms: Vec<Algorithm> = limits.iter().map(Limit::algorithm).collect();
    let name = |(i, algorithm): (usize, &Algorithm)| {
        let nth = algorithms.iter().take(i + 1).filter(|a| *a == algorithm).count();
        format!("{prefix}{}{nth}", algorithm.name())
    };
    algorithms.iter().enumerate().map(name).collect()
}

impl RuleLimit {
    fn new(rule: &Arc<str>, policy: String, state: String, limit: Limit) -> Self {
        let calendar = limit.calendar().map(|(unit, zone)| {
            let zone = zone.unwrap_or("UTC");
            Calendar::new(unit, zone).map_or(Zone::Unknown(zone.into()), Zone::Known)
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
            decides: Decides::Yes,
            comes_from: Origin::Rule,
            on_store_failure: OnStoreFailure::default(),
            lease_size: None,
            local: OnceLock::new(),
            tag,
            memo: OnceLock::new(),
            number: AtomicU64::new(0),
        }
    }

    /// Stands for the name of its state.
    pub(crate) fn tag(&self) -> StateTag {
        self.tag
    }

    /// What somebody makes of this limit and wants to make only once, such as the text of a header.
    /// There is room for one thing: `None` if somebody has kept one of another type.
    pub fn memo<T: Any + Send + Sync>(&self, make: impl FnOnce(&Self) -> T) -> Option<&T> {
        self.memo.get_or_init(|| Box::new(make(self))).downcast_ref()
    }

    /// For the memory engine that counts by it to remember it by.
    pub(crate) fn number(&self) -> &AtomicU64 {
        &self.number
    }

    /// What happens while the store does not answer.
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// How many of its permits a process may borrow from the store at a time, if any.
    pub fn lease_size(&self) -> Option<LeaseSize> {
        self.lease_size
    }

    /// The limit that is gone by while the store does not answer: a share of this one.
    pub(crate) fn local(&self, share: Share) -> &Arc<Self> {
        self.local.get_or_init(|| {
            let limit = self.limit.scaled(share);
            let local = Self::new(&self.rule, self.policy.clone(), self.state.clone(), limit);
            local.generation.store(self.generation(), Ordering::Release);
            Arc::new(Self { first: self.first, comes_from: self.comes_from, ..local })
        })
    }

    /// Does it only look on? What it would have denied passes.
    pub fn is_shadow(&self) -> bool {
        self.decides == Decides::LooksOn
    }

    /// Has a call brought it along?
    pub(crate) fn comes_with_call(&self) -> bool {
        self.comes_from == Origin::Call
    }

    /// Is it there for one key alone?
    pub(crate) fn is_override(&self) -> bool {
        self.comes_from == Origin::Override
    }

    /// Has it come into force after `other`, on the same state?
    pub(crate) fn is_newer_than(&self, other: &Self) -> bool {
        self.comes_from == Origin::Call || self.generation() > other.generation()
    }

    /// Is it the first limit of its rule? It stands for the rule where each is to count once. Limits
    /// that count holders come last here, since a request leaves them out.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// Which of two limits on the same state is the newer: a call that was on its way while the
    /// limit changed must not bring the old one back.
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Bytes that are kept for the sake of one key. A rule is there anyway; an ad-hoc limit comes
    /// with every call anew.
    pub(crate) fn own_bytes(&self) -> usize {
        if self.comes_from != Origin::Call {
            return 0;
        }
        let names = self.rule.len() + self.policy.capacity() + self.state.capacity();
        let zone = self.limit.calendar().map_or(0, |(_, zone)| zone.map_or(0, str::len));
        4 * size_of::<usize>() + size_of::<Self>() + names + zone
    }

    /// The rule it belongs to.
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// Its name in headers: the rule's, with a number if the rule has several limits.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The name its state goes by: `login:sliding-log1`. A changed number keeps the state, a
    /// changed algorithm starts unused.
    pub fn state(&self) -> &str {
        &self.state
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// The instant with the calendar window around it, if the limit wants one.
    #[inline]
    pub fn moment(&self, now: Micros) -> Moment {
        match &self.calendar {
            None => Moment::new(now),
            Some(zone) => self.moment_in(zone, now),
        }
    }

    fn moment_in(&self, zone: &Zone, now: Micros) -> Moment {
        let in_zone = self.limit.calendar().is_some_and(|(_, zone)| zone.is_some());
        match zone {
            Zone::Known(calendar) if in_zone => calendar.moment(now),
            // The arithmetic knows UTC by itself, and the windows to come as well.
            Zone::Known(_) | Zone::Unknown(_) => Moment::new(now),
        }
    }

    /// The boundaries of the calendar windows around `now`, for an engine whose clock may show
    /// another instant; none if the limit does not follow the calendar.
    pub fn boundaries(&self, now: Micros) -> Vec<Micros> {
        match &self.calendar {
            Some(Zone::Known(calendar)) => calendar.boundaries(now),
            Some(Zone::Unknown(_)) | None => Vec::new(),
        }
    }

    /// The limit of a rule as it was stored with a hold, to settle it by.
    pub fn stored(rule: &str, policy: &str, state: &str, limit: Limit) -> Self {
        let name: Arc<str> = rule.into();
        let looks_on = state.strip_prefix(rule).and_then(|rest| rest.strip_prefix(':'));
        let looks_on = looks_on.is_some_and(|rest| rest.starts_with(SHADOW));
        let decides = if looks_on { Decides::LooksOn } else { Decides::Yes };
        let stored = Self::new(&name, policy.to_string(), state.to_string(), limit);
        // It is the oldest of all: it must not bring itself back into force.
        stored.generation.store(0, Ordering::Relaxed);
        Self { decides, ..stored }
    }

    /// Refuses a limit whose zone does not exist; nothing could be decided by it.
    pub(crate) fn check_zone(&self) -> Result<(), Refusal> {
        match &self.calendar {
            Some(Zone::Unknown(zone)) => Err(Refusal::UnknownZone(zone.clone())),
            Some(Zone::Known(_)) | None => Ok(()),
        }
    }
}

/// The same names and the same limit; not when it came into force.
impl PartialEq for RuleLimit {
    fn eq(&self, other: &Self) -> bool {
        (&self.rule, &self.policy, &self.state) == (&other.rule, &other.policy, &other.state)
            && self.limit == other.limit
    }
}

impl Eq for RuleLimit {}

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
    /// None, or more than [`Rule::MAX_LIMITS`].
    LimitCount(usize),
    /// A zone that is not in the database.
    Zone(Box<str>),
    /// Two rules of one name.
    Duplicate(Box<str>),
    /// A name that is kept for limits that come with a call.
    Reserved(Box<str>),
    /// More rules than [`Policy::MAX_RULES`](crate::Policy::MAX_RULES).
    TooManyRules,
    /// A list longer than [`PolicyRule::MAX_ENTRIES`](crate::PolicyRule::MAX_ENTRIES).
    TooManyEntries(usize),
    /// An entry of a list that was meant to be a network and is none.
    Entry(InvalidNetwork),
    /// A method that no request has.
    Method(Box<str>),
    /// A host that no request has.
    Host(Box<str>),
    /// A key of more parts than [`Key::MAX_PARTS`](crate::Key::MAX_PARTS).
    KeyParts(usize),
    /// A key that names a segment the path does not have.
    NoSuchSegment(Box<str>),
    /// An override for a key of another number of parts.
    OverrideKey {
        /// The parts it names.
        given: usize,
        /// The parts that the rule's key has.
        needed: usize,
    },
    /// Two overrides for one key.
    DuplicateOverride,
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
                    crate::Call::MAX_CHARGES
                )
            }
            Self::Zone(zone) => {
                write!(f, "unknown time zone {zone:?}; use an IANA name like Europe/Berlin")
            }
            Self::Duplicate(name) => write!(f, "two rules named {name:?}; rename one"),
            Self::Reserved(name) => {
                write!(f, "the name {name:?} is kept for limits that come with a call; use another")
            }
            Self::TooManyRules => {
                write!(f, "too many rules; use at most {}", crate::Policy::MAX_RULES)
            }
            Self::TooManyEntries(count) => write!(
                f,
                "{count} entries in one list; use at most {}",
                crate::PolicyRule::MAX_ENTRIES
            ),
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
        }
    }
}

impl std::error::Error for InvalidRule {}
