//! The files that a policy is loaded from, and the policy that they make.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate::InvalidRule;
use tidegate_config::envoy::{DuplicateDomain, EnvoyConfig, EnvoyLoadOptions, EnvoyWindows};
use tidegate_config::{LoadedPolicy, PolicyLoader, Problem, Problems, ServerSettings};

use super::files::{FileVersions, RecordingReader};
use super::layers::file_policy;
use crate::check::ActivePolicy;
use crate::observe::metrics::Metrics;
use crate::tls::{ServerTls, TlsSources};

/// The policy of a server that is started without a policy file.
pub const SAMPLE: &str = include_str!("sample.yaml");

/// Where the policy comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PolicySource {
    /// The built-in sample.
    Sample,
    /// A file, watched for changes.
    File(PathBuf),
    /// A text that never changes.
    Inline(String),
}

impl PolicySource {
    /// Loads the policy; also returns the versions of the files that were read.
    pub fn load(&self) -> (Result<LoadedPolicy, Problems>, FileVersions) {
        let reader = RecordingReader::default();
        let loaded = self.load_from(&reader);
        (loaded, reader.into_versions())
    }

    fn load_from(&self, reader: &RecordingReader) -> Result<LoadedPolicy, Problems> {
        match self {
            Self::Sample => PolicyLoader::load_str("sample.yaml", SAMPLE),
            Self::File(path) => PolicyLoader::load_from(path, reader),
            Self::Inline(text) => PolicyLoader::load_str("policy", text),
        }
    }
}

/// Where the limits of Envoy's domains come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnvoySource {
    /// Who provides them.
    pub origin: EnvoyOrigin,
    /// How two files or resources of one domain are treated.
    pub same_domain: DuplicateDomain,
    /// Which algorithm a `rate_limit` stands for.
    pub windows: EnvoyWindows,
}

/// Who provides the limits of Envoy's domains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EnvoyOrigin {
    /// A folder of YAML files, watched for changes.
    Folder(PathBuf),
    /// A control plane.
    ControlPlane,
}

/// One resource of a control plane: its name, and its limits as a YAML file.
pub(crate) type EnvoyResource = (String, String);

/// The contents of all sources.
#[derive(Debug)]
pub struct LoadedSources {
    /// The rules and settings of the policy file.
    pub policy: LoadedPolicy,
    /// The limits of Envoy's domains, if configured.
    pub envoy: Option<Arc<EnvoyConfig>>,
    /// The certificates of the listeners, if configured.
    pub tls: Option<ServerTls>,
}

/// Everything that a reload reads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicySources {
    /// The policy file, or the built-in sample.
    pub policy: PolicySource,
    /// The limits of Envoy's domains, if configured.
    pub envoy: Option<EnvoySource>,
    /// The certificates of the listeners.
    pub tls: TlsSources,
}

/// A policy without limits for Envoy.
impl From<PolicySource> for PolicySources {
    fn from(policy: PolicySource) -> Self {
        Self { policy, envoy: None, tls: TlsSources::default() }
    }
}

/// A policy without limits for Envoy.
impl From<LoadedPolicy> for LoadedSources {
    fn from(policy: LoadedPolicy) -> Self {
        Self { policy, envoy: None, tls: None }
    }
}

impl PolicySources {
    /// Loads all sources; also returns the versions of the files that were read. Refuses what is
    /// not a regular file: a reload must not wait for the writer of a pipe.
    pub fn load(&self) -> (Result<LoadedSources, Problems>, FileVersions) {
        self.load_with(RecordingReader::default())
    }

    /// The same at the start, when pipes are read too.
    pub fn load_at_start(&self) -> (Result<LoadedSources, Problems>, FileVersions) {
        self.load_with(RecordingReader::with_pipes())
    }

    fn load_with(
        &self,
        reader: RecordingReader,
    ) -> (Result<LoadedSources, Problems>, FileVersions) {
        let read = self.load_from(&reader);
        (read, reader.into_versions())
    }

    fn load_from(&self, reader: &RecordingReader) -> Result<LoadedSources, Problems> {
        let policy = self.policy.load_from(reader)?;
        let tls = ServerTls::load_each(&self.tls, policy.settings.tls.as_ref(), reader)?;
        let Some(source) = &self.envoy else {
            return Ok(LoadedSources { policy, envoy: None, tls });
        };
        let envoy = match &source.origin {
            EnvoyOrigin::Folder(folder) => {
                EnvoyConfig::load_from(folder, &source.options(&policy.settings), reader)?
            }
            EnvoyOrigin::ControlPlane => EnvoyConfig::pending(),
        };
        Ok(LoadedSources { policy, envoy: Some(Arc::new(envoy)), tls })
    }
}

impl EnvoySource {
    /// The limits of these resources.
    pub(super) fn load_resources(
        &self,
        resources: &[EnvoyResource],
        settings: &ServerSettings,
    ) -> Result<Arc<EnvoyConfig>, Problems> {
        let texts = resources.iter().map(|(name, text)| (&**name, &**text));
        EnvoyConfig::load_resources(texts, &self.options(settings)).map(Arc::new)
    }

    fn options(&self, settings: &ServerSettings) -> EnvoyLoadOptions {
        let on_store_failure = settings.on_store_failure.at(settings.fallback_ratio);
        EnvoyLoadOptions { same_domain: self.same_domain, on_store_failure, windows: self.windows }
    }
}

impl LoadedSources {
    /// Settings that are valid but likely wrong.
    pub fn warnings(&self) -> impl Iterator<Item = &Problem> {
        let envoy = self.envoy.iter().flat_map(|envoy| envoy.warnings());
        self.policy.warnings.iter().chain(envoy)
    }

    /// Refuses limits with `rlqs` if other servers may lend shares of them too: each would lend the
    /// whole limit.
    pub(crate) fn check_store(&self, is_shared: bool) -> Result<(), Problems> {
        let lends =
            self.envoy.iter().flat_map(|envoy| envoy.leaves()).any(|it| it.shares().is_some());
        if lends && is_shared {
            let message = "rlqs lends shares of one process; use --store memory and one server";
            return Err(Problems::of(Problem::of_field("rlqs".into(), message.into())));
        }
        Ok(())
    }

    /// The policy to activate.
    pub fn active(&self, metrics: &Metrics) -> Result<ActivePolicy, InvalidRule> {
        let LoadedPolicy { settings, rules, .. } = &self.policy;
        file_policy(settings, rules, &self.envoy, metrics)
    }
}
