//! Rules: named lists of limits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Algorithm, Limit, Micros, Moment};

use crate::calendar::Calendar;
use crate::engine::Refusal;

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
}

/// Counts limits in the order in which they came into force.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

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

    /// A rule. The name is one to 64 of `A-Z a-z 0-9 _ . -`, a letter or digit first.
    pub fn new(name: &str, limits: impl IntoIterator<Item = Limit>) -> Result<Self, InvalidRule> {
        if !is_name(name) {
            return Err(InvalidRule::Name(name.into()));
        }
        let rule = Self::unchecked(name, limits.into_iter().collect());
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

    /// A limit that belongs to no rule. Its state goes by the limit itself.
    pub fn adhoc(limit: Limit) -> Self {
        Self::of_one(Self::ADHOC, format!("{}:{limit}", Self::ADHOC), limit)
    }

    /// A rule of one limit whose state goes by this name.
    pub(crate) fn of_one(name: &str, state: String, limit: Limit) -> Self {
        let name: Arc<str> = name.into();
        let only = RuleLimit::new(&name, name.to_string(), state, limit);
        Self { name, limits: [Arc::new(only)].into() }
    }

    fn unchecked(name: &str, limits: Vec<Limit>) -> Self {
        let name: Arc<str> = name.into();
        let algorithms: Vec<Algorithm> = limits.iter().map(Limit::algorithm).collect();
        let several = limits.len() > 1;
        let limits = limits.into_iter().enumerate().map(|(i, limit)| {
            let policy = if several { format!("{name}.{}", i + 1) } else { name.to_string() };
            let algorithm = limit.algorithm();
            let nth = algorithms.iter().take(i + 1).filter(|a| **a == algorithm).count();
            let state = format!("{name}:{}{nth}", algorithm.name());
            Arc::new(RuleLimit { first: i == 0, ..RuleLimit::new(&name, policy, state, limit) })
        });
        Self { limits: limits.collect(), name: name.clone() }
    }

    /// Makes its limits the newest: they come into force now.
    pub(crate) fn enact(&self) {
        for limit in self.limits.iter() {
            let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
            limit.generation.store(generation, Ordering::Relaxed);
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limits in order.
    pub fn limits(&self) -> &[Arc<RuleLimit>] {
        &self.limits
    }
}

impl RuleLimit {
    fn new(rule: &Arc<str>, policy: String, state: String, limit: Limit) -> Self {
        let calendar = limit.calendar().map(|(unit, zone)| {
            let zone = zone.unwrap_or("UTC");
            Calendar::new(unit, zone).map_or(Zone::Unknown(zone.into()), Zone::Known)
        });
        let generation = AtomicU64::new(GENERATIONS.fetch_add(1, Ordering::Relaxed));
        Self { rule: rule.clone(), policy, state, limit, calendar, generation, first: true }
    }

    /// Is it the first limit of its rule? It stands for the rule where each is to count once.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// Which of two limits on the same state is the newer: a call that was on its way while the
    /// limit changed must not bring the old one back.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Bytes that are kept for the sake of one key. A rule is there anyway; an ad-hoc limit comes
    /// with every call anew.
    pub(crate) fn own_bytes(&self) -> usize {
        if &*self.rule != Rule::ADHOC {
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
    pub fn moment(&self, now: Micros) -> Moment {
        let in_zone = self.limit.calendar().is_some_and(|(_, zone)| zone.is_some());
        match &self.calendar {
            Some(Zone::Known(calendar)) if in_zone => calendar.moment(now),
            // The arithmetic knows UTC by itself, and the windows to come as well.
            _ => Moment::new(now),
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
    pub fn stored(rule: &str, state: &str, limit: Limit) -> Self {
        let rule: Arc<str> = rule.into();
        let stored = Self::new(&rule, rule.to_string(), state.to_string(), limit);
        // It is the oldest of all: it must not bring itself back into force.
        stored.generation.store(0, Ordering::Relaxed);
        stored
    }

    /// Refuses a limit whose zone does not exist; nothing could be decided by it.
    pub(crate) fn check_zone(&self) -> Result<(), Refusal> {
        match &self.calendar {
            Some(Zone::Unknown(zone)) => Err(Refusal::UnknownZone(zone.clone())),
            Some(Zone::Known(_)) | None => Ok(()),
        }
    }
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
    /// None, or more than [`Rule::MAX_LIMITS`].
    LimitCount(usize),
    /// A zone that is not in the database.
    Zone(Box<str>),
    /// Two rules of one name.
    Duplicate(Box<str>),
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
        }
    }
}

impl std::error::Error for InvalidRule {}
