//! A whole server inside the test process, with timeouts chosen by the test.

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_server::internal::check::CheckService;
use tidegate_server::internal::observe::metrics::Metrics;
use tidegate_server::internal::policy::PolicySource;
use tidegate_server::internal::transport::auth::AuthTokens;
use tidegate_server::internal::transport::listener;
use tidegate_server::{Exposure, Server, ServerOptions};
use tokio::runtime::Runtime;

use crate::server::wait_until;

/// A server with the sample policy in memory, stopped on drop.
pub struct InProcessServer {
    pub http: SocketAddr,
    pub resp: SocketAddr,
    pub grpc: SocketAddr,
    service: Arc<CheckService>,
    runtime: Runtime,
}

impl InProcessServer {
    pub fn start(listeners: listener::ListenerOptions, tokens: AuthTokens) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = ServerOptions {
            source: PolicySource::Sample,
            store: None,
            http: Some(any),
            http_routes: Default::default(),
            resp: Some(any),
            grpc: Some(any),
            health: None,
            metrics: None,
            envoy: Default::default(),
            listeners,
            traces: None,
            console_hosts: Vec::new(),
            memory: None,
            runtime_file: None,
            ready_when: Default::default(),
            tokens,
            without_token: Vec::new(),
            exposure: Exposure::Guarded,
        };
        let runtime = Runtime::new().expect("a runtime");
        let server = runtime.block_on(Server::bind(options)).expect("the server starts");
        let (http, resp) = (server.http_address().unwrap(), server.resp_address().unwrap());
        let grpc = server.grpc_address().unwrap();
        let service = server.service().clone();
        runtime.spawn(server.run(std::future::pending()));
        Self { http, resp, grpc, service, runtime }
    }

    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub fn metrics(&self) -> &Metrics {
        self.service.metrics()
    }

    /// Waits until the metrics contain this line.
    pub fn expect_metric(&self, line: &str) {
        let has_line = || {
            let text = self.service.metrics().render(&self.service.health());
            text.lines().any(|one| one == line).then_some(())
        };
        wait_until(has_line).unwrap_or_else(|| panic!("the metrics never contain {line}"));
    }
}
