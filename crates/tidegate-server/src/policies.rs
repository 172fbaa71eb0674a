//! Where the policy comes from: a file, read again when it changes, and rules set while running.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::{InvalidRule, Micros, Policy};
use tracing::{info, warn};

use crate::active::{Active, Adhoc};
use crate::changes::Changes;
use crate::config::{Config, Loaded, LoadedRule, Problem, Problems, Ratio, RuleFile, Settings};
use crate::doors::tls::{self, Certificates, Identity};
use crate::envoy::config::{EnvoyConfig, Options as EnvoyOptions, SameDomain};
use crate::metrics::Metrics;
use crate::service::Service;
use crate::watch::{Change, Reader, Seen};

/// The policy that is used when no file is named.
pub const SAMPLE: &str = include_str!("sample.yaml");

/// Where the policy comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// From the sample that is built in.
    Sample,
    /// From a file.
    File(PathBuf),
}

impl Source {
    /// Reads it, and tells which files were read for it.
    pub fn load(&self) -> (Result<Loaded, Problems>, Seen) {
        let reader = Reader::default();
        let loaded = self.load_from(&reader);
        (loaded, reader.into_seen())
    }

    fn load_from(&self, reader: &Reader) -> Result<Loaded, Problems> {
        match self {
            Self::Sample => Config::load_str("sample.yaml", SAMPLE),
            Self::File(path) => Config::load_from(path, reader),
        }
    }
}

/// Where the limits of Envoy's domains come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnvoySource {
    /// The folder.
    pub folder: PathBuf,
    /// What happens when two of its files are about one domain.
    pub same_domain: SameDomain,
}

/// All that was read.
#[derive(Debug)]
pub struct Read {
    /// The policy.
    pub policy: Loaded,
    /// The limits of Envoy's domains, if there are any.
    pub envoy: Option<Arc<EnvoyConfig>>,
    /// The certificates of the doors, if there are any.
    pub tls: Option<Identity>,
}

/// Where everything comes from that can be read again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sources {
    /// The policy.
    pub policy: Source,
    /// The limits of Envoy's domains, if there are any.
    pub envoy: Option<EnvoySource>,
    /// The certificates of the doors; those of the policy if not given.
    pub tls: Option<tls::Files>,
}

/// A policy and nothing for Envoy.
impl From<Source> for Sources {
    fn from(policy: Source) -> Self {
        Self { policy, envoy: None, tls: None }
    }
}

/// A policy and nothing for Envoy.
impl From<Loaded> for Read {
    fn from(policy: Loaded) -> Self {
        Self { policy, envoy: None, tls: None }
    }
}

impl Sources {
    /// Reads all of it, and tells which files were read.
    pub fn load(&self) -> (Result<Read, Problems>, Seen) {
        let reader = Reader::default();
        let read = self.load_from(&reader);
        (read, reader.into_seen())
    }

    fn load_from(&self, reader: &Reader) -> Result<Read, Problems> {
        let policy = self.policy.load_from(reader)?;
        let of_policy = policy.settings.tls.as_ref();
        let files = self.tls.clone().map(|given| {
            // Another certificate does not open the doors to everybody.
            let client_ca = of_policy.and_then(|files| files.client_ca.clone());
            tls::Files { client_ca: given.client_ca.or(client_ca), ..given }
        });
        let tls = files.as_ref().or(of_policy).map(|files| files.load(reader)).transpose()?;
        let Some(EnvoySource { folder, same_domain }) = &self.envoy else {
            return Ok(Read { policy, envoy: None, tls });
        };
        let Settings { on_store_failure, fallback_ratio, .. } = &policy.settings;
        let on_store_failure = on_store_failure.at(*fallback_ratio);
        let options = EnvoyOptions { same_domain: *same_domain, on_store_failure };
        let envoy = EnvoyConfig::load_from(folder, &options, reader)?;
        Ok(Read { policy, envoy: Some(Arc::new(envoy)), tls })
    }
}

impl Read {
    /// What looks like a mistake.
    pub fn warnings(&self) -> impl Iterator<Item = &Problem> {
        let envoy = self.envoy.iter().flat_map(|envoy| envoy.warnings());
        self.policy.warnings.iter().chain(envoy)
    }

    /// What it puts into force.
    pub fn active(&self, metrics: &Metrics) -> Result<Active, InvalidRule> {
        compose(&self.policy.settings, &self.policy.rules, &BTreeMap::new(), &self.envoy, metrics)
    }
}

/// The policy in force and how it came about.
pub struct Policies {
    service: Arc<Service>,
    sources: Sources,
    /// What the doors show, if they have TLS.
    certificates: Option<Arc<Certificates>>,
    /// What the server was started with and keeps to.
    started_with: Settings,
    /// The files as they were read last. Whoever reads them again holds it meanwhile: of two
    /// readings, the later comes into force later.
    seen: Mutex<Seen>,
    state: Mutex<State>,
}

struct State {
    settings: Settings,
    /// The rules of the file, the last good one.
    file: Vec<LoadedRule>,
    /// The limits of Envoy's domains.
    envoy: Option<Arc<EnvoyConfig>>,
    /// Rules that were set while running.
    runtime: BTreeMap<String, LoadedRule>,
    loaded_at: Micros,
    error: Option<String>,
    /// What the last reading of the files has changed.
    changes: Option<Arc<Changes>>,
}

/// A rule with where it comes from.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The rule by the book.
    pub file: RuleFile,
    /// Where it comes from.
    pub origin: Origin,
}

/// Some of the rules in force.
#[derive(Clone, Default, Debug)]
pub struct Selection {
    /// These.
    pub rules: Vec<Listed>,
    /// How many there are that fit.
    pub matching: usize,
    /// How many there are at all.
    pub all: usize,
}

/// Where a rule comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// From the policy file.
    File,
    /// It was set while running.
    Runtime,
}

impl Origin {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Runtime => "runtime",
        }
    }
}

/// How the policy is.
#[derive(Clone, Debug)]
pub struct Condition {
    /// When the policy in force was read.
    pub loaded_at: Micros,
    /// Why the file as it is now is not in force.
    pub error: Option<String>,
}

/// Why a rule was not changed.
#[derive(Debug)]
pub enum NotChanged {
    /// The rule is not one.
    Faulty(Problems),
    /// It does not fit with the others.
    Invalid(InvalidRule),
    /// There is one already.
    Exists,
    /// There is none.
    Unknown,
    /// It is the file's.
    FromFile,
    /// There are too many already.
    TooMany,
}

impl fmt::Display for NotChanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faulty(problems) => problems.fmt(f),
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::Exists => f.write_str("there is a rule of this name already"),
            Self::Unknown => f.write_str("no such rule"),
            Self::FromFile => f.write_str("the rule is the policy file's; change it there"),
            Self::TooMany => write!(
                f,
                "too many rules set while running; use at most {}",
                Policies::MAX_RUNTIME_RULES
            ),
        }
    }
}

impl Error for NotChanged {}

/// Why the policy as it is now did not come into force.
#[derive(Debug)]
pub enum NotLoaded {
    /// It is not one.
    Faulty(Problems),
    /// It does not fit with the rules that were set while running.
    Invalid(InvalidRule),
}

impl NotLoaded {
    /// What is wrong and where, without the lines themselves: anybody may ask for it, and keys of
    /// customers stand in some of them.
    fn in_brief(&self) -> String {
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

impl fmt::Display for NotLoaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faulty(problems) => problems.fmt(f),
            Self::Invalid(invalid) => {
                write!(f, "with the rules that were set while running: {invalid}")
            }
        }
    }
}

impl Error for NotLoaded {}

impl Policies {
    /// The most rules that are set while running.
    pub const MAX_RUNTIME_RULES: usize = 1_000;

    /// The policy that `service` was made with, read from `sources`.
    pub fn new(
        service: Arc<Service>,
        sources: impl Into<Sources>,
        read: impl Into<Read>,
        seen: Seen,
    ) -> Self {
        let (sources, read) = (sources.into(), read.into());
        let loaded_at = service.clock().now();
        service.metrics().count_reload(loaded_at);
        let started_with = read.policy.settings.clone();
        let certificates = read.tls.map(Certificates::new).map(Arc::new);
        let state = State {
            settings: read.policy.settings,
            file: read.policy.rules,
            envoy: read.envoy,
            runtime: BTreeMap::new(),
            loaded_at,
            error: None,
            changes: None,
        };
        let (seen, state) = (Mutex::new(seen), Mutex::new(state));
        Self { service, sources, certificates, started_with, seen, state }
    }

    /// What a policy that was read puts into force.
    pub fn active(loaded: &Loaded, metrics: &Metrics) -> Result<Active, InvalidRule> {
        compose(&loaded.settings, &loaded.rules, &BTreeMap::new(), &None, metrics)
    }

    /// What the doors show, if they have TLS.
    pub fn certificates(&self) -> Option<&Arc<Certificates>> {
        self.certificates.as_ref()
    }

    /// How its files are now, if one of them is another than when it was read.
    pub fn change(&self) -> Option<Change> {
        lock(&self.seen).change()
    }

    /// Reads the policy again. A bad one changes nothing but what health tells.
    pub fn reload(&self) -> Result<(), NotLoaded> {
        let mut seen = lock(&self.seen);
        // Before the state is locked: a slow disk must not hold up who asks for the rules.
        let read = self.read(&mut seen);
        let mut state = lock(&self.state);
        let result = match read {
            Ok(read) => self.put_into_force(&mut state, read).map_err(NotLoaded::Invalid),
            Err(problems) => Err(NotLoaded::Faulty(problems)),
        };
        match &result {
            Ok(()) => {
                state.error = None;
                state.loaded_at = self.service.clock().now();
                self.service.metrics().count_reload(state.loaded_at);
                info!(rules = state.file.len(), "policy reloaded");
            }
            Err(error) => {
                state.error = Some(error.in_brief());
                self.service.metrics().count_failed_reload();
                warn!(%error, "policy not reloaded, the last good one stays");
            }
        }
        result
    }

    /// Reads the files, once more if somebody wrote one of them meanwhile.
    fn read(&self, seen: &mut Seen) -> Result<Read, Problems> {
        const TRIES: usize = 3;
        let mut read;
        (read, *seen) = self.sources.load();
        for _ in 1..TRIES {
            if seen.change().is_none() {
                break;
            }
            (read, *seen) = self.sources.load();
        }
        read
    }

    fn put_into_force(&self, state: &mut State, read: Read) -> Result<(), InvalidRule> {
        let metrics = self.service.metrics();
        for warning in read.warnings() {
            warn!("{warning}");
        }
        let Read { policy: loaded, envoy, tls } = read;
        let active = compose(&loaded.settings, &loaded.rules, &state.runtime, &envoy, metrics)?;
        let (now, started) = (&loaded.settings, &self.started_with);
        let of_store = |s: &Settings| {
            let where_to = (s.store.clone(), s.namespace.clone(), s.secret.clone());
            (where_to, s.store_deadline, s.confirmed_by, s.deny_cache)
        };
        if of_store(now) != of_store(started) {
            let what = "store, store_deadline, confirmed_by, deny_cache, namespace and secret";
            warn!("{what} stay as they are until the server is restarted");
        }
        let set = loaded.rules.iter().filter(|rule| state.runtime.contains_key(&rule.file.name));
        for rule in set {
            warn!(rule = rule.file.name, "set while running; it stays until it is deleted");
        }
        match (&self.certificates, tls) {
            (Some(certificates), Some(tls)) => {
                let now = tls.knows_clients();
                if certificates.replace(tls).knows_clients() && !now {
                    warn!("clients no longer have to show a certificate: there is no client_ca");
                }
            }
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => {
                warn!("the doors keep TLS, or stay without it, until the server is restarted");
            }
        }
        self.service.activate(active);
        let now = self.service.clock().now();
        state.changes = Some(Arc::new(Changes::between(&state.file, &loaded.rules, now)));
        state.settings = loaded.settings;
        state.file = loaded.rules;
        state.envoy = envoy;
        Ok(())
    }

    /// Sets a rule until the server is restarted or it is deleted.
    pub fn put(&self, rule: &RuleFile, only_if: Presence) -> Result<Put, NotChanged> {
        let mut state = lock(&self.state);
        let exists = state.find(&rule.name).is_some();
        if only_if == Presence::Absent && exists {
            return Err(NotChanged::Exists);
        }
        let listed = self.set(&mut state, rule)?;
        Ok(if exists { Put::Replaced(listed) } else { Put::Created(listed) })
    }

    /// Changes the rule of this name until the server is restarted or it is deleted, in one step. One that is then as
    /// the file has it is the file's again.
    pub fn amend(
        &self,
        name: &str,
        change: impl FnOnce(&mut RuleFile),
    ) -> Result<Listed, NotChanged> {
        let mut state = lock(&self.state);
        let mut rule = state.find(name).ok_or(NotChanged::Unknown)?.0.file.clone();
        change(&mut rule);
        if state.in_file(name).is_some_and(|in_file| in_file.file == rule) {
            let mut runtime = state.runtime.clone();
            runtime.remove(name);
            self.change_runtime(&mut state, runtime)?;
            return Ok(Listed { file: rule, origin: Origin::File });
        }
        self.set(&mut state, &rule)
    }

    fn set(&self, state: &mut State, rule: &RuleFile) -> Result<Listed, NotChanged> {
        let name = rule.name.clone();
        let loaded = rule.load(&state.settings).map_err(NotChanged::Faulty)?;
        if state.runtime.len() >= Self::MAX_RUNTIME_RULES && !state.runtime.contains_key(&name) {
            return Err(NotChanged::TooMany);
        }
        let listed = Listed { file: loaded.file.clone(), origin: Origin::Runtime };
        let mut runtime = state.runtime.clone();
        runtime.insert(name, loaded);
        self.change_runtime(state, runtime)?;
        Ok(listed)
    }

    /// Takes back a rule that was set while running.
    pub fn delete(&self, name: &str) -> Result<(), NotChanged> {
        let mut state = lock(&self.state);
        let mut runtime = state.runtime.clone();
        if runtime.remove(name).is_none() {
            let in_file = state.in_file(name).is_some();
            return Err(if in_file { NotChanged::FromFile } else { NotChanged::Unknown });
        }
        self.change_runtime(&mut state, runtime)
    }

    fn change_runtime(
        &self,
        state: &mut State,
        runtime: BTreeMap<String, LoadedRule>,
    ) -> Result<(), NotChanged> {
        let metrics = self.service.metrics();
        let active = compose(&state.settings, &state.file, &runtime, &state.envoy, metrics);
        self.service.activate(active.map_err(NotChanged::Invalid)?);
        state.runtime = runtime;
        Ok(())
    }

    /// The rules in force, in order.
    pub fn rules(&self) -> Vec<Listed> {
        let state = lock(&self.state);
        let all = in_force(&state.file, &state.runtime);
        all.map(|(rule, origin)| Listed { file: rule.file.clone(), origin }).collect()
    }

    /// Some of the rules in force: those with `filter` in their name, but for the first `skip` of them, and no more
    /// than `most`.
    pub fn some_rules(&self, filter: &str, skip: usize, most: usize) -> Selection {
        let state = lock(&self.state);
        let mut some = Selection::default();
        for (rule, origin) in in_force(&state.file, &state.runtime) {
            some.all += 1;
            if !rule.file.name.contains(filter) {
                continue;
            }
            some.matching += 1;
            if some.matching > skip && some.rules.len() < most {
                some.rules.push(Listed { file: rule.file.clone(), origin });
            }
        }
        some
    }

    /// The rule of this name.
    pub fn rule(&self, name: &str) -> Option<Listed> {
        let state = lock(&self.state);
        let (rule, origin) = state.find(name)?;
        Some(Listed { file: rule.file.clone(), origin })
    }

    /// What the last reading of the files has changed about their rules; nothing if they were read once.
    pub fn changes(&self) -> Option<Arc<Changes>> {
        lock(&self.state).changes.clone()
    }

    /// The rule of this name in the file, whether or not another was set while running.
    pub fn in_file(&self, name: &str) -> Option<RuleFile> {
        lock(&self.state).in_file(name).map(|rule| rule.file.clone())
    }

    /// How the policy is.
    pub fn condition(&self) -> Condition {
        let state = lock(&self.state);
        Condition { loaded_at: state.loaded_at, error: state.error.clone() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Policies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policies").field("sources", &self.sources).finish_non_exhaustive()
    }
}

/// What became of a rule that was set.
#[derive(Clone, Debug)]
pub enum Put {
    /// There was none of its name.
    Created(Listed),
    /// It took the place of another.
    Replaced(Listed),
}

/// When a rule may be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// Whether there is one already or not.
    Any,
    /// Only if there is none.
    Absent,
}

impl State {
    fn find(&self, name: &str) -> Option<(&LoadedRule, Origin)> {
        let set = self.runtime.get(name).map(|rule| (rule, Origin::Runtime));
        set.or_else(|| Some((self.in_file(name)?, Origin::File)))
    }

    fn in_file(&self, name: &str) -> Option<&LoadedRule> {
        self.file.iter().find(|rule| rule.file.name == name)
    }
}

/// The rules of the file, each replaced by the one of its name that was set while running; then the
/// others that were set, by name.
fn in_force<'a>(
    file: &'a [LoadedRule],
    runtime: &'a BTreeMap<String, LoadedRule>,
) -> impl Iterator<Item = (&'a LoadedRule, Origin)> {
    let replaced = file.iter().map(|rule| match runtime.get(&rule.file.name) {
        Some(set) => (set, Origin::Runtime),
        None => (rule, Origin::File),
    });
    let names: HashSet<&str> = file.iter().map(|rule| &*rule.file.name).collect();
    let added = runtime.iter().filter(move |(name, _)| !names.contains(name.as_str()));
    replaced.chain(added.map(|(_, rule)| (rule, Origin::Runtime)))
}

fn compose(
    settings: &Settings,
    file: &[LoadedRule],
    runtime: &BTreeMap<String, LoadedRule>,
    envoy: &Option<Arc<EnvoyConfig>>,
    metrics: &Metrics,
) -> Result<Active, InvalidRule> {
    let policy = Policy::new(in_force(file, runtime).map(|(rule, _)| rule.rule.clone()))?;
    let trusted = settings.trusted_proxies.iter().copied().collect();
    let adhoc = if settings.adhoc { Adhoc::Allow } else { Adhoc::Refuse };
    let jitter = settings.retry_jitter.map(Ratio::share);
    let active = Active::new(policy, trusted, adhoc, metrics).with_retry_jitter(jitter);
    Ok(active.with_envoy(envoy.clone(), metrics))
}
