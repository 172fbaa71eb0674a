//! The current policy with its reloads and certificates.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::{FleetSize, InvalidRule, Micros};
use tidegate_config::envoy::EnvoyConfig;
use tidegate_config::{LoadedPolicy, LoadedRule, Problem, Problems, RuleFile, ServerSettings};
use tracing::{info, warn};

use super::diff::PolicyDiff;
use super::files::{FileChange, FileVersions};
use super::layers::{ComposedPolicy, PolicyLayers, RuntimeLayers, StoreTime, file_policy};
use super::runtime::copy_file::CopyFile;
use super::runtime::field::{FieldName, timestamp};
use super::runtime::store::{ProcessStore, RuntimeStore};
use super::sources::{EnvoyResource, LoadedSources, PolicySources};
use crate::check::{ActivePolicy, CheckService};
use crate::observe::metrics::{ListenerKind, Metrics};
use crate::tls::{ReloadableTls, ServerTls};

/// Polls without a reply after which the copy counts as out of date.
pub(super) const MAX_FAILED_POLLS: u32 = 4;

/// Keeps the policy of a service up to date with its sources, run-time rules and overrides.
pub struct PolicyManager {
    pub(super) service: Arc<CheckService>,
    pub(super) sources: PolicySources,
    /// The certificates of the listeners, if TLS is on.
    certificates: Option<Arc<ReloadableTls>>,
    /// The settings at start; some of them cannot change without a restart.
    started_with: ServerSettings,
    /// The files as they were last read. A reload holds the lock throughout, so that of two
    /// concurrent reloads the later one wins.
    pub(super) versions: Mutex<FileVersions>,
    state: Mutex<ManagerState>,
    /// Where run-time rules and overrides are kept.
    pub(super) store: Arc<dyn RuntimeStore>,
    /// How many servers use that store.
    pub(super) fleet: Arc<FleetSize>,
    /// The last copy of them on disk, if configured.
    pub(super) copy_file: Option<CopyFile>,
    /// One change or poll of the store at a time.
    pub(super) turn: tokio::sync::Mutex<()>,
}

pub(super) struct ManagerState {
    pub(super) settings: ServerSettings,
    /// The rules of the last valid policy file.
    pub(super) file: Vec<LoadedRule>,
    /// The limits of Envoy's domains.
    pub(super) envoy: Option<Arc<EnvoyConfig>>,
    /// The last valid resources of a control plane, if one has sent any.
    pub(super) resources: Option<Arc<[EnvoyResource]>>,
    /// Why the last resources of a control plane were refused.
    pub(super) resource_error: Option<String>,
    /// Run-time rules and overrides.
    pub(super) runtime: RuntimeLayers,
    /// By how much the clock of the store is ahead, in microseconds.
    pub(super) ahead: i64,
    /// Why overrides have no effect.
    pub(super) inactive: HashMap<FieldName, String>,
    /// When the next override ends, by the clock of the store.
    pub(super) next_end: Option<Micros>,
    /// Why the copy on disk is not up to date.
    pub(super) copy_file_error: Option<String>,
    /// Why the layers cannot be composed.
    pub(super) conflict: Option<InvalidRule>,
    /// When a repair is offered again that the store has not taken, by the elapsed time.
    pub(super) next_repair: Option<Micros>,
    /// Polls of the store without a reply since the last reply.
    pub(super) failed_polls: u32,
    pub(super) loaded_at: Micros,
    error: Option<String>,
    /// What the last reload changed.
    changes: Option<Arc<PolicyDiff>>,
}

/// When the policy was loaded, and whether the last reload failed.
#[derive(Clone, Debug)]
pub struct PolicyStatus {
    /// When the active policy was loaded.
    pub loaded_at: Micros,
    /// Why the last reload failed, if it did.
    pub error: Option<String>,
    /// What is wrong with run-time rules and overrides, if anything is.
    pub runtime: Option<String>,
}

/// Why a reload failed.
#[derive(Debug)]
pub enum ReloadError {
    /// The policy does not load.
    Faulty(Problems),
    /// The policy conflicts with run-time rules.
    Invalid(InvalidRule),
}

impl ReloadError {
    /// The problems and their positions, without the lines of the file: the health endpoint is
    /// public, and some lines contain keys of customers.
    pub(crate) fn summary(&self) -> String {
        let Self::Faulty(problems) = self else { return self.to_string() };
        let one = |problem: &Problem| match (problem.file(), problem.line(), problem.column()) {
            (Some(file), Some(line), Some(column)) => {
                format!("{file}:{line}:{column}: {}", problem.message())
            }
            (Some(file), ..) => format!("{file}: {}", problem.message()),
            (None, ..) => problem.message().to_string(),
        };
        problems.iter().map(one).collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faulty(problems) => problems.fmt(f),
            Self::Invalid(invalid) => write!(f, "conflict with run-time rules: {invalid}"),
        }
    }
}

impl Error for ReloadError {}

impl PolicyManager {
    /// Manages the policy that `service` was made with. `read` is what `sources` contained, and
    /// `versions` are the files that it was read from.
    pub fn new(
        service: Arc<CheckService>,
        sources: impl Into<PolicySources>,
        read: impl Into<LoadedSources>,
        versions: FileVersions,
    ) -> Self {
        let (sources, read) = (sources.into(), read.into());
        let loaded_at = service.clock().now();
        service.metrics().count_reload(loaded_at);
        let started_with = read.policy.settings.clone();
        let certificates = read.tls.map(ReloadableTls::new).map(Arc::new);
        let state = ManagerState {
            settings: read.policy.settings,
            file: read.policy.rules,
            envoy: read.envoy,
            resources: None,
            resource_error: None,
            runtime: RuntimeLayers::default(),
            ahead: 0,
            inactive: HashMap::new(),
            next_end: None,
            copy_file_error: None,
            conflict: None,
            next_repair: None,
            failed_polls: 0,
            loaded_at,
            error: None,
            changes: None,
        };
        let (versions, state) = (Mutex::new(versions), Mutex::new(state));
        let store = Arc::new(ProcessStore::new(service.clock().clone()));
        Self {
            service,
            sources,
            certificates,
            started_with,
            versions,
            state,
            store,
            fleet: Arc::default(),
            copy_file: None,
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// The policy to activate for a loaded policy file.
    pub fn active(loaded: &LoadedPolicy, metrics: &Metrics) -> Result<ActivePolicy, InvalidRule> {
        file_policy(&loaded.settings, &loaded.rules, &None, metrics)
    }

    /// The certificates of the listeners, if TLS is on.
    pub fn certificates(&self) -> Option<&Arc<ReloadableTls>> {
        self.certificates.as_ref()
    }

    /// The current state of the files, if one of them has changed since it was read.
    pub fn file_change(&self) -> Option<FileChange> {
        lock(&self.versions).next_change()
    }

    /// Loads the sources again. A policy that does not load changes only [`PolicyManager::status`].
    pub fn reload(&self) -> Result<(), ReloadError> {
        let mut versions = lock(&self.versions);
        // Before the state is locked: a slow disk must not delay requests for the rules.
        let read = self.read(&mut versions).and_then(|read| self.with_resources(read));
        let read = read.and_then(|read| {
            read.check_store(self.store.is_shared())?;
            Ok(read)
        });
        let mut state = lock(&self.state);
        let result = match read {
            Ok(read) => self.apply(&mut state, read).map_err(ReloadError::Invalid),
            Err(problems) => Err(ReloadError::Faulty(problems)),
        };
        match &result {
            Ok(()) => {
                state.error = None;
                state.loaded_at = self.service.clock().now();
                self.service.metrics().count_reload(state.loaded_at);
                info!(rules = state.file.len(), "policy reloaded");
            }
            Err(error) => {
                state.error = Some(error.summary());
                self.service.metrics().count_failed_reload();
                warn!(%error, "policy reload failed; keeping the last valid policy");
            }
        }
        result
    }

    /// Reads the files, and again if one of them changed in the meantime.
    fn read(&self, versions: &mut FileVersions) -> Result<LoadedSources, Problems> {
        const TRIES: usize = 3;
        let mut read;
        (read, *versions) = self.sources.load();
        for _ in 1..TRIES {
            if versions.next_change().is_none() {
                break;
            }
            (read, *versions) = self.sources.load();
        }
        read
    }

    fn apply(&self, state: &mut ManagerState, read: LoadedSources) -> Result<(), InvalidRule> {
        for warning in read.warnings() {
            warn!("{warning}");
        }
        let LoadedSources { policy: loaded, envoy, tls } = read;
        let mut runtime = state.runtime.clone();
        runtime.set_settings(&loaded.settings);
        let layers = PolicyLayers {
            settings: &loaded.settings,
            file: &loaded.rules,
            runtime: &runtime,
            envoy: &envoy,
        };
        let composed = layers.compose(self.store_time(state), self.service.metrics())?;
        let (now, started) = (&loaded.settings, &self.started_with);
        let of_store = |s: &ServerSettings| {
            let where_to = (s.store.clone(), s.namespace.clone(), s.secret.clone());
            (where_to, s.memory, s.store_deadline, s.confirmed_by, s.deny_cache)
        };
        if of_store(now) != of_store(started) {
            let what =
                "store, memory, store_deadline, confirmed_by, deny_cache, namespace and secret";
            warn!("at least one of {what} changed; this needs a restart");
        }
        log_shadowed(&loaded.rules, &runtime);
        match (&self.certificates, tls) {
            (Some(certificates), Some(tls)) => match certificates.replace(tls.clone()) {
                Some(before) => log_client_certs(&before, &tls),
                None => warn!("turning TLS on or off needs a restart"),
            },
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => warn!("turning TLS on or off needs a restart"),
        }
        state.runtime = runtime;
        self.activate(state, composed);
        let now = self.service.clock().now();
        state.changes = Some(Arc::new(PolicyDiff::between(&state.file, &loaded.rules, now)));
        state.settings = loaded.settings;
        state.file = loaded.rules;
        state.envoy = envoy;
        Ok(())
    }

    /// The time of the store.
    pub(super) fn store_time(&self, state: &ManagerState) -> StoreTime {
        let now = self.service.clock().now().get().saturating_add_signed(state.ahead);
        StoreTime { now: Micros::new(now), ahead: state.ahead }
    }

    pub(super) fn activate(&self, state: &mut ManagerState, composed: ComposedPolicy) {
        self.service.set_policy(composed.active);
        state.log_ended(composed.now);
        state.conflict = None;
        state.inactive = composed.inactive;
        state.next_end = composed.next_end;
    }

    /// What the last reload changed about the rules of the files; `None` before the first reload.
    pub fn changes(&self) -> Option<Arc<PolicyDiff>> {
        self.state().changes.clone()
    }

    /// When the policy was loaded, and whether the last reload failed.
    pub fn status(&self) -> PolicyStatus {
        let state = self.state();
        PolicyStatus {
            loaded_at: state.loaded_at,
            error: state.error.clone().or_else(|| state.resource_error.clone()),
            runtime: state.runtime_problem(self.store.is_shared()),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, ManagerState> {
        lock(&self.state)
    }
}

impl ManagerState {
    /// What is wrong with run-time rules and overrides. Names rules, and no keys: the health
    /// endpoint is public.
    fn runtime_problem(&self, is_shared: bool) -> Option<String> {
        if is_shared && self.runtime.copy.contact().is_none() {
            return Some("run-time rules unknown: no reply from the store yet".into());
        }
        if self.failed_polls >= MAX_FAILED_POLLS {
            return Some("run-time rules may be out of date: no reply from the store".into());
        }
        if let Some(error) = &self.copy_file_error {
            return Some(format!("run-time file not written: {error}"));
        }
        if let Some(conflict) = &self.conflict {
            return Some(format!("run-time rules conflict with the policy file: {conflict}"));
        }
        let faults = self.runtime.faults.keys().chain(&self.runtime.unreadable);
        let mut faults: Vec<String> = faults.map(|name| kind(name)).collect();
        faults.dedup();
        (!faults.is_empty())
            .then(|| format!("cannot be used by this version: {}", faults.join(", ")))
    }

    /// All layers, with other run-time rules and overrides.
    pub(super) fn layers<'a>(&'a self, runtime: &'a RuntimeLayers) -> PolicyLayers<'a> {
        let Self { settings, file, envoy, .. } = self;
        PolicyLayers { settings, file, runtime, envoy }
    }

    /// One line for each override that has ended since the policy was last composed.
    fn log_ended(&self, now: Micros) {
        let Some(first) = self.next_end else { return };
        for (name, (_, field)) in &self.runtime.overrides {
            if field.until.is_some_and(|until| first <= until && until <= now) {
                let (field, by) = (name.to_string(), &field.by);
                info!(field, by, "override ended");
            }
        }
    }
}

/// Warns about listeners that no longer need client certificates.
fn log_client_certs(before: &ServerTls, now: &ServerTls) {
    for listener in ListenerKind::ALL {
        if before.requires_client_cert(listener) && !now.requires_client_cert(listener) {
            let listener = listener.name();
            warn!(listener, "client certificates are no longer required: client_ca was removed");
        }
    }
}

fn kind(name: &str) -> String {
    match FieldName::read(name) {
        Some(FieldName::Rule(rule)) => format!("run-time rule {rule}"),
        Some(FieldName::Override(rule, _)) => format!("an override of rule {rule}"),
        None => "a field of another kind".into(),
    }
}

/// Logs which rules of the file a run-time rule replaces, and which of them have changed since.
fn log_shadowed(rules: &[LoadedRule], runtime: &RuntimeLayers) {
    for rule in rules {
        let name = rule.file.name.as_str();
        let Some((_, field)) = runtime.rules.get(name) else { continue };
        let (by, at) = (&field.by, timestamp(field.at));
        info!(rule = name, by, at, "rule of the file is replaced by a run-time rule");
        if field.replaces.as_ref() != Some(&rule_hash(&rule.file)) {
            warn!(
                rule = name,
                by,
                at,
                "the file has changed this rule, but a run-time rule replaces it; delete that to \
                 use the file's"
            );
        }
    }
}

/// A hash of a rule that is the same in every process.
pub(super) fn rule_hash(rule: &RuleFile) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    let text = serde_json::to_vec(rule).unwrap_or_default();
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
    format!("{:016x}", text.iter().fold(OFFSET, fnv))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for PolicyManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyManager").field("sources", &self.sources).finish_non_exhaustive()
    }
}
