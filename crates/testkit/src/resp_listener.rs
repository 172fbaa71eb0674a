//! The RESP listener inside the test process, on a manual clock.

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate::policy::PolicyRule;
use tidegate::{ManualClock, Memory, Policy};
use tidegate_server::internal::check::CheckService;
use tidegate_server::internal::check::{ActivePolicy, AdhocLimits};
use tidegate_server::internal::observe::metrics::Metrics;
use tidegate_server::internal::shutdown;
use tidegate_server::internal::shutdown::ShutdownTrigger;
use tidegate_server::internal::transport::auth::AuthTokens;
use tidegate_server::internal::transport::listener::Timeouts;
use tidegate_server::internal::transport::resp::connection;
use tidegate_tower::extract::TrustedProxies;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

/// A listener on loopback, closed on drop.
pub struct RespListener {
    pub address: SocketAddr,
    pub clock: ManualClock,
    pub service: Arc<CheckService>,
    pub shutdown: ShutdownTrigger,
    runtime: Runtime,
}

impl RespListener {
    /// Without rules and without tokens.
    pub fn open() -> Self {
        Self::with_tokens(AuthTokens::default())
    }

    pub fn with_tokens(tokens: AuthTokens) -> Self {
        Self::with(tokens, Timeouts::default())
    }

    pub fn with(tokens: AuthTokens, timeouts: Timeouts) -> Self {
        let clock = ManualClock::default();
        let metrics = Arc::new(Metrics::default());
        let policy = Policy::new([] as [PolicyRule; 0]).expect("a policy without rules is valid");
        let active =
            ActivePolicy::new(policy, TrustedProxies::default(), AdhocLimits::Allow, &metrics);
        let engine = Memory::builder().clock(clock.clone()).build();
        let service = Arc::new(CheckService::new(Arc::new(engine), active, metrics));
        let (trigger, signal) = shutdown::channel();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address");
        let (tokens, served) = (Arc::new(tokens), service.clone());
        runtime.spawn(async move {
            let mut begun = signal.clone();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = begun.begun() => return,
                };
                let (stream, _) = accepted.expect("a client");
                let (service, tokens) = (served.clone(), tokens.clone());
                let serve = connection::serve(stream, service, tokens, timeouts, signal.clone());
                tokio::spawn(async move { serve.await.ok() });
            }
        });
        Self { address, clock, service, shutdown: trigger, runtime }
    }

    /// Runs a future to its end while the listener serves clients.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}
