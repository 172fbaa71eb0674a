//! Limits of Envoy's domains that a control plane sends.

use std::sync::Arc;

use tidegate_config::Problems;
use tracing::{info, warn};

use super::manager::{ManagerState, PolicyManager, ReloadError, lock};
use super::sources::{EnvoyOrigin, EnvoyResource, EnvoySource, LoadedSources};

impl PolicyManager {
    /// Replaces the limits of Envoy's domains by those of these resources. All of them are in force
    /// at once; after an error, the ones before stay.
    pub(crate) fn set_resources(&self, resources: Vec<EnvoyResource>) -> Result<(), ReloadError> {
        // Held throughout, as by a reload, so that of two concurrent changes the later one wins.
        let _versions = lock(&self.versions);
        let result = self.apply_resources(resources.into());
        let state = &mut *self.state();
        match &result {
            Ok((domains, limits)) => {
                self.accept(state);
                info!(domains, limits, "configuration of the control plane in force");
            }
            Err(error) => {
                self.refuse(state, error.summary());
                warn!(%error, "configuration of the control plane refused; keeping the last valid one");
            }
        }
        result.map(drop)
    }

    /// The last resources cannot be read.
    pub(crate) fn refuse_resources(&self, error: &str) {
        let state = &mut *self.state();
        self.refuse(state, error.into());
        warn!(error, "configuration of the control plane refused; keeping the last valid one");
    }

    /// The last resources are those that are in force already, perhaps after refused ones.
    pub(crate) fn keep_resources(&self) {
        let state = &mut *self.state();
        if state.control_plane.refusal.is_some() {
            self.accept(state);
            info!("configuration of the control plane is the one in force again");
        }
    }

    /// Notes that no stream has a response, and why; the time of the first such note stays.
    pub(crate) fn lose_control_plane(&self, cause: String) {
        let now = self.service.clock().now();
        let state = &mut *self.state();
        state.control_plane.lose(now, cause);
        self.update_control_plane_metric(state);
    }

    /// Notes that a stream has a response.
    pub(crate) fn reach_control_plane(&self) {
        let state = &mut *self.state();
        state.control_plane.silence = None;
        self.update_control_plane_metric(state);
    }

    /// Whether the limits of Envoy's domains are known: not before the first configuration of a
    /// control plane.
    pub(crate) fn has_limits(&self) -> bool {
        self.control_plane().is_none() || self.state().resources.is_some()
    }

    fn accept(&self, state: &mut ManagerState) {
        state.control_plane.refusal = None;
        self.count_load(state);
        self.update_control_plane_metric(state);
    }

    fn refuse(&self, state: &mut ManagerState, error: String) {
        state.control_plane.refusal = Some(error);
        self.count_failed_load(state);
    }

    fn update_control_plane_metric(&self, state: &ManagerState) {
        let is_up = state.resources.is_some() && state.control_plane.silence.is_none();
        self.service.metrics().set_control_plane_up(is_up);
    }

    /// What is wrong with the control plane or its configuration, with a line for each problem.
    pub(super) fn control_plane_problem(&self, state: &ManagerState) -> Option<String> {
        self.control_plane()?;
        state.control_plane.problems(state.resources.is_some())
    }

    /// Returns the number of domains and of limits.
    fn apply_resources(
        &self,
        resources: Arc<[EnvoyResource]>,
    ) -> Result<(usize, usize), ReloadError> {
        let Some(source) = self.control_plane() else { return Ok((0, 0)) };
        let settings = self.state().settings.clone();
        let envoy = source.load_resources(&resources, &settings).map_err(ReloadError::Faulty)?;
        for warning in envoy.warnings() {
            warn!("{warning}");
        }
        let counts = (envoy.domains().len(), envoy.leaves().count());
        let state = &mut *self.state();
        let before = state.envoy.replace(envoy);
        let layers = state.layers(&state.runtime);
        match layers.compose(self.store_time(state), self.service.metrics()) {
            Ok(composed) => {
                self.activate(state, composed);
                state.resources = Some(resources);
                Ok(counts)
            }
            Err(invalid) => {
                state.envoy = before;
                Err(ReloadError::Invalid(invalid))
            }
        }
    }

    /// Adds the last valid resources of the control plane to what a reload has read. Settings of
    /// the policy file may apply to them.
    pub(super) fn with_resources(
        &self,
        mut read: LoadedSources,
    ) -> Result<LoadedSources, Problems> {
        let resources = self.state().resources.clone();
        if let (Some(source), Some(resources)) = (self.control_plane(), resources) {
            read.envoy = Some(source.load_resources(&resources, &read.policy.settings)?);
        }
        Ok(read)
    }

    fn control_plane(&self) -> Option<&EnvoySource> {
        let source = self.sources.envoy.as_ref()?;
        (source.origin == EnvoyOrigin::ControlPlane).then_some(source)
    }
}
