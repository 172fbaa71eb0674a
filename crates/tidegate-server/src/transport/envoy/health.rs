//! grpc.health.v1: `Check` works until the end of the server, and `Watch` does not delay it.

use std::time::Duration;

use tidegate::Health;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::shutdown::Shutdown;

/// Time between two looks at the store.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Path of the streaming method.
pub(crate) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// Service name whose status follows the store, whenever the server is ready.
pub(crate) const STORE: &str = "store";

/// Publishes the health of services. Cheap to clone.
///
/// `Check` and `Watch` have separate reporters. Clearing a status ends its watches, but makes
/// `Check` report an unknown service.
#[derive(Clone, Debug)]
pub(crate) struct HealthPublisher {
    names: &'static [&'static str],
    checks: HealthReporter,
    watches: HealthReporter,
}

impl HealthPublisher {
    pub(crate) fn new(names: &'static [&'static str]) -> Self {
        Self { names, checks: HealthReporter::new(), watches: HealthReporter::new() }
    }

    /// Serves all methods except [`WATCH`].
    pub(crate) fn check_server(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.checks.clone()))
    }

    /// Serves [`WATCH`].
    pub(crate) fn watch_server(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.watches.clone()))
    }

    /// Updates the status until the server drains; then all services are unhealthy.
    pub(crate) async fn run(
        &self,
        health: impl Fn() -> Health,
        is_ready: impl Fn(&Health) -> bool,
        mut drain: Shutdown,
    ) {
        let mut published = None;
        loop {
            let (health, serves) = (health(), !drain.has_begun());
            let status = (is_ready(&health) && serves, health.up && serves);
            if published.replace(status) != Some(status) {
                self.set(self.names, status.0).await;
                self.set(&[STORE], status.1).await;
            }
            if drain.has_begun() {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = drain.begun() => {}
            }
        }
        // Watches have received the last status, and would delay the shutdown.
        let mut watches = self.watches.clone();
        for name in self.names.iter().chain(&[STORE]) {
            watches.clear_service_status(name).await;
        }
    }

    async fn set(&self, names: &[&str], is_healthy: bool) {
        let status = if is_healthy { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in names {
            self.checks.set_service_status(name, status).await;
            self.watches.set_service_status(name, status).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Request};
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_server::Health as _;

    use super::*;
    use crate::readiness::{Readiness, ReadyWhen};
    use crate::shutdown;

    #[tokio::test]
    async fn check_reports_a_status_until_the_end() {
        let health = HealthPublisher::new(&["", "one"]);
        let (drainer, drain) = shutdown::channel();
        drainer.begin();
        health.run(|| Health::up(None, 0), |_| true, drain).await;
        let of = |service: &str| Request::new(HealthCheckRequest { service: service.into() });
        let checks = HealthService::from_health_reporter(health.checks.clone());
        for name in ["", "one", STORE] {
            let status = checks.check(of(name)).await.map(|reply| reply.into_inner().status);
            assert_eq!(status.ok(), Some(ServingStatus::NotServing as i32), "{name:?}");
        }
        let other = checks.check(of("another")).await;
        assert_eq!(other.err().map(|status| status.code()), Some(Code::NotFound));
    }

    #[tokio::test]
    async fn without_the_store_the_services_follow_the_choice_and_the_store_is_not_serving() {
        for (when, needs_limits, expected) in [
            (ReadyWhen::Always, false, ServingStatus::Serving),
            (ReadyWhen::Store, false, ServingStatus::NotServing),
            (ReadyWhen::Always, true, ServingStatus::NotServing),
        ] {
            let ready = Readiness::new(when, needs_limits);
            let health = HealthPublisher::new(&["", "one"]);
            let (_drainer, drain) = shutdown::channel();
            let down = || {
                let mut health = Health::up(None, 0);
                health.up = false;
                health
            };
            let running = health.run(down, |health| ready.is_met(health, false), drain);
            let _ = tokio::time::timeout(POLL_INTERVAL, running).await;
            let checks = HealthService::from_health_reporter(health.checks.clone());
            for (name, expected) in [("", expected), (STORE, ServingStatus::NotServing)] {
                let request = Request::new(HealthCheckRequest { service: name.into() });
                let status = checks.check(request).await.map(|reply| reply.into_inner().status);
                assert_eq!(status.ok(), Some(expected as i32), "{ready:?} {name:?}");
            }
        }
    }
}
