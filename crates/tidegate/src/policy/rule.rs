//! One rule of a policy: matches, key, limits, lists and overrides.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{Algorithm, Cost, Expiry, Limit, Micros};

use super::key_part::{KeyPart, OnMissingKey};
use super::matching::Match;
use super::rule_plans::{PlanDraft, RulePlans};
use crate::engine::{bounds, new_generations};
use crate::network::{ClientNetwork, Network};
use crate::{InvalidPlans, InvalidRule};
use crate::{Key, LeaseSize, OnReserve, OnStoreFailure, Rule, RuleLimit, Unit};

/// Unchecked fields of a rule. [`PolicyRule::new`] checks them.
#[derive(Clone, Default, Debug)]
pub struct RuleDraft {
    /// The name.
    pub name: String,
    /// The requests that it matches.
    pub matches: Match,
    /// The parts of the key; empty counts all requests together.
    pub key: Vec<KeyPart>,
    /// What happens to a request that lacks a part of the key.
    pub on_missing_key: OnMissingKey,
    /// The enforced limits.
    pub limits: Vec<Limit>,
    /// Limits by plan, instead of `limits`.
    pub plans: Option<PlanDraft>,
    /// Shadow limits: evaluated and counted, not enforced.
    pub shadow_limits: Vec<Limit>,
    /// Runs the rule in shadow mode: its limits, its lists and its `then`.
    pub enforcement: Enforcement,
    /// Whether later rules are evaluated.
    pub then: AfterMatch,
    /// The header with the cost of a request.
    pub cost_header: Option<Box<str>>,
    /// What the rule counts; `None` for plain permits.
    pub unit: Option<Unit>,
    /// The cost of a reservation that names none.
    pub estimate: Option<u64>,
    /// Limits of single keys.
    pub overrides: Vec<Override>,
    /// Clients and keys that are exempt.
    pub allow: Vec<ListEntry>,
    /// Clients and keys that are denied, exempt or not.
    pub deny: Vec<ListEntry>,
}

/// Whether a rule is enforced.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Enforcement {
    /// Denials of the rule are enforced.
    #[default]
    Enforce,
    /// Shadow mode: the rule is evaluated and its denials are counted. It denies and exempts no
    /// request, and does not stop the evaluation of later rules.
    Shadow,
}

/// What follows a rule that applies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum AfterMatch {
    /// The next rule is evaluated.
    #[default]
    Continue,
    /// No later rule is evaluated.
    Stop,
}

/// Limits of one key, permanently or until a given time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Override {
    /// The key, in its parts.
    pub key: Vec<String>,
    /// The limits of this key.
    pub limits: Vec<Limit>,
    /// When the override ends.
    pub until: Option<Micros>,
}

/// Entry of an allow or deny list: network, address or key.
///
/// A network or an address is compared with the client address, whatever the rule counts by. Any
/// other entry is compared with a key of one part. An address on a deny list is also compared with
/// the key; on an allow list it is not: a key equal to an exempt address grants no exemption.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListEntry {
    network: Option<Network>,
    key: Option<Box<str>>,
}

impl From<&str> for ListEntry {
    fn from(text: &str) -> Self {
        let network = text.parse().ok();
        let is_block = network.is_some() && text.contains('/');
        Self { network, key: (!is_block).then(|| text.into()) }
    }
}

impl ListEntry {
    fn denies(&self, key: Key<'_>, client: Option<IpAddr>) -> bool {
        self.has_client(client) || self.is_key(key)
    }

    fn exempts(&self, key: Key<'_>, client: Option<IpAddr>) -> bool {
        if self.network.is_some() { self.has_client(client) } else { self.is_key(key) }
    }

    fn has_client(&self, client: Option<IpAddr>) -> bool {
        self.network.zip(client).is_some_and(|(network, ip)| network.contains(ip))
    }

    fn is_key(&self, key: Key<'_>) -> bool {
        self.key.as_ref().is_some_and(|text| key.is(&[&**text]))
    }

    /// Refuses an address with an invalid prefix: as a key it would never match.
    fn check(&self) -> Result<(), InvalidRule> {
        let text = self.key.as_ref().filter(|_| self.network.is_none());
        let Some((text, (host, _))) = text.and_then(|text| Some((text, text.split_once('/')?)))
        else {
            return Ok(());
        };
        match (host.parse::<IpAddr>(), text.parse::<Network>()) {
            (Ok(_), Err(invalid)) => Err(InvalidRule::Entry(invalid)),
            _ => Ok(()),
        }
    }
}

/// One rule of a policy.
#[derive(Debug)]
pub struct PolicyRule {
    pub(super) rule: Rule,
    pub(super) matches: Match,
    pub(super) key: Vec<KeyPart>,
    pub(super) on_missing_key: OnMissingKey,
    pub(super) then: AfterMatch,
    pub(super) cost_header: Option<Box<str>>,
    estimate: Option<Cost>,
    /// The plans; `rule` has the limits of the default plan.
    pub(super) plans: Option<RulePlans>,
    enforcement: Enforcement,
    overrides: OverrideIndex,
    /// The limits of `rule` again, for keys whose override has ended: newer than the override,
    /// while those of `rule` are older.
    after_override: Option<Rule>,
    allow: Vec<ListEntry>,
    deny: Vec<ListEntry>,
}

/// The result of the lists of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ListMatch {
    NotListed,
    Allowed,
    Denied,
}

impl PolicyRule {
    /// Largest number of entries in each list of a rule, and of overrides.
    pub const MAX_ENTRIES: usize = bounds::MAX_LIST_ENTRIES;

    /// Checks the draft.
    pub fn new(draft: RuleDraft) -> Result<Self, InvalidRule> {
        let RuleDraft { name, mut key, on_missing_key, then, mut cost_header, enforcement, .. } =
            draft;
        let matches = draft.matches.normalized()?;
        let headers = key.iter_mut().filter_map(|part| match part {
            KeyPart::Header(name) => Some(name),
            _ => None,
        });
        // [`Request::header`](super::Request::header) takes names in lower case.
        headers.chain(&mut cost_header).for_each(|name| name.make_ascii_lowercase());
        let build = |limits: Vec<Limit>| {
            let rule = match enforcement {
                Enforcement::Enforce => {
                    Rule::with_shadow(&name, limits, draft.shadow_limits.clone())?
                }
                Enforcement::Shadow => {
                    let all = limits.into_iter().chain(draft.shadow_limits.iter().cloned());
                    Rule::with_shadow(&name, [], all)?
                }
            };
            let rule = with_unit(rule, draft.unit)?;
            Ok(if draft.plans.is_some() { rule.for_plan() } else { rule })
        };
        for list in [draft.allow.len(), draft.deny.len(), draft.overrides.len()] {
            if list > Self::MAX_ENTRIES {
                return Err(InvalidRule::TooManyEntries(list));
            }
        }
        draft.allow.iter().chain(&draft.deny).try_for_each(ListEntry::check)?;
        check_key(&key, &matches)?;
        let mut overrides = OverrideIndex::default();
        for Override { key: of, limits, until } in draft.overrides {
            let parts = normalized(&key, of.iter().map(String::as_str));
            if !key.is_empty() && parts.len() != key.len() {
                return Err(InvalidRule::OverrideKey { given: parts.len(), needed: key.len() });
            }
            // Shadow limits do not count: the key would have no enforced limit.
            if limits.is_empty() {
                return Err(InvalidRule::LimitCount(0));
            }
            let limits = build(limits)?;
            // Beside plans, an override is one more plan.
            let limits = if draft.plans.is_some() { limits } else { limits.for_one_key() };
            overrides.add(parts, limits, until)?;
        }
        let (limits, smallest) = default_limits(draft.limits, draft.plans.as_ref())?;
        let estimate = draft.estimate.map(|cost| checked_estimate(cost, smallest));
        let any_ends = overrides.all.iter().any(|one| one.until.is_some());
        // The limits of plans are in no order of activation.
        let after_override = any_ends && draft.plans.is_none();
        let rule = Self {
            rule: build(limits.clone())?,
            plans: draft.plans.clone().map(|plans| RulePlans::new(plans, build)).transpose()?,
            matches,
            key,
            on_missing_key,
            then,
            cost_header,
            estimate: estimate.transpose()?,
            enforcement,
            overrides,
            after_override: after_override.then(|| build(limits)).transpose()?,
            allow: draft.allow,
            deny: draft.deny,
        };
        rule.activate();
        Ok(rule)
    }

    /// A rule that matches every request and counts all of them together.
    pub(super) fn plain(rule: Rule) -> Self {
        Self {
            rule,
            matches: Match::default(),
            key: Vec::new(),
            on_missing_key: OnMissingKey::default(),
            then: AfterMatch::default(),
            cost_header: None,
            estimate: None,
            plans: None,
            enforcement: Enforcement::default(),
            overrides: OverrideIndex::default(),
            after_override: None,
            allow: Vec::new(),
            deny: Vec::new(),
        }
    }

    /// Sets what happens while the store does not reply. Call it before the rule is in use.
    #[must_use]
    pub fn on_store_failure(self, policy: OnStoreFailure) -> Self {
        self.each_rule(|rule| rule.set_on_store_failure(policy))
    }

    /// Sets what a reservation does with the rule; see [`Rule::on_reserve`]. Call it before the
    /// rule is in use.
    #[must_use]
    pub fn on_reserve(self, on_reserve: OnReserve) -> Self {
        self.each_rule(|rule| rule.set_on_reserve(on_reserve))
    }

    /// Sets what happens when a reservation expires; see [`Rule::on_expiry`]. Call it before the
    /// rule is in use.
    #[must_use]
    pub fn on_expiry(self, on_expiry: Expiry) -> Self {
        self.each_rule(|rule| rule.set_on_expiry(on_expiry))
    }

    /// Changes the limits of all keys.
    fn each_rule(mut self, change: impl Fn(&mut Rule)) -> Self {
        change(&mut self.rule);
        self.other_plans_mut().for_each(&change);
        self.after_override.iter_mut().for_each(&change);
        self.overrides.all.iter_mut().for_each(|one| change(&mut one.rule));
        self
    }

    /// Allows a process to borrow permits from the store; see [`Rule::lease`]. Call it before the
    /// rule is in use.
    #[must_use]
    pub fn lease(self, size: LeaseSize) -> Self {
        self.each_rule(|rule| rule.set_lease(size))
    }

    /// Gives every key of the rule unused limits: it counts in states of this epoch. Call it once,
    /// before the rule is in use.
    #[must_use]
    pub fn epoch(self, epoch: u64) -> Self {
        self.each_rule(|rule| rule.set_epoch(epoch))
    }

    fn other_plans_mut(&mut self) -> impl Iterator<Item = &mut Rule> {
        self.plans.iter_mut().flat_map(|plans| &mut plans.others).map(|(_, rule)| rule)
    }

    /// The plans with their limits, the default plan first; none if all keys have the same limits.
    pub fn plans(&self) -> impl Iterator<Item = (&str, &Rule)> {
        self.plans.iter().flat_map(|plans| {
            let others = plans.others.iter().map(|(name, rule)| (&**name, rule));
            std::iter::once((&*plans.default_name, &self.rule)).chain(others)
        })
    }

    /// The limits of a plan and its name; `None` if there is no such plan.
    pub(super) fn plan(&self, name: &str) -> Option<(&str, &Rule)> {
        let plans = self.plans.as_ref()?;
        if *plans.default_name == *name {
            return Some((&plans.default_name, &self.rule));
        }
        plans.other(name)
    }

    /// The name and limits; of a rule with plans, those of the default plan.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.rule.name()
    }

    /// The requests that it matches.
    pub fn matches(&self) -> &Match {
        &self.matches
    }

    /// The parts of the key.
    pub fn key(&self) -> &[KeyPart] {
        &self.key
    }

    /// What happens to a request that lacks a part of the key.
    pub fn on_missing_key(&self) -> OnMissingKey {
        self.on_missing_key
    }

    /// What the rule counts; `None` for plain permits.
    pub fn unit(&self) -> Option<Unit> {
        self.rule.limits().first().and_then(|limit| limit.unit())
    }

    /// The cost of a reservation that names none.
    pub fn estimate(&self) -> Option<Cost> {
        self.estimate
    }

    /// Activates all limits: they are the newest from now on. Of the limits of one key, the
    /// override is newer than what it overrides, and older than what follows it. So a call in
    /// flight with an earlier limit, or with an override that has ended meanwhile, reactivates
    /// nothing.
    pub(crate) fn activate(&self) {
        let base = new_generations(3);
        // The newest first: no limit is ever older than its predecessor.
        self.after_override.iter().for_each(|rule| rule.activate(base + 2));
        self.overrides.all.iter().for_each(|one| one.rule.activate(base + 1));
        self.plans.iter().flat_map(|plans| &plans.others).for_each(|(_, rule)| rule.activate(base));
        self.rule.activate(base);
    }

    /// The limits that apply to `key` at `now`, if those of its plan are `planned`.
    pub(super) fn limits_of<'r>(
        &'r self,
        planned: &'r Rule,
        key: Key<'_>,
        now: Micros,
    ) -> &'r Rule {
        match self.overrides.find(key) {
            Some(found) if found.is_active(now) => &found.rule,
            Some(_) => self.after_override.as_ref().unwrap_or(planned),
            None => planned,
        }
    }

    /// Whether the client address is needed: it is part of the key, or a list has networks.
    pub fn needs_client_ip(&self) -> bool {
        let mut entries = self.allow.iter().chain(&self.deny);
        self.counts_addresses() || entries.any(|entry| entry.network.is_some())
    }

    /// The one limit of every key, if the rule has nothing else.
    pub(super) fn plain_limit(&self) -> Option<&Arc<RuleLimit>> {
        let [limit] = self.rule.limits() else { return None };
        let is_plain = self.overrides.all.is_empty()
            && self.plans.is_none()
            && !self.has_lists()
            && !self.counts_addresses()
            && !limit.is_shadow()
            && limit.limit().lease().is_none();
        is_plain.then_some(limit)
    }

    /// All limits that can apply to a key.
    pub(super) fn all_limits(&self) -> impl Iterator<Item = &Limit> {
        let plans = self.plans.iter().flat_map(|plans| &plans.others).map(|(_, rule)| rule);
        let overrides = self.overrides.all.iter().map(|one| &one.rule);
        let rules = [&self.rule].into_iter().chain(plans).chain(overrides);
        rules.flat_map(Rule::limits).map(|limit| limit.limit())
    }

    /// Whether the rule is enforced, and not in shadow mode.
    pub(super) fn is_enforced(&self) -> bool {
        self.enforcement == Enforcement::Enforce
    }

    /// Whether no later rule is evaluated if this one applies.
    pub(super) fn stops(&self) -> bool {
        self.then == AfterMatch::Stop && self.is_enforced()
    }

    /// Whether no later rule is evaluated for any request that this one matches.
    pub(super) fn always_stops(&self) -> bool {
        self.stops() && (self.key.is_empty() || self.on_missing_key != OnMissingKey::Skip)
    }

    pub(super) fn listed(&self, key: Key<'_>, client: Option<IpAddr>) -> ListMatch {
        if self.deny.iter().any(|entry| entry.denies(key, client)) {
            ListMatch::Denied
        } else if self.allow.iter().any(|entry| entry.exempts(key, client)) {
            ListMatch::Allowed
        } else {
            ListMatch::NotListed
        }
    }

    /// List entries that never match: a key of several parts never equals a text.
    pub(super) fn unmatched_entries(&self) -> impl Iterator<Item = &str> {
        let entries = self.allow.iter().chain(&self.deny).filter(|_| self.key.len() > 1);
        entries.filter(|entry| entry.network.is_none()).filter_map(|entry| entry.key.as_deref())
    }

    /// The parts of a key named by a caller: an address is counted as a request from it would be.
    pub(super) fn normalized<'k>(&self, parts: impl Iterator<Item = &'k str>) -> Vec<String> {
        normalized(&self.key, parts)
    }

    /// The address in a key named by a caller: the part of the client address, or the whole key of
    /// a rule without key parts.
    pub(super) fn client_in(&self, parts: &[&str]) -> Option<IpAddr> {
        let index = self.key.iter().position(|part| *part == KeyPart::ClientIp);
        match (index, parts) {
            (Some(index), parts) => parts.get(index)?.parse().ok(),
            (None, [only]) if self.key.is_empty() => only.parse().ok(),
            (None, _) => None,
        }
    }

    pub(super) fn counts_addresses(&self) -> bool {
        self.key.contains(&KeyPart::ClientIp)
    }

    pub(super) fn has_lists(&self) -> bool {
        !(self.allow.is_empty() && self.deny.is_empty())
    }
}

/// Refuses a key that is too long, or names a segment that the path does not have.
fn check_key(key: &[KeyPart], matches: &Match) -> Result<(), InvalidRule> {
    if key.len() > Key::MAX_PARTS {
        return Err(InvalidRule::KeyParts(key.len()));
    }
    for part in key {
        let KeyPart::Path(name) = part else { continue };
        if !matches.path.as_ref().is_some_and(|path| path.names(name)) {
            return Err(InvalidRule::NoSuchSegment(name.clone()));
        }
    }
    Ok(())
}

/// The limits of the rule, which are those of the default plan if it has plans; and the smallest
/// capacity of any plan.
fn default_limits(
    limits: Vec<Limit>,
    plans: Option<&PlanDraft>,
) -> Result<(Vec<Limit>, Option<u64>), InvalidRule> {
    let Some(plans) = plans else {
        let smallest = limits.iter().map(Limit::capacity).min();
        return Ok((limits, smallest));
    };
    if !limits.is_empty() {
        return Err(InvalidRule::Plans(InvalidPlans::LimitsToo));
    }
    let default = plans.check().map_err(InvalidRule::Plans)?.to_vec();
    Ok((default, plans.smallest_capacity()))
}

/// The rule with its unit; refuses a limit that cannot count it.
fn with_unit(rule: Rule, unit: Option<Unit>) -> Result<Rule, InvalidRule> {
    let Some(unit) = unit else { return Ok(rule) };
    for limit in rule.limits() {
        match (unit, limit.limit().algorithm()) {
            (Unit::Tokens | Unit::Money, algorithm @ Algorithm::Concurrency)
            | (Unit::Money, algorithm @ Algorithm::SlidingLog) => {
                return Err(InvalidRule::Unit(unit, algorithm));
            }
            _ => {}
        }
    }
    Ok(rule.unit(unit))
}

/// Refuses an estimate that no reservation could have.
fn checked_estimate(given: u64, smallest: Option<u64>) -> Result<Cost, InvalidRule> {
    let capacity = smallest.unwrap_or(u64::MAX).min(Cost::MAX.get());
    match Cost::new(given) {
        Ok(cost) if (1..=capacity).contains(&given) => Ok(cost),
        _ => Err(InvalidRule::Estimate { given, capacity }),
    }
}

fn normalized<'k>(key: &[KeyPart], parts: impl Iterator<Item = &'k str>) -> Vec<String> {
    let one = |(i, text): (usize, &str)| match (key.get(i), text.parse::<IpAddr>()) {
        (Some(KeyPart::ClientIp), Ok(ip)) => ClientNetwork::from(ip).to_string(),
        _ => text.to_string(),
    };
    parts.enumerate().map(one).collect()
}

#[derive(Default, Debug)]
struct OverrideIndex {
    all: Vec<ActiveOverride>,
    by_key: HashMap<u64, Vec<usize>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct ActiveOverride {
    key: Vec<String>,
    rule: Rule,
    until: Option<Micros>,
    /// Once ended, the override stays ended, even if the clock steps back.
    ended: AtomicBool,
}

impl ActiveOverride {
    fn is_active(&self, now: Micros) -> bool {
        let Some(until) = self.until else { return true };
        if now >= until {
            self.ended.store(true, Ordering::Relaxed);
        }
        !self.ended.load(Ordering::Relaxed)
    }
}

impl OverrideIndex {
    fn add(
        &mut self,
        key: Vec<String>,
        rule: Rule,
        until: Option<Micros>,
    ) -> Result<(), InvalidRule> {
        if self.find(Key::from(&*key)).is_some() {
            return Err(InvalidRule::DuplicateOverride);
        }
        let hash = self.hasher.hash_one(Key::from(&*key));
        self.by_key.entry(hash).or_default().push(self.all.len());
        self.all.push(ActiveOverride { key, rule, until, ended: AtomicBool::new(false) });
        Ok(())
    }

    fn find(&self, key: Key<'_>) -> Option<&ActiveOverride> {
        if self.all.is_empty() {
            return None;
        }
        let indices = self.by_key.get(&self.hasher.hash_one(key))?;
        indices.iter().map(|&index| &self.all[index]).find(|one| key.is(&one.key))
    }
}
