//! One rule of a policy: whom it is about, and under which limits they are.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::{Limit, Micros};

use super::matching::Match;
use super::subject::{KeyPart, OnMissingKey};
use crate::address::{Client, Network};
use crate::rule::{InvalidRule, new_generations};
use crate::{Key, LeaseSize, OnStoreFailure, Rule, RuleLimit};

/// A rule as somebody writes it down. [`PolicyRule::new`] makes a rule of it.
#[derive(Clone, Default, Debug)]
pub struct RuleDraft {
    /// Its name.
    pub name: String,
    /// The requests it is about.
    pub matches: Match,
    /// Whom it counts; nothing counts everybody together.
    pub key: Vec<KeyPart>,
    /// What becomes of a request without such a key.
    pub on_missing_key: OnMissingKey,
    /// The limits that decide.
    pub limits: Vec<Limit>,
    /// Limits that look on: candidates beside those that decide.
    pub shadow_limits: Vec<Limit>,
    /// Whether the rule only looks on: its limits, its lists and its `then`.
    pub enforcement: Enforcement,
    /// Whether later rules are looked at.
    pub then: Then,
    /// The header that tells the cost of a request.
    pub cost_header: Option<Box<str>>,
    /// Other limits for some keys.
    pub overrides: Vec<Override>,
    /// Who is exempt.
    pub allow: Vec<Entry>,
    /// Who is denied, exempt or not.
    pub deny: Vec<Entry>,
}

/// Does a rule decide?
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Enforcement {
    /// It does.
    #[default]
    Enforce,
    /// It only looks on, and what it would have denied is counted. Nobody is denied or let through
    /// because of it: it does not keep later rules from being looked at either.
    Shadow,
}

/// What comes after a rule that applies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Then {
    /// The next rule.
    #[default]
    Continue,
    /// Nothing: no later rule is looked at.
    Stop,
}

/// Other limits for one key, perhaps for a while.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Override {
    /// The key, in its parts.
    pub key: Vec<String>,
    /// Its limits.
    pub limits: Vec<Limit>,
    /// When the override ends.
    pub until: Option<Micros>,
}

/// Somebody on a list: a network, an address or a key.
///
/// A network or an address is compared with the address of the client, whatever the rule counts by.
/// A key of one part is compared with any other entry, and with an address on a list of those who
/// are denied. It makes nobody exempt who only sends an exempt address as their key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    network: Option<Network>,
    key: Option<Box<str>>,
}

impl From<&str> for Entry {
    fn from(text: &str) -> Self {
        let network = text.parse().ok();
        let is_block = network.is_some() && text.contains('/');
        Self { network, key: (!is_block).then(|| text.into()) }
    }
}

impl Entry {
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

    /// Refuses an address with a faulty prefix: as a key it would silently be nobody.
    fn check(&self) -> Result<(), InvalidRule> {
        let faulty = self.key.as_ref().filter(|_| self.network.is_none());
        let Some((text, (host, _))) = faulty.and_then(|text| Some((text, text.split_once('/')?)))
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
    pub(super) then: Then,
    pub(super) cost_header: Option<Box<str>>,
    enforcement: Enforcement,
    overrides: Overrides,
    /// The limits of `rule` once more, for keys whose override is over: newer than the override,
    /// as those of `rule` are older.
    afterwards: Option<Rule>,
    allow: Vec<Entry>,
    deny: Vec<Entry>,
}

/// What the lists of a rule say about somebody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Listed {
    Nowhere,
    Allowed,
    Denied,
}

impl PolicyRule {
    /// The most entries in each list of a rule, and the most overrides.
    pub const MAX_ENTRIES: usize = 10_000;

    /// The rule, unless something in the draft cannot be.
    pub fn new(draft: RuleDraft) -> Result<Self, InvalidRule> {
        let RuleDraft { name, mut key, on_missing_key, then, mut cost_header, enforcement, .. } =
            draft;
        let matches = draft.matches.normal()?;
        let headers = key.iter_mut().filter_map(|part| match part {
            KeyPart::Header(name) => Some(name),
            _ => None,
        });
        // Requests are asked for headers in lower case.
        headers.chain(&mut cost_header).for_each(|name| name.make_ascii_lowercase());
        let build = |limits: Vec<Limit>| match enforcement {
            Enforcement::Enforce => Rule::with_shadow(&name, limits, draft.shadow_limits.clone()),
            Enforcement::Shadow => {
                let all = limits.into_iter().chain(draft.shadow_limits.iter().cloned());
                Rule::with_shadow(&name, [], all)
            }
        };
        for list in [draft.allow.len(), draft.deny.len(), draft.overrides.len()] {
            if list > Self::MAX_ENTRIES {
                return Err(InvalidRule::TooManyEntries(list));
            }
        }
        draft.allow.iter().chain(&draft.deny).try_for_each(Entry::check)?;
        if key.len() > Key::MAX_PARTS {
            return Err(InvalidRule::KeyParts(key.len()));
        }
        for part in &key {
            let KeyPart::Path(name) = part else { continue };
            if !matches.path.as_ref().is_some_and(|path| path.names(name)) {
                return Err(InvalidRule::NoSuchSegment(name.clone()));
            }
        }
        let mut overrides = Overrides::default();
        for Override { key: of, limits, until } in draft.overrides {
            let parts = normal(&key, of.iter().map(String::as_str));
            if !key.is_empty() && parts.len() != key.len() {
                return Err(InvalidRule::OverrideKey { given: parts.len(), needed: key.len() });
            }
            // Limits that look on are none for it: it would let the key pass without any.
            if limits.is_empty() {
                return Err(InvalidRule::LimitCount(0));
            }
            overrides.add(parts, build(limits)?.for_one_key(), until)?;
        }
        let end = overrides.all.iter().any(|one| one.until.is_some());
        let afterwards = end.then(|| build(draft.limits.clone())).transpose()?;
        let rule = Self {
            rule: build(draft.limits)?,
            matches,
            key,
            on_missing_key,
            then,
            cost_header,
            enforcement,
            overrides,
            afterwards,
            allow: draft.allow,
            deny: draft.deny,
        };
        rule.enact();
        Ok(rule)
    }

    /// A rule that matches every request and counts everybody together.
    pub(super) fn plain(rule: Rule) -> Self {
        Self {
            rule,
            matches: Match::default(),
            key: Vec::new(),
            on_missing_key: OnMissingKey::default(),
            then: Then::default(),
            cost_header: None,
            enforcement: Enforcement::default(),
            overrides: Overrides::default(),
            afterwards: None,
            allow: Vec::new(),
            deny: Vec::new(),
        }
    }

    /// The same rule with what happens while the store does not answer. Made for a rule that is not
    /// in use yet.
    #[must_use]
    pub fn on_store_failure(mut self, what: OnStoreFailure) -> Self {
        self.rule.set_on_store_failure(what);
        self.afterwards.iter_mut().for_each(|rule| rule.set_on_store_failure(what));
        for one in &mut self.overrides.all {
            one.rule.set_on_store_failure(what);
        }
        self
    }

    /// The same rule, of which a process may borrow permits from the store; see [`Rule::lease`]. Made for
    /// a rule that is not in use yet.
    #[must_use]
    pub fn lease(mut self, size: LeaseSize) -> Self {
        self.rule.set_lease(size);
        self.afterwards.iter_mut().for_each(|rule| rule.set_lease(size));
        for one in &mut self.overrides.all {
            one.rule.set_lease(size);
        }
        self
    }

    /// Its name and limits.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.rule.name()
    }

    /// The requests it is about.
    pub fn matches(&self) -> &Match {
        &self.matches
    }

    /// Whom it counts.
    pub fn key(&self) -> &[KeyPart] {
        &self.key
    }

    /// What becomes of a request that has no key.
    pub fn on_missing_key(&self) -> OnMissingKey {
        self.on_missing_key
    }

    /// Makes all its limits the newest: they come into force now. Of those of one key, the override
    /// is newer than what it overrides, and older than what comes afterwards. So a call on its way
    /// with a limit of yesterday, or with an override that has ended meanwhile, brings nothing back.
    pub(crate) fn enact(&self) {
        let base = new_generations(3);
        // The newest first: at no time is one older than what it follows.
        self.afterwards.iter().for_each(|rule| rule.enact_as(base + 2));
        self.overrides.all.iter().for_each(|one| one.rule.enact_as(base + 1));
        self.rule.enact_as(base);
    }

    /// The limits that `key` is under at `now`.
    pub(super) fn limits_of(&self, key: Key<'_>, now: Micros) -> &Rule {
        match self.overrides.find(key) {
            Some(found) if found.lasts(now) => &found.rule,
            Some(_) => self.afterwards.as_ref().unwrap_or(&self.rule),
            None => &self.rule,
        }
    }

    /// Must the client's address be known? It is part of the key, or a list has networks.
    pub fn needs_client_ip(&self) -> bool {
        let mut entries = self.allow.iter().chain(&self.deny);
        self.counts_addresses() || entries.any(|entry| entry.network.is_some())
    }

    /// The one limit that every key is under, if there is no more to the rule than that.
    pub(super) fn plain_limit(&self) -> Option<&Arc<RuleLimit>> {
        let [limit] = self.rule.limits() else { return None };
        let is_plain = self.overrides.all.is_empty()
            && !self.has_lists()
            && !self.counts_addresses()
            && !limit.is_shadow()
            && limit.limit().lease().is_none();
        is_plain.then_some(limit)
    }

    /// All limits that some key may be under.
    pub(super) fn all_limits(&self) -> impl Iterator<Item = &Limit> {
        let rules = [&self.rule].into_iter().chain(self.overrides.all.iter().map(|one| &one.rule));
        rules.flat_map(Rule::limits).map(|limit| limit.limit())
    }

    /// Does it decide, or only look on?
    pub(super) fn decides(&self) -> bool {
        self.enforcement == Enforcement::Enforce
    }

    /// Is no later rule looked at where it applies?
    pub(super) fn stops(&self) -> bool {
        self.then == Then::Stop && self.decides()
    }

    /// Is no later rule looked at for any request that it matches?
    pub(super) fn always_stops(&self) -> bool {
        self.stops() && (self.key.is_empty() || self.on_missing_key != OnMissingKey::Skip)
    }

    pub(super) fn listed(&self, key: Key<'_>, client: Option<IpAddr>) -> Listed {
        if self.deny.iter().any(|entry| entry.denies(key, client)) {
            Listed::Denied
        } else if self.allow.iter().any(|entry| entry.exempts(key, client)) {
            Listed::Allowed
        } else {
            Listed::Nowhere
        }
    }

    /// The entries that no request can be on the list by: a key of several parts is no text.
    pub(super) fn idle_entries(&self) -> impl Iterator<Item = &str> {
        let entries = self.allow.iter().chain(&self.deny).filter(|_| self.key.len() > 1);
        entries.filter(|entry| entry.network.is_none()).filter_map(|entry| entry.key.as_deref())
    }

    /// The parts of a key as somebody names them: an address is counted as a request from it
    /// would be.
    pub(super) fn normal<'k>(&self, parts: impl Iterator<Item = &'k str>) -> Vec<String> {
        normal(&self.key, parts)
    }

    /// The address in a key that somebody names: in the place of the client's, or all of the key
    /// of a rule that does not say what its parts are.
    pub(super) fn client_in(&self, parts: &[&str]) -> Option<IpAddr> {
        let place = self.key.iter().position(|part| *part == KeyPart::ClientIp);
        match (place, parts) {
            (Some(place), parts) => parts.get(place)?.parse().ok(),
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

fn normal<'k>(key: &[KeyPart], parts: impl Iterator<Item = &'k str>) -> Vec<String> {
    let one = |(i, text): (usize, &str)| match (key.get(i), text.parse::<IpAddr>()) {
        (Some(KeyPart::ClientIp), Ok(ip)) => Client::from(ip).to_string(),
        _ => text.to_string(),
    };
    parts.enumerate().map(one).collect()
}

/// Limits of some keys, found by the key.
#[derive(Default, Debug)]
struct Overrides {
    all: Vec<Overriding>,
    by_key: HashMap<u64, Vec<usize>>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Overriding {
    key: Vec<String>,
    rule: Rule,
    until: Option<Micros>,
    /// Once over, it stays over, should the clock step back.
    ended: AtomicBool,
}

impl Overriding {
    fn lasts(&self, now: Micros) -> bool {
        let Some(until) = self.until else { return true };
        if now >= until {
            self.ended.store(true, Ordering::Relaxed);
        }
        !self.ended.load(Ordering::Relaxed)
    }
}

impl Overrides {
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
        self.all.push(Overriding { key, rule, until, ended: AtomicBool::new(false) });
        Ok(())
    }

    fn find(&self, key: Key<'_>) -> Option<&Overriding> {
        if self.all.is_empty() {
            return None;
        }
        let places = self.by_key.get(&self.hasher.hash_one(key))?;
        places.iter().map(|&place| &self.all[place]).find(|one| key.is(&one.key))
    }
}
