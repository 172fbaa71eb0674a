//! Keeps the copy of run-time rules and overrides up to date with their store.
//!
//! Every server polls the store four times a second, so that two lost polls still leave a change
//! visible within a second. A server that knows newer fields than the store offers them: the store
//! has lost them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::{EngineError, FleetSize, Micros};
use tidegate_redis::{RuntimeHash, RuntimeVersion};
use tracing::{error, info, warn};

use super::layers::RuntimeLayers;
use super::manager::{MAX_FAILED_POLLS, ManagerState, PolicyManager};
use super::runtime::copy_file::CopyFile;
use crate::shutdown::Shutdown;

/// The mean time between two polls.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long a server waits before it offers a repair again.
const REPAIR_INTERVAL: Micros = Micros::from_secs(5);
/// The largest difference of the estimated clock offset that is ignored, in microseconds.
const MAX_OFFSET_ERROR: i64 = 100_000;

impl PolicyManager {
    /// Keeps run-time rules and overrides in Redis, and their last copy in a file. The copy that
    /// the file has is active until Redis replies. `fleet` gets the number of servers.
    pub(crate) fn with_runtime(
        mut self,
        hash: Option<RuntimeHash>,
        fleet: Arc<FleetSize>,
        file: Option<&Path>,
    ) -> io::Result<Self> {
        if let Some(hash) = hash {
            (self.store, self.fleet) = (Arc::new(hash), fleet);
        }
        self.copy_file = file.map(CopyFile::new);
        if let Some(file) = &self.copy_file {
            let copy = file.load()?;
            let names: Vec<String> = copy.fields().map(|(name, _)| name.into()).collect();
            let state = &mut *self.state();
            state.runtime = RuntimeLayers { copy, ..RuntimeLayers::default() };
            state.runtime.compile(&names, &state.settings);
            self.recompose(state);
            info!(fields = names.len(), "run-time rules and overrides loaded from the file");
        }
        Ok(self)
    }

    /// Polls the store until the server drains, and activates what has changed or ended.
    pub(crate) async fn follow_runtime(self: Arc<Self>, mut drain: Shutdown) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.until_next_poll()) => {}
                () = drain.begun() => return,
            }
            let now = self.service.clock().elapsed();
            if self.state().next_repair.take_if(|at| *at <= now).is_some() {
                self.state().runtime.copy.forget_version();
            }
            let polled = self.sync().await;
            self.count_poll(polled.err());
            let state = &mut *self.state();
            if state.next_end.is_some_and(|end| end <= self.store_time(state).now) {
                self.recompose(state);
            }
        }
    }

    /// Logs when the store stops replying, and when it replies again. Meanwhile the copy stays.
    fn count_poll(&self, error: Option<EngineError>) {
        let state = &mut *self.state();
        match error {
            Some(error) => {
                state.failed_polls = state.failed_polls.saturating_add(1);
                if state.failed_polls == MAX_FAILED_POLLS {
                    warn!(%error, "run-time rules and overrides cannot be read from the store");
                }
            }
            None => {
                if std::mem::take(&mut state.failed_polls) >= MAX_FAILED_POLLS {
                    info!("run-time rules and overrides can be read from the store again");
                }
            }
        }
    }

    /// With jitter of a fifth, so that servers do not poll at the same time; at most until the next
    /// override ends.
    fn until_next_poll(&self) -> Duration {
        let jitter = INTERVAL * 2 / 5 * (nonce() >> 16) / (1 << 16);
        let interval = INTERVAL * 4 / 5 + jitter;
        let state = self.state();
        let now = self.store_time(&state).now;
        match state.next_end {
            Some(end) => interval.min(end.saturating_sub(now).into()),
            None => interval,
        }
    }

    /// Compares the copy with the store, and merges both if they differ.
    pub(crate) async fn sync(&self) -> Result<(), EngineError> {
        let _turn = self.turn.lock().await;
        self.sync_in_turn().await.map(drop)
    }

    /// The same for a caller that has the turn. Returns the version of the store.
    pub(super) async fn sync_in_turn(&self) -> Result<RuntimeVersion, EngineError> {
        const TRIES: usize = 8;
        for _ in 0..TRIES {
            let version = self.poll().await?;
            if !self.state().runtime.copy.poll(&version) {
                return Ok(version);
            }
            let (version, stored) = self.store.read().await?;
            let repair = self.merge(&version, stored);
            self.save_copy().await;
            let Some(repair) = repair else { return Ok(version) };
            match self.store.write(&repair).await {
                Ok(Some(written)) => {
                    self.state().runtime.copy.confirm(&written);
                    let (set, deleted) = (repair.set.len(), repair.delete.len());
                    info!(set, deleted, "run-time rules and overrides repaired in the store");
                    return Ok(written);
                }
                // Another server was faster.
                Ok(None) => {}
                Err(error) => {
                    // A user without write access may still follow the store.
                    warn!(%error, "run-time rules and overrides cannot be repaired in the store");
                    let state = &mut *self.state();
                    state.runtime.copy.confirm(&version);
                    let now = self.service.clock().elapsed();
                    state.next_repair = Some(now.saturating_add(REPAIR_INTERVAL));
                    return Ok(version);
                }
            }
        }
        let busy = "other servers change run-time rules at the same time";
        Err(EngineError::unavailable(io::Error::other(busy)))
    }

    /// The version of the store. Estimates the offset of its clock, and records the number of
    /// servers.
    async fn poll(&self) -> Result<RuntimeVersion, EngineError> {
        /// A reply that took longer says too little about the clock.
        const MAX_ROUND_TRIP: Micros = Micros::from_millis(50);
        let clock = self.service.clock();
        let (begun, before) = (clock.elapsed(), clock.now());
        let version = self.store.poll().await?;
        self.fleet.record(clock.elapsed(), version.servers);
        let round_trip = clock.elapsed().saturating_sub(begun);
        if !self.store.is_shared() || round_trip > MAX_ROUND_TRIP {
            return Ok(version);
        }
        let half = before.get() + round_trip.get() / 2;
        let ahead = version.time.get() as i64 - half as i64;
        let state = &mut *self.state();
        if (ahead - state.ahead).abs() > MAX_OFFSET_ERROR {
            state.ahead = ahead;
            self.recompose(state);
        }
        Ok(version)
    }

    /// Merges the fields of the store, activates the result and logs what has changed. Returns the
    /// repair that the store needs.
    fn merge(
        &self,
        version: &RuntimeVersion,
        stored: Vec<(String, String)>,
    ) -> Option<tidegate_redis::RuntimeWrite> {
        let state = &mut *self.state();
        let is_first = state.runtime.copy.contact().is_none();
        let merged = state.runtime.copy.merge(version, stored, nonce());
        state.runtime.unreadable = merged.unreadable;
        self.apply_changes(state, &merged.changed);
        if is_first && self.store.is_shared() {
            let fields = merged.changed.len();
            info!(fields, "run-time rules and overrides loaded from the store");
        } else {
            log_applied(state, &merged.changed);
        }
        merged.repair
    }

    /// Compiles fields that have changed in the copy, and activates the policy.
    pub(super) fn apply_changes(&self, state: &mut ManagerState, changed: &[String]) {
        if changed.is_empty() {
            return;
        }
        state.runtime.compile(changed, &state.settings);
        self.recompose(state);
        for name in changed {
            if let Some(fault) = state.runtime.faults.get(name) {
                warn!(
                    field = name,
                    fault, "run-time field cannot be used; the last valid one stays"
                );
            }
        }
    }

    /// Activates the policy with the layers as they are now.
    fn recompose(&self, state: &mut ManagerState) {
        let time = self.store_time(state);
        match state.layers(&state.runtime).compose(time, self.service.metrics()) {
            Ok(composed) => self.activate(state, composed),
            Err(invalid) => {
                error!(%invalid, "run-time rules conflict with the policy file; nothing changed");
                state.conflict = Some(invalid);
            }
        }
    }

    /// Writes the copy to the file, if there is one.
    pub(super) async fn save_copy(&self) {
        let Some(file) = self.copy_file.clone() else { return };
        let copy = self.state().runtime.copy.clone();
        let saved = tokio::task::spawn_blocking(move || file.save(&copy)).await;
        let result = saved.unwrap_or_else(|error| Err(io::Error::other(error)));
        if let Err(error) = &result {
            error!(%error, "run-time file not written; a restart would lose the last changes");
        }
        self.state().copy_file_error = result.err().map(|error| error.to_string());
    }
}

/// One line for each change that is in force now.
pub(super) fn log_applied(state: &ManagerState, changed: &[String]) {
    let fields = changed.iter().filter(|name| !state.runtime.faults.contains_key(*name));
    for name in fields {
        let Some(field) = state.runtime.copy.get(name) else { continue };
        let (by, stamp) = (&field.by, field.stamp.to_string());
        info!(field = name, by, stamp, "run-time change applied");
    }
}

/// A random number, or 0 without a source of randomness: nonces only distinguish changes whose
/// stamps are otherwise equal.
pub(super) fn nonce() -> u32 {
    let mut bytes = [0; 4];
    let _ = getrandom::fill(&mut bytes);
    u32::from_le_bytes(bytes)
}
