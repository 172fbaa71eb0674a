//! Limits of Envoy's domains that a control plane sends.

use std::sync::Arc;

use tidegate_config::Problems;
use tracing::{info, warn};

use super::manager::{PolicyManager, ReloadError, lock};
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
                state.resource_error = None;
                state.loaded_at = self.service.clock().now();
                self.service.metrics().count_reload(state.loaded_at);
                info!(domains, limits, "configuration of the control plane in force");
            }
            Err(error) => {
                state.resource_error = Some(error.summary());
                self.service.metrics().count_failed_reload();
                warn!(%error, "configuration of the control plane refused; keeping the last valid one");
            }
        }
        result.map(drop)
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
