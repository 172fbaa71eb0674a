//! The door of the Redis protocol inside the test, on a clock that the test turns.

#![allow(dead_code, reason = "every test file uses its own part")]

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate::policy::PolicyRule;
use tidegate::{ManualClock, Memory, Policy};
use tidegate_server::active::{Active, Adhoc};
use tidegate_server::doors::Deadlines;
use tidegate_server::drain::{self, Drainer};
use tidegate_server::metrics::Metrics;
use tidegate_server::resp::connection;
use tidegate_server::service::Service;
use tidegate_server::tokens::Tokens;
use tidegate_tower::extract::TrustedProxies;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

/// A door on loopback; shut when it is dropped.
pub(crate) struct Door {
    pub(crate) address: SocketAddr,
    pub(crate) clock: ManualClock,
    pub(crate) service: Arc<Service>,
    pub(crate) drainer: Drainer,
    runtime: Runtime,
}

impl Door {
    /// Without rules, and open to all.
    pub(crate) fn open() -> Self {
        Self::with_tokens(Tokens::default())
    }

    pub(crate) fn with_tokens(tokens: Tokens) -> Self {
        Self::with(tokens, Deadlines::default())
    }

    pub(crate) fn with(tokens: Tokens, deadlines: Deadlines) -> Self {
        let clock = ManualClock::default();
        let metrics = Arc::new(Metrics::default());
        let policy = Policy::new([] as [PolicyRule; 0]).expect("no rules, no fault");
        let active = Active::new(policy, TrustedProxies::default(), Adhoc::Allow, &metrics);
        let engine = Memory::builder().clock(clock.clone()).build();
        let service = Arc::new(Service::new(Arc::new(engine), active, metrics));
        let (drainer, drain) = drain::channel();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address");
        let (tokens, served) = (Arc::new(tokens), service.clone());
        runtime.spawn(async move {
            let mut begun = drain.clone();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = begun.begun() => return,
                };
                let (stream, _) = accepted.expect("a client");
                let (service, tokens) = (served.clone(), tokens.clone());
                let serve = connection::serve(stream, service, tokens, deadlines, drain.clone());
                tokio::spawn(async move { serve.await.ok() });
            }
        });
        Self { address, clock, service, drainer, runtime }
    }

    /// Runs something to its end, beside the clients that are being served.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}
