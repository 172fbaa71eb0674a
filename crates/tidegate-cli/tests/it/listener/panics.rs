//! Panics: an engine that panics on every call.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::policy::Enforcement;
use tidegate::{
    Call, Clock, Decision, Engine, EngineFuture, Health, Inspection, Key, ManualClock, Memory,
    RuleLimit,
};
use tidegate_server::internal::check::CheckService;
use tidegate_server::internal::console::{self, ConsoleContext, ConsoleState, CookieSecurity};
use tidegate_server::internal::observe::metrics::{ListenerKind, Metrics};
use tidegate_server::internal::policy::{PolicyManager, PolicySource};
use tidegate_server::internal::shutdown;
use tidegate_server::internal::transport::allowed_hosts::AllowedHosts;
use tidegate_server::internal::transport::auth::AuthTokens;
use tidegate_server::internal::transport::envoy::grpc::GrpcServices;
use tidegate_server::internal::transport::envoy::proto::Code;
use tidegate_server::internal::transport::envoy::service::EnvoyService;
use tidegate_server::internal::transport::envoy::settings::EnvoySettings;
use tidegate_server::internal::transport::http;
use tidegate_server::internal::transport::listener::Timeouts;
use tidegate_server::internal::transport::listener::http_connection;
use tidegate_server::internal::transport::resp;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use testkit::envoy::{EnvoyClient, EnvoyInProcess, descriptor, listen, request};
use testkit::resp::RespConnection;
use testkit::server::RawHttpConnection;

type Headers<'a> = &'a [(&'a str, &'a str)];

/// Panics on every call until disabled.
struct Careless {
    inner: Memory,
    mistakes: AtomicBool,
    when: When,
}

/// When the engine panics.
#[derive(Clone, Copy, PartialEq)]
enum When {
    AtOnce,
    /// When its future is polled.
    Later,
}

impl Careless {
    fn new(inner: Memory, when: When) -> Arc<Self> {
        Arc::new(Self { inner, mistakes: AtomicBool::new(true), when })
    }

    fn make_mistake(&self) {
        assert!(!self.mistakes.load(Ordering::Relaxed), "s3cr3t-of-the-panic");
    }
}

impl Engine for Careless {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        if self.when == When::AtOnce {
            self.make_mistake();
            return self.inner.decide(call);
        }
        EngineFuture::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            self.make_mistake();
            self.inner.decide(call).await
        }))
    }

    fn is_synchronous(&self) -> bool {
        self.when == When::AtOnce
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.make_mistake();
        self.inner.inspect(limit, key)
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
}

/// The listeners of a server on such an engine.
struct InProcessListeners {
    engine: Arc<Careless>,
    metrics: Arc<Metrics>,
    http: SocketAddr,
    resp: SocketAddr,
    _drainer: shutdown::ShutdownTrigger,
    _runtime: Runtime,
}

impl InProcessListeners {
    fn on(engine: Arc<Careless>) -> Self {
        let metrics = Arc::new(Metrics::default());
        let (loaded, seen) = PolicySource::Sample.load();
        let loaded = loaded.unwrap();
        let active = PolicyManager::active(&loaded, &metrics).unwrap();
        let service = Arc::new(CheckService::new(engine.clone(), active, metrics.clone()));
        let policies =
            Arc::new(PolicyManager::new(service.clone(), PolicySource::Sample, loaded, seen));
        let envoy = Arc::new(EnvoyService::new(service.clone(), EnvoySettings::default()));
        let tokens = Arc::new(AuthTokens::new(None, Some("admin")));
        let (drainer, drain) = shutdown::channel();
        let grpc =
            GrpcServices::new(envoy.clone(), tokens.clone(), Timeouts::default(), drain.clone());
        let (tokens, drained) = (tokens.clone(), drain.clone());
        let (address, clock) = ("127.0.0.1:0".parse().unwrap(), service.clock().clone());
        let console = Arc::new(ConsoleState::new(address, CookieSecurity::Off, clock));
        let (service_too, tokens_too) = (service.clone(), tokens.clone());
        let endpoint = http::AppState::from(http::AppContext {
            service: service_too,
            store_address: "memory".into(),
            policies,
            tokens: tokens_too,
            hosts: Arc::new(AllowedHosts::new(address, Vec::new())),
            envoy,
            drain,
            ready_when: Default::default(),
        });
        let pages = console::router(ConsoleContext { app: endpoint.clone(), console });
        let router = http::router(endpoint, &grpc, pages);
        let runtime = Runtime::new().unwrap();
        let (web, redis) = runtime
            .block_on(async {
                tokio::try_join!(TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"))
            })
            .unwrap();
        let (http, resp) = (web.local_addr().unwrap(), redis.local_addr().unwrap());
        let (counted, drain) = (metrics.clone(), drained.clone());
        runtime.spawn(async move {
            while let Ok((stream, _)) = web.accept().await {
                let open = counted.connect(ListenerKind::Http);
                let (router, drain) = (router.clone(), drain.clone());
                let serve =
                    http_connection::serve(stream, router, open, Timeouts::default(), drain);
                tokio::spawn(async move { serve.await.ok() });
            }
        });
        runtime.spawn(async move {
            while let Ok((stream, _)) = redis.accept().await {
                let (service, tokens, drain) = (service.clone(), tokens.clone(), drained.clone());
                let serve =
                    resp::connection::serve(stream, service, tokens, Timeouts::default(), drain);
                tokio::spawn(async move { serve.await.ok() });
            }
        });
        Self { engine, metrics, http, resp, _drainer: drainer, _runtime: runtime }
    }

    fn panics(&self, endpoint: &str) -> u64 {
        let start = format!("tidegate_panics_total{{listener=\"{endpoint}\"}} ");
        let text = self.metrics.render(&self.engine.health());
        text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok()).unwrap()
    }
}

#[test]
fn a_panic_denies_and_the_listeners_stay_open() {
    for when in [When::AtOnce, When::Later] {
        let endpoints = InProcessListeners::on(Careless::new(Memory::default(), when));
        let mut http = RawHttpConnection::connect(endpoints.http);
        let check = r#"{"rule":"login","key":"k"}"#;
        let wait = r#"{"rule":"login","key":"k","wait_ms":1000}"#;
        let uri = [("x-forwarded-uri", "/login"), ("x-forwarded-method", "POST")];
        let admin = [("authorization", "Bearer admin")];
        let calls: [(&str, &str, Headers, &str); 6] = [
            ("POST", "/v1/check", &[], check),
            ("POST", "/v1/check", &[], wait),
            ("POST", "/v1/reserve", &[], check),
            ("GET", "/v1/authorize", &uri, ""),
            ("GET", "/v1/keys/login/k", &[], ""),
            ("DELETE", "/v1/keys/login/k", &admin, ""),
        ];
        for (method, path, headers, body) in calls {
            // Over the same connection, one after the other.
            http.send(method, path, headers, body);
            let response = http.receive();
            assert_eq!(response.status, 500, "{path}: {}", response.body);
            assert_eq!(response.header("content-type"), Some("application/problem+json"));
            assert!(!response.body.contains("s3cr3t"), "{}", response.body);
        }
        assert_eq!(endpoints.panics("http"), 6);

        let commands = [
            "TG.CHECK login k",
            "CL.THROTTLE k 15 30 60",
            "TG.RESERVE login k 1",
            "TG.LIMIT 5/s k",
        ];
        for command in commands {
            let mut client = RespConnection::connect(endpoints.resp);
            assert!(client.send("PING").is("+PONG"));
            let reply = client.send(command).to_string();
            assert!(reply.starts_with("-NOANSWER internal error"), "{command}: {reply}");
            assert_eq!(client.try_receive().unwrap(), None, "what else is in order is not known");
        }
        assert_eq!(endpoints.panics("resp"), 4);

        endpoints.engine.mistakes.store(false, Ordering::Relaxed);
        http.send("POST", "/v1/check", &[], check);
        let response = http.receive();
        assert_eq!(
            (response.status, response.json()["remaining"].as_u64()),
            (200, Some(4)),
            "nothing was charged"
        );
        assert!(RespConnection::connect(endpoints.resp).send("TG.PEEK login k").items()[2].is("4"));
    }
}

#[test]
fn a_panic_denies_because_envoy_admits_on_errors() {
    const FILE: &str =
        "domain: d\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 5 } }]\n";
    let runtime = Runtime::new().unwrap();
    for (when, enforcement) in [
        (When::AtOnce, Enforcement::Enforce),
        (When::Later, Enforcement::Enforce),
        (When::AtOnce, Enforcement::Shadow),
    ] {
        let clock = ManualClock::default();
        let engine = Careless::new(Memory::builder().clock(clock.clone()).build(), when);
        let settings = EnvoySettings { enforcement, ..EnvoySettings::default() };
        let service = EnvoyInProcess::on(engine.clone(), clock, FILE, settings);
        runtime.block_on(async {
            let (address, _clock) = listen(service).await;
            let client = EnvoyClient::connect(address).await;
            let message = request("d", &[descriptor(&[("k", "v")])]);
            let response = client.should_rate_limit(&message).await;
            match enforcement {
                Enforcement::Enforce => {
                    assert_eq!(response.unwrap().overall_code(), Code::OverLimit)
                }
                Enforcement::Shadow => {
                    let status = response.unwrap_err();
                    assert_eq!(status.code(), tonic::Code::Internal);
                    assert!(!status.message().contains("s3cr3t"), "{status}");
                }
            }
            engine.mistakes.store(false, Ordering::Relaxed);
            assert_eq!(client.should_rate_limit(&message).await.unwrap().overall_code(), Code::Ok);
        });
    }
}
