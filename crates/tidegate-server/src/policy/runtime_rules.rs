//! Changes of run-time rules and overrides, over HTTP and in the console, and lists of both.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tidegate::policy::RuleTarget;
use tidegate::{EngineError, Micros, RuleCheck};
use tidegate_config::{LoadedRule, OneOrMany, OverrideFile, RuleFile};
use tracing::info;

use super::change_error::RuleChangeError;
use super::layers::{RuleOrigin, counted_key, merged_rules, override_fits};
use super::manager::{ManagerState, PolicyManager, rule_hash};
use super::runtime::field::{FieldName, RuntimeField, timestamp};
use super::runtime::stamp::Stamp;
use super::sync::{log_applied, nonce};
use crate::text::escape::display_key;

/// Who makes a change: the name of the token, and the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Actor {
    /// `admin` or `check`; `None` without a token.
    pub token: Option<&'static str>,
    /// The client address, if known.
    pub address: Option<IpAddr>,
}

impl Actor {
    /// Writes the audit line of a reset.
    pub(crate) fn log_reset(&self, reset: &RuleCheck<'_>) {
        let target = match &reset.target {
            RuleTarget::Named(name) => (*name).into(),
            RuleTarget::Own(rule) => rule.name().to_string(),
            RuleTarget::Adhoc(rule) => rule.limits()[0].state().to_string(),
        };
        info!(by = %self, target, key = display_key(reset.key), "key reset");
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.token {
            Some(token) => write!(f, "{token} token")?,
            None => f.write_str("no token")?,
        }
        self.address.map_or(Ok(()), |address| write!(f, ", {address}"))
    }
}

/// A rule and its origin.
#[derive(Clone, Debug)]
pub struct ListedRule {
    /// The rule in canonical form, without run-time overrides.
    pub file: RuleFile,
    /// Where it comes from.
    pub origin: RuleOrigin,
    /// The stamp of a run-time rule.
    pub stamp: Option<Stamp>,
}

impl From<(&LoadedRule, Option<&RuntimeField>)> for ListedRule {
    fn from((rule, field): (&LoadedRule, Option<&RuntimeField>)) -> Self {
        let origin = if field.is_some() { RuleOrigin::Runtime } else { RuleOrigin::File };
        Self { file: rule.file.clone(), origin, stamp: field.map(|field| field.stamp) }
    }
}

/// An override of one key.
#[derive(Clone, Debug)]
pub struct ListedOverride {
    /// The name of the rule.
    pub rule: String,
    /// The key, in its parts.
    pub key: Vec<String>,
    /// The limits of the key.
    pub limits: Vec<String>,
    /// When it ends, by the clock of the store.
    pub until: Option<Micros>,
    pub by: String,
    /// When it was set.
    pub at: Micros,
    pub stamp: Stamp,
    /// Why it has no effect; `None` if it is active.
    pub inactive: Option<String>,
}

/// A page of the active rules.
#[derive(Clone, Default, Debug)]
pub struct RulePage {
    /// The rules of the page.
    pub rules: Vec<ListedRule>,
    /// How many rules match the filter.
    pub matching: usize,
    /// How many rules there are in total.
    pub all: usize,
}

/// The result of a put.
#[derive(Clone, Debug)]
pub enum PutResult<T> {
    /// There was none before.
    Created(T),
    Replaced(T),
}

impl<T> PutResult<T> {
    fn new(replaces: bool, put: T) -> Self {
        if replaces { Self::Replaced(put) } else { Self::Created(put) }
    }
}

/// When a change is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutCondition {
    /// Whether there is one or not.
    Any,
    /// Only if there is none yet.
    Absent,
    /// Only if it has this stamp.
    Is(Stamp),
}

/// When a new override ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OverrideEnd {
    /// When it is deleted.
    Never,
    /// At this time of the store.
    At(Micros),
    After(Micros),
}

/// What a field is set to.
struct FieldDraft {
    name: FieldName,
    /// `None` deletes it.
    spec: Option<Value>,
    until: Option<Micros>,
    replaces: Option<String>,
    counts: CountsOnDelete,
}

/// What becomes of the counts of a rule that is deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountsOnDelete {
    /// A rule of the same name goes on with them.
    Keep,
    /// A rule of the same name begins unused.
    Reset,
}

impl PolicyManager {
    /// Sets a run-time rule.
    pub async fn put(
        &self,
        rule: &RuleFile,
        only_if: PutCondition,
        by: &Actor,
    ) -> Result<PutResult<ListedRule>, RuleChangeError> {
        let exists = AtomicBool::new(false);
        let draft = |state: &ManagerState, _| {
            let name = FieldName::Rule(rule.name.clone());
            let found = state.find(&rule.name);
            exists.store(found.is_some(), Ordering::Relaxed);
            let stamp = found.as_ref().and_then(|found| found.stamp);
            check(only_if, found.is_some(), stamp)?;
            let loaded = rule.load(&state.settings).map_err(RuleChangeError::Faulty)?;
            let replaces = state.in_file(&rule.name).map(|rule| rule_hash(&rule.file));
            let spec = serde_json::to_value(&loaded.file).ok();
            Ok(FieldDraft { name, spec, until: None, replaces, counts: CountsOnDelete::Keep })
        };
        self.change(draft, by).await?;
        let listed = self.rule(&rule.name).ok_or(RuleChangeError::Unknown)?;
        Ok(PutResult::new(exists.into_inner(), listed))
    }

    /// Deletes a run-time rule. A rule of the file with the same name becomes active again.
    pub async fn delete(
        &self,
        name: &str,
        counts: CountsOnDelete,
        only_if: PutCondition,
        by: &Actor,
    ) -> Result<(), RuleChangeError> {
        let draft = |state: &ManagerState, now| {
            let field_name = FieldName::Rule(name.into());
            let Some(field) = state.live(&field_name, now) else {
                let in_file = state.in_file(name).is_some();
                let error =
                    if in_file { RuleChangeError::FromFile } else { RuleChangeError::Unknown };
                return Err(error);
            };
            check(only_if, true, Some(field.stamp))?;
            let (spec, until, replaces) = (None, None, None);
            Ok(FieldDraft { name: field_name, spec, until, replaces, counts })
        };
        self.change(draft, by).await
    }

    /// Sets the limits of one key, whatever rule of this name is in force.
    pub async fn put_override(
        &self,
        rule: &str,
        one: &OverrideFile,
        end: OverrideEnd,
        only_if: PutCondition,
        by: &Actor,
    ) -> Result<PutResult<ListedOverride>, RuleChangeError> {
        let exists = AtomicBool::new(false);
        let draft = |state: &ManagerState, now: Micros| {
            let base = state.find(rule).ok_or(RuleChangeError::Unknown)?.file;
            let key = counted_key(&base, one.key.texts());
            let name = FieldName::Override(rule.into(), key.clone());
            let found = state.live(&name, now);
            exists.store(found.is_some(), Ordering::Relaxed);
            check(only_if, found.is_some(), found.map(|found| found.stamp))?;
            let one = OverrideFile { key: OneOrMany::Many(key), ..one.clone() };
            let loaded = override_fits(&base, &one, &state.settings);
            let loaded = loaded.map_err(RuleChangeError::Faulty)?;
            let until = match end {
                OverrideEnd::Never => None,
                OverrideEnd::At(at) if at <= now => return Err(RuleChangeError::Ended),
                OverrideEnd::At(at) => Some(at),
                OverrideEnd::After(span) => Some(now.saturating_add(span)),
            };
            let limits = loaded.file.overrides.into_iter().next().map(|one| one.limits);
            let spec = json!({ "key": one.key.texts(), "limits": limits.unwrap_or_default() });
            let (spec, counts) = (Some(spec), CountsOnDelete::Keep);
            Ok(FieldDraft { name, spec, until, replaces: None, counts })
        };
        self.change(draft, by).await?;
        let listed = self.find_override(rule, one.key.texts());
        let listed = listed.ok_or(RuleChangeError::UnknownOverride)?;
        Ok(PutResult::new(exists.into_inner(), listed))
    }

    /// Ends an override before its time. The other servers follow within a poll.
    pub async fn delete_override(
        &self,
        rule: &str,
        key: &[String],
        only_if: PutCondition,
        by: &Actor,
    ) -> Result<(), RuleChangeError> {
        let draft = |state: &ManagerState, now| {
            let name = state.override_name(rule, key);
            let found = state.live(&name, now).ok_or(RuleChangeError::UnknownOverride)?;
            check(only_if, true, Some(found.stamp))?;
            let (spec, until, replaces, counts) = (None, None, None, CountsOnDelete::Keep);
            Ok(FieldDraft { name, spec, until, replaces, counts })
        };
        self.change(draft, by).await
    }

    /// Makes a change in the store, and activates it here. `draft` gets the state of the store and
    /// its time; it runs again if another server makes a change first.
    async fn change(
        &self,
        draft: impl Fn(&ManagerState, Micros) -> Result<FieldDraft, RuleChangeError>,
        by: &Actor,
    ) -> Result<(), RuleChangeError> {
        const TRIES: usize = 16;
        let _turn = self.turn.lock().await;
        for _ in 0..TRIES {
            let version = self.sync_in_turn().await.map_err(RuleChangeError::Store)?;
            let (name, old, field, write) = {
                let state = &*self.state();
                let FieldDraft { name, spec, until, replaces, counts } =
                    draft(state, version.time)?;
                let name_text = name.to_string();
                let epoch = match counts {
                    CountsOnDelete::Keep => {
                        state.runtime.copy.get(&name_text).and_then(|old| old.epoch)
                    }
                    CountsOnDelete::Reset => Some(version.time.get()),
                };
                let (stamp, mut write) =
                    state.runtime.copy.write(&version, nonce(), Vec::new(), Vec::new());
                let (by, at, text) = (by.to_string(), version.time, String::new());
                let field = RuntimeField { stamp, by, at, until, replaces, epoch, spec, text };
                let field = field.encoded();
                self.check_change(state, &name, &field, version.time)?;
                let name = name_text;
                write.set.push((name.clone(), field.text.clone()));
                let old = state.runtime.copy.get(&name).and_then(|old| old.spec.clone());
                (name, old, field, write)
            };
            let written = match self.store.write(&write).await {
                Ok(Some(written)) => written,
                // Another server was faster.
                Ok(None) => continue,
                Err(error) => {
                    let is_made = matches!(error, EngineError::Ambiguous(_))
                        && self.sync_in_turn().await.is_ok()
                        && self.state().runtime.copy.get(&name) == Some(&field);
                    if !is_made {
                        return Err(RuleChangeError::Store(error));
                    }
                    log_change(by, &name, old, &field);
                    return Ok(());
                }
            };
            {
                let state = &mut *self.state();
                log_change(by, &name, old, &field);
                state.runtime.copy.insert(name.clone(), field);
                state.runtime.copy.confirm(&written);
                self.apply_changes(state, std::slice::from_ref(&name));
                log_applied(state, &[name]);
            }
            self.save_copy().await;
            return Ok(());
        }
        Err(RuleChangeError::Contended)
    }

    /// Checks the bounds, and that the policy can be composed after a change.
    fn check_change(
        &self,
        state: &ManagerState,
        name: &FieldName,
        field: &RuntimeField,
        now: Micros,
    ) -> Result<(), RuleChangeError> {
        let copy = &state.runtime.copy;
        let text = name.to_string();
        if field.spec.is_some() {
            let bytes = text.len() + field.text.len();
            if bytes > RuleChangeError::MAX_FIELD_BYTES {
                return Err(RuleChangeError::TooLarge(bytes));
            }
            let (prefix, max, error) = match name {
                FieldName::Rule(_) => {
                    ("rule:", RuleChangeError::MAX_RUNTIME_RULES, RuleChangeError::TooMany)
                }
                FieldName::Override(..) => {
                    ("override:", RuleChangeError::MAX_OVERRIDES, RuleChangeError::TooManyOverrides)
                }
            };
            let others = copy.fields().filter(|(other, field)| {
                other.starts_with(prefix) && *other != text && field.is_live(now)
            });
            if others.count() >= max {
                return Err(error);
            }
            let old = copy.get(&text).map_or(0, |old| text.len() + old.text.len());
            if copy.bytes() - old + bytes > RuleChangeError::MAX_RUNTIME_BYTES {
                return Err(RuleChangeError::Full);
            }
        }
        let mut runtime = state.runtime.clone();
        runtime.copy.insert(text.clone(), field.clone());
        runtime.compile(&[text], &state.settings);
        let composed =
            state.layers(&runtime).compose(self.store_time(state), self.service.metrics());
        composed.map(drop).map_err(RuleChangeError::Invalid)
    }

    /// The active rules, in order.
    pub fn rules(&self) -> Vec<ListedRule> {
        let state = self.state();
        merged_rules(&state.file, &state.runtime).map(ListedRule::from).collect()
    }

    /// At most `limit` of the active rules whose name contains `filter`, after the first `skip`.
    pub fn rule_page(&self, filter: &str, skip: usize, limit: usize) -> RulePage {
        let state = self.state();
        let mut page = RulePage::default();
        for (rule, field) in merged_rules(&state.file, &state.runtime) {
            page.all += 1;
            if !rule.file.name.contains(filter) {
                continue;
            }
            page.matching += 1;
            if page.matching > skip && page.rules.len() < limit {
                page.rules.push((rule, field).into());
            }
        }
        page
    }

    /// The active rule of this name.
    pub fn rule(&self, name: &str) -> Option<ListedRule> {
        self.state().find(name)
    }

    /// Whether the policy file has a rule of this name.
    pub fn is_in_file(&self, name: &str) -> bool {
        self.state().in_file(name).is_some()
    }

    /// All run-time overrides, by rule and key.
    pub fn overrides(&self) -> Vec<ListedOverride> {
        let state = self.state();
        state.runtime.overrides.keys().filter_map(|name| state.listed(name)).collect()
    }

    /// The run-time override of a key.
    pub fn find_override(&self, rule: &str, key: &[String]) -> Option<ListedOverride> {
        let state = self.state();
        state.listed(&state.override_name(rule, key))
    }
}

impl ManagerState {
    fn find(&self, name: &str) -> Option<ListedRule> {
        if let Some((rule, field)) = self.runtime.rules.get(name) {
            return Some((rule, Some(field)).into());
        }
        self.in_file(name).map(|rule| (rule, None).into())
    }

    fn in_file(&self, name: &str) -> Option<&LoadedRule> {
        self.file.iter().find(|rule| rule.file.name == name)
    }

    /// A field that is neither deleted nor ended.
    fn live(&self, name: &FieldName, now: Micros) -> Option<&RuntimeField> {
        self.runtime.copy.get(&name.to_string()).filter(|field| field.is_live(now))
    }

    /// The field of a key, as the rule in force counts it.
    fn override_name(&self, rule: &str, key: &[String]) -> FieldName {
        let key = match self.find(rule) {
            Some(rule) => counted_key(&rule.file, key),
            None => key.to_vec(),
        };
        FieldName::Override(rule.into(), key)
    }

    fn listed(&self, name: &FieldName) -> Option<ListedOverride> {
        let (one, field) = self.runtime.overrides.get(name)?;
        Some(ListedOverride {
            rule: name.rule().into(),
            key: one.key.texts().to_vec(),
            limits: one.limits.clone(),
            until: field.until,
            by: field.by.clone(),
            at: field.at,
            stamp: field.stamp,
            inactive: self.inactive.get(name).cloned(),
        })
    }
}

/// Checks a condition against what exists.
fn check(only_if: PutCondition, exists: bool, stamp: Option<Stamp>) -> Result<(), RuleChangeError> {
    match only_if {
        PutCondition::Absent if exists => Err(RuleChangeError::Exists),
        PutCondition::Is(wanted) if stamp != Some(wanted) => Err(RuleChangeError::Modified),
        _ => Ok(()),
    }
}

/// The audit line of a change.
fn log_change(by: &Actor, field: &str, old: Option<Value>, new: &RuntimeField) {
    let text = |spec: Option<&Value>| spec.map_or_else(|| "none".into(), Value::to_string);
    let (old, stamp) = (text(old.as_ref()), new.stamp.to_string());
    let until = new.until.map_or_else(|| "none".into(), timestamp);
    let new = text(new.spec.as_ref());
    info!(%by, field, old, new, until, stamp, "run-time change made");
}
