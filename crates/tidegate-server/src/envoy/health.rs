//! Health over gRPC: whoever asks is told until the end, and whoever watches does not keep it from coming.

use std::time::Duration;

use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::drain::Drain;

/// How often health looks how the store is.
const LOOK_PAUSE: Duration = Duration::from_millis(250);
/// The method that goes on.
pub(super) const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// What is told about the services of these names. Cheap to clone.
///
/// Those who watch have statuses of their own: a stream ends when its status is cleared, and whoever asks then would be
/// told that there is no such service.
#[derive(Clone, Debug)]
pub(super) struct Health {
    names: &'static [&'static str],
    asked: HealthReporter,
    watched: HealthReporter,
}

impl Health {
    pub(super) fn of(names: &'static [&'static str]) -> Self {
        Self { names, asked: HealthReporter::new(), watched: HealthReporter::new() }
    }

    /// Answers whoever asks.
    pub(super) fn asked(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.asked.clone()))
    }

    /// Answers whoever watches, at [`WATCH`].
    pub(super) fn watched(&self) -> HealthServer<HealthService> {
        HealthServer::new(HealthService::from_health_reporter(self.watched.clone()))
    }

    /// Keeps it up to date until the server drains; then nothing is healthy any more.
    pub(super) async fn tell(&self, is_ready: impl Fn() -> bool, mut drain: Drain) {
        let mut told = None;
        loop {
            let ready = is_ready() && !drain.has_begun();
            if told != Some(ready) {
                told = Some(ready);
                self.set(if ready { ServingStatus::Serving } else { ServingStatus::NotServing })
                    .await;
            }
            if drain.has_begun() {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_PAUSE) => {}
                () = drain.begun() => {}
            }
        }
        // Whoever watches has been told, and would keep the server from ending.
        let mut watched = self.watched.clone();
        for name in self.names {
            watched.clear_service_status(name).await;
        }
    }

    async fn set(&self, status: ServingStatus) {
        for name in self.names {
            self.asked.set_service_status(name, status).await;
            self.watched.set_service_status(name, status).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::{Code, Request};
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_server::Health as _;

    use super::*;
    use crate::drain;

    #[tokio::test]
    async fn whoever_asks_is_told_until_the_end() {
        let health = Health::of(&["", "one"]);
        let (drainer, drain) = drain::channel();
        drainer.begin();
        health.tell(|| true, drain).await;
        let of = |service: &str| Request::new(HealthCheckRequest { service: service.into() });
        let asked = HealthService::from_health_reporter(health.asked.clone());
        for name in ["", "one"] {
            let answer = asked.check(of(name)).await.map(|answer| answer.into_inner().status);
            assert_eq!(answer.ok(), Some(ServingStatus::NotServing as i32), "{name:?}");
        }
        let other = asked.check(of("another")).await;
        assert_eq!(other.err().map(|status| status.code()), Some(Code::NotFound));
    }
}
