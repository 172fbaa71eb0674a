//! A whole server inside the test, whose patience the test chooses.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_server::doors;
use tidegate_server::metrics::Metrics;
use tidegate_server::policies::Source;
use tidegate_server::server::{Exposure, Options, Server};
use tidegate_server::service::Service;
use tidegate_server::tokens::Tokens;
use tokio::runtime::Runtime;

use crate::support::wait_until;

/// A server with the sample policy on memory; gone when it is dropped.
pub(crate) struct Inside {
    pub(crate) http: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) grpc: SocketAddr,
    service: Arc<Service>,
    runtime: Runtime,
}

impl Inside {
    pub(crate) fn start(doors: doors::Options, tokens: Tokens) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let options = Options {
            source: Source::Sample,
            store: None,
            http: any,
            resp: any,
            grpc: any,
            envoy: Default::default(),
            doors,
            traces: None,
            console_hosts: Vec::new(),
            tokens,
            exposure: Exposure::Guarded,
        };
        let runtime = Runtime::new().expect("a runtime");
        let server = runtime.block_on(Server::bind(options)).expect("it starts");
        let (http, resp) = (server.http_address().unwrap(), server.resp_address().unwrap());
        let grpc = server.grpc_address().unwrap();
        let service = server.service().clone();
        runtime.spawn(server.run(std::future::pending()));
        Self { http, resp, grpc, service, runtime }
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        self.service.metrics()
    }

    /// Waits until the metrics have this line.
    pub(crate) fn expect_metric(&self, line: &str) {
        let has_line = || {
            let text = self.service.metrics().render(&self.service.health());
            text.lines().any(|one| one == line).then_some(())
        };
        wait_until(has_line).unwrap_or_else(|| panic!("never so: {line}"));
    }
}
