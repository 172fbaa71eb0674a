//! The layers of a policy: rules of the file, then run-time rules, then overrides of single keys.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;
use tidegate::{ClientNetwork, InvalidRule, Micros, Policy, PolicyRule};
use tidegate_config::envoy::EnvoyConfig;
use tidegate_config::{
    HeaderStyleSetting, LoadedRule, OverrideFile, Problems, RatioSetting, RuleFile, ServerSettings,
};
use tidegate_tower::headers::HeaderStyle;

use super::runtime::copy::RuntimeCopy;
use super::runtime::field::{FieldName, RuntimeField, timestamp};
use crate::check::{ActivePolicy, AdhocLimits};
use crate::observe::metrics::Metrics;

/// Where a rule comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuleOrigin {
    File,
    /// Set over HTTP or in the console.
    Runtime,
}

impl RuleOrigin {
    /// The name in JSON and on pages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Runtime => "runtime",
        }
    }
}

/// The layers above the policy file: the copy of the fields, and what was compiled from it.
#[derive(Clone, Default)]
pub(super) struct RuntimeLayers {
    pub(super) copy: RuntimeCopy,
    /// Run-time rules by name; of one that cannot be compiled, the last valid version.
    pub(super) rules: BTreeMap<String, (LoadedRule, RuntimeField)>,
    /// Overrides by rule and key; of one that cannot be compiled, the last valid version.
    pub(super) overrides: BTreeMap<FieldName, (OverrideFile, RuntimeField)>,
    /// Why fields cannot be compiled by this version.
    pub(super) faults: BTreeMap<String, String>,
    /// Fields whose stamp cannot be read.
    pub(super) unreadable: Vec<String>,
}

impl RuntimeLayers {
    /// Compiles fields after they have changed in the copy.
    pub(super) fn compile(&mut self, changed: &[String], settings: &ServerSettings) {
        for text in changed {
            self.faults.remove(text);
            let field = self.copy.get(text).cloned();
            let live = field.and_then(|field| Some((field.spec.clone()?, field)));
            let compiled = match (FieldName::read(text), live) {
                (None, None) => Ok(()),
                (None, Some(_)) => Err("unknown kind of field".into()),
                (Some(FieldName::Rule(name)), None) => {
                    self.rules.remove(&name);
                    Ok(())
                }
                (Some(name), None) => {
                    self.overrides.remove(&name);
                    Ok(())
                }
                (Some(FieldName::Rule(name)), Some((spec, field))) => rule(&name, &spec, settings)
                    .map(|rule| drop(self.rules.insert(name, (rule, field)))),
                (Some(name), Some((spec, field))) => one_override(&name, &spec, settings)
                    .map(|one| drop(self.overrides.insert(name, (one, field)))),
            };
            if let Err(fault) = compiled {
                self.faults.insert(text.clone(), fault);
            }
        }
    }

    /// Compiles all rules again, under changed settings.
    pub(super) fn set_settings(&mut self, settings: &ServerSettings) {
        for (loaded, _) in self.rules.values_mut() {
            if let Ok(new) = loaded.file.load(settings) {
                *loaded = new;
            }
        }
    }

    /// The epoch of the counts of a rule, whether it is set here or in the file.
    fn epoch(&self, rule: &str) -> Option<u64> {
        self.copy.get(&FieldName::Rule(rule.into()).to_string())?.epoch
    }

    /// Overrides of a rule.
    fn of_rule(
        &self,
        rule: &str,
    ) -> impl Iterator<Item = (&FieldName, &RuntimeField, &OverrideFile)> {
        let first = FieldName::Override(rule.into(), Vec::new());
        let from_first = self.overrides.range(first..);
        let of_rule = from_first.take_while(move |(name, _)| name.rule() == rule);
        of_rule.map(|(name, (one, field))| (name, field, one))
    }
}

/// A rule that was loaded just now, in an epoch.
fn in_epoch(loaded: LoadedRule, epoch: Option<u64>) -> Arc<PolicyRule> {
    match (Arc::try_unwrap(loaded.rule), epoch) {
        (Ok(rule), Some(epoch)) => Arc::new(rule.epoch(epoch)),
        (Ok(rule), None) => Arc::new(rule),
        (Err(shared), _) => shared,
    }
}

fn rule(name: &str, spec: &Value, settings: &ServerSettings) -> Result<LoadedRule, String> {
    let rule = RuleFile::from_json(spec.to_string()).and_then(|rule| rule.load(settings));
    let rule = rule.map_err(|problems| messages(&problems))?;
    if rule.file.name == name { Ok(rule) } else { Err("the name of the rule differs".into()) }
}

/// The override of a spec, whose limits are compiled on their own: it outlives its rule.
fn one_override(
    name: &FieldName,
    spec: &Value,
    settings: &ServerSettings,
) -> Result<OverrideFile, String> {
    let one: OverrideFile =
        serde_json::from_value(spec.clone()).map_err(|error| error.to_string())?;
    let alone = RuleFile { name: "rule".into(), limits: one.limits.clone(), ..RuleFile::default() };
    alone.load(settings).map_err(|problems| messages(&problems))?;
    let own_name = FieldName::Override(name.rule().into(), one.key.texts().to_vec());
    if own_name == *name { Ok(one) } else { Err("the key of the override differs".into()) }
}

pub(super) fn messages(problems: &Problems) -> String {
    problems.iter().map(|problem| problem.message()).collect::<Vec<_>>().join("; ")
}

/// The rules of the file, each replaced by the run-time rule of its name; then the other run-time
/// rules, by name.
pub(super) fn merged_rules<'a>(
    file: &'a [LoadedRule],
    runtime: &'a RuntimeLayers,
) -> impl Iterator<Item = (&'a LoadedRule, Option<&'a RuntimeField>)> {
    let replaced = file.iter().map(|rule| match runtime.rules.get(&rule.file.name) {
        Some((set, field)) => (set, Some(field)),
        None => (rule, None),
    });
    let names: HashSet<&str> = file.iter().map(|rule| &*rule.file.name).collect();
    let added = runtime.rules.iter().filter(move |(name, _)| !names.contains(name.as_str()));
    replaced.chain(added.map(|(_, (rule, field))| (rule, Some(field))))
}

/// All that a policy is composed of.
pub(super) struct PolicyLayers<'a> {
    pub(super) settings: &'a ServerSettings,
    pub(super) file: &'a [LoadedRule],
    pub(super) runtime: &'a RuntimeLayers,
    pub(super) envoy: &'a Option<Arc<EnvoyConfig>>,
}

/// The time of the store, and by how much it is ahead of this server's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StoreTime {
    pub(super) now: Micros,
    /// In microseconds.
    pub(super) ahead: i64,
}

impl StoreTime {
    /// A time of the store by this server's clock.
    fn local(&self, at: Micros) -> Micros {
        Micros::new(at.get().saturating_add_signed(self.ahead.saturating_neg()))
    }
}

/// A policy, and what became of the overrides.
pub(super) struct ComposedPolicy {
    pub(super) active: ActivePolicy,
    /// Why overrides have no effect.
    pub(super) inactive: HashMap<FieldName, String>,
    /// When the next override ends, by the clock of the store.
    pub(super) next_end: Option<Micros>,
    /// The time of the store that decided which overrides have ended.
    pub(super) now: Micros,
}

impl PolicyLayers<'_> {
    /// The policy made of all layers.
    pub(super) fn compose(
        &self,
        time: StoreTime,
        metrics: &Metrics,
    ) -> Result<ComposedPolicy, InvalidRule> {
        let overrides = self.runtime.overrides.values();
        let ends = overrides.filter_map(|(_, field)| field.until).filter(|end| *end > time.now);
        let next_end = ends.min();
        let mut inactive: HashMap<FieldName, String> = HashMap::new();
        for (name, (_, field)) in &self.runtime.overrides {
            let why = if field.has_ended(time.now) { "it has ended" } else { "no such rule" };
            inactive.insert(name.clone(), why.into());
        }
        let rules = merged_rules(self.file, self.runtime);
        let rules = rules.map(|(rule, _)| self.with_overrides(rule, time, &mut inactive));
        let policy = Policy::new(rules)?;
        let settings = self.settings;
        let trusted = settings.trusted_proxies.iter().copied().collect();
        let adhoc = if settings.adhoc { AdhocLimits::Allow } else { AdhocLimits::Refuse };
        let jitter = settings.retry_jitter.map(RatioSetting::share);
        let active = ActivePolicy::new(policy, trusted, adhoc, metrics).with_retry_jitter(jitter);
        let headers = header_style(settings.headers);
        let active = active.with_wire_settings(headers, settings.refund_token);
        let active = active.with_prices(settings.prices.clone());
        let active = active.with_envoy(self.envoy.clone(), metrics);
        Ok(ComposedPolicy { active, inactive, next_end, now: time.now })
    }

    /// A rule with its overrides that have not ended. They are removed from `inactive`, unless they
    /// do not fit the rule.
    fn with_overrides(
        &self,
        rule: &LoadedRule,
        time: StoreTime,
        inactive: &mut HashMap<FieldName, String>,
    ) -> Arc<PolicyRule> {
        let all = self.runtime.of_rule(&rule.file.name);
        let mut active: Vec<_> = all.filter(|(_, field, _)| !field.has_ended(time.now)).collect();
        let epoch = self.runtime.epoch(&rule.file.name);
        if active.is_empty() && epoch.is_none() {
            return rule.rule.clone();
        }
        // The newest last: it replaces others of the same key.
        active.sort_by_key(|(_, field, _)| field.stamp);
        for checks in [OverrideCheck::Together, OverrideCheck::Each] {
            let mut file = rule.file.clone();
            let mut by_key: HashMap<Vec<String>, (usize, Option<&FieldName>)> = HashMap::new();
            for (index, one) in file.overrides.iter().enumerate() {
                by_key.insert(counted_key(&rule.file, one.key.texts()), (index, None));
            }
            for (name, field, one) in &active {
                let until = field.until.map(|until| timestamp(time.local(until)));
                let one = OverrideFile { until, ..(*one).clone() };
                if checks == OverrideCheck::Each {
                    let fits = self.fits(&rule.file, &one, file.overrides.len());
                    if let Err(why) = fits {
                        inactive.insert((*name).clone(), why);
                        continue;
                    }
                }
                inactive.remove(*name);
                let key = counted_key(&rule.file, one.key.texts());
                let index = file.overrides.len();
                match by_key.insert(key.clone(), (index, Some(name))) {
                    Some((earlier, replaced)) => {
                        file.overrides[earlier] = one;
                        by_key.insert(key, (earlier, Some(name)));
                        let why = "a newer override is for the same key";
                        inactive.extend(replaced.map(|name| (name.clone(), why.into())));
                    }
                    None => file.overrides.push(one),
                }
            }
            if let Ok(loaded) = file.load(self.settings) {
                return in_epoch(loaded, epoch);
            }
        }
        let why = "the rule and its overrides are invalid together";
        inactive.extend(active.iter().map(|(name, ..)| ((*name).clone(), why.into())));
        let alone = rule.file.load(self.settings);
        alone.map_or_else(|_| rule.rule.clone(), |loaded| in_epoch(loaded, epoch))
    }

    /// Whether an override fits a rule that has this many.
    fn fits(&self, rule: &RuleFile, one: &OverrideFile, count: usize) -> Result<(), String> {
        if count >= PolicyRule::MAX_ENTRIES {
            return Err(format!("the rule has {} overrides already", PolicyRule::MAX_ENTRIES));
        }
        override_fits(rule, one, self.settings).map(drop).map_err(|problems| messages(&problems))
    }
}

/// The policy of a file alone.
pub(super) fn file_policy(
    settings: &ServerSettings,
    file: &[LoadedRule],
    envoy: &Option<Arc<EnvoyConfig>>,
    metrics: &Metrics,
) -> Result<ActivePolicy, InvalidRule> {
    let runtime = &RuntimeLayers::default();
    let time = StoreTime { now: Micros::ZERO, ahead: 0 };
    let layers = PolicyLayers { settings, file, runtime, envoy };
    layers.compose(time, metrics).map(|composed| composed.active)
}

/// How overrides are checked: all together is fast, and each alone finds the invalid ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OverrideCheck {
    Together,
    Each,
}

/// Checks an override against its rule.
pub(super) fn override_fits(
    rule: &RuleFile,
    one: &OverrideFile,
    settings: &ServerSettings,
) -> Result<LoadedRule, Problems> {
    let overrides = vec![one.clone()];
    let alone = RuleFile { overrides, allow: vec![], deny: vec![], ..rule.clone() };
    alone.load(settings)
}

/// A key as the rule counts it: an address has several notations.
pub(super) fn counted_key(rule: &RuleFile, key: &[String]) -> Vec<String> {
    let parts = rule.key.as_deref().unwrap_or_default();
    let counted = |(nth, text): (usize, &String)| match parts.get(nth).map(String::as_str) {
        Some("client_ip") => ClientNetwork::key_of(text).into_owned(),
        _ => text.clone(),
    };
    key.iter().enumerate().map(counted).collect()
}

fn header_style(setting: HeaderStyleSetting) -> HeaderStyle {
    match setting {
        HeaderStyleSetting::Draft8 => HeaderStyle::Draft8,
        HeaderStyleSetting::Draft7 => HeaderStyle::Draft7,
        HeaderStyleSetting::Draft6 => HeaderStyle::Draft6,
        HeaderStyleSetting::Epoch => HeaderStyle::Epoch,
        HeaderStyleSetting::OpenAi => HeaderStyle::OpenAi,
    }
}
