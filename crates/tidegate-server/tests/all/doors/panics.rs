//! Our own mistakes: an engine that makes one with every question.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::{
    Answer, Call, Charge, Clock, Decision, Engine, Health, Inspection, Key, ManualClock, Memory,
    RuleLimit, Source as DecidedBy, Verdict,
};
use tidegate_server::console::{Console, Tls};
use tidegate_server::doors::Deadlines;
use tidegate_server::drain;
use tidegate_server::envoy::grpc::Grpc;
use tidegate_server::envoy::proto::Code;
use tidegate_server::envoy::service::{Enforcement, RateLimits, Settings};
use tidegate_server::http::{self, connection};
use tidegate_server::metrics::{Door, Metrics};
use tidegate_server::policies::{Policies, Source};
use tidegate_server::resp;
use tidegate_server::service::Service;
use tidegate_server::tokens::Tokens;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::envoy::{Client as EnvoyClient, InProcess, descriptor, open, request};
use crate::resp::Client;
use crate::support::Http;

type Headers<'a> = &'a [(&'a str, &'a str)];

/// Panics with every question until it is told to behave.
struct Careless {
    inner: Memory,
    mistakes: AtomicBool,
    when: When,
}

/// When it panics.
#[derive(Clone, Copy, PartialEq)]
enum When {
    AtOnce,
    /// Once it is waited for.
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
    fn decide<'a>(&'a self, call: Call<'a>) -> Answer<'a, Decision> {
        if self.when == When::AtOnce {
            self.make_mistake();
            return self.inner.decide(call);
        }
        Answer::Later(Box::pin(async move {
            tokio::task::yield_now().await;
            self.make_mistake();
            self.inner.decide(call).await
        }))
    }

    fn check_one(&self, charge: &Charge<'_>) -> Option<(DecidedBy, Verdict)> {
        if self.when == When::Later {
            return None;
        }
        self.make_mistake();
        self.inner.check_one(charge)
    }

    fn inspect<'a>(&'a self, limit: &'a Arc<RuleLimit>, key: Key<'a>) -> Answer<'a, Inspection> {
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

/// The doors of a server on such an engine.
struct Doors {
    engine: Arc<Careless>,
    metrics: Arc<Metrics>,
    http: SocketAddr,
    resp: SocketAddr,
    _drainer: drain::Drainer,
    _runtime: Runtime,
}

impl Doors {
    fn on(engine: Arc<Careless>) -> Self {
        let metrics = Arc::new(Metrics::default());
        let (loaded, seen) = Source::Sample.load();
        let loaded = loaded.unwrap();
        let active = Policies::active(&loaded, &metrics).unwrap();
        let service = Arc::new(Service::new(engine.clone(), active, metrics.clone()));
        let policies = Arc::new(Policies::new(service.clone(), Source::Sample, loaded, seen));
        let envoy = Arc::new(RateLimits::new(service.clone(), Settings::default()));
        let tokens = Arc::new(Tokens::new(None, Some("admin")));
        let (drainer, drain) = drain::channel();
        let grpc = Grpc::new(envoy.clone(), tokens.clone(), Deadlines::default(), drain.clone());
        let (tokens, drained) = (tokens.clone(), drain.clone());
        let (address, clock) = ("127.0.0.1:0".parse().unwrap(), service.clock().clone());
        let console = Arc::new(Console::new(address, Tls::Off, Vec::new(), clock));
        let (service_too, tokens_too) = (service.clone(), tokens.clone());
        let door = http::Door {
            service: service_too,
            policies,
            tokens: tokens_too,
            envoy,
            console,
            drain,
        };
        let router = http::router(door, &grpc);
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
                let open = counted.connect(Door::Http);
                let (router, drain) = (router.clone(), drain.clone());
                let serve = connection::serve(stream, router, open, Deadlines::default(), drain);
                tokio::spawn(async move { serve.await.ok() });
            }
        });
        runtime.spawn(async move {
            while let Ok((stream, _)) = redis.accept().await {
                let (service, tokens, drain) = (service.clone(), tokens.clone(), drained.clone());
                let serve =
                    resp::connection::serve(stream, service, tokens, Deadlines::default(), drain);
                tokio::spawn(async move { serve.await.ok() });
            }
        });
        Self { engine, metrics, http, resp, _drainer: drainer, _runtime: runtime }
    }

    fn panics(&self, door: &str) -> u64 {
        let start = format!("tidegate_panics_total{{door=\"{door}\"}} ");
        let text = self.metrics.render(&self.engine.health());
        text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok()).unwrap()
    }
}

#[test]
fn a_mistake_of_ours_denies_and_the_doors_stay_open() {
    for when in [When::AtOnce, When::Later] {
        let doors = Doors::on(Careless::new(Memory::default(), when));
        let mut http = Http::connect(doors.http);
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
            let answer = http.receive();
            assert_eq!(answer.status, 500, "{path}: {}", answer.body);
            assert_eq!(answer.header("content-type"), Some("application/problem+json"));
            assert!(!answer.body.contains("s3cr3t"), "{}", answer.body);
        }
        assert_eq!(doors.panics("http"), 6);

        let commands = [
            "TG.CHECK login k",
            "CL.THROTTLE k 15 30 60",
            "TG.RESERVE login k 1",
            "TG.LIMIT 5/s k",
        ];
        for command in commands {
            let mut client = Client::connect(doors.resp);
            assert!(client.ask("PING").is("+PONG"));
            let told = client.ask(command).to_string();
            assert!(
                told.starts_with("-NOANSWER the server has made a mistake"),
                "{command}: {told}"
            );
            assert_eq!(client.try_receive().unwrap(), None, "what else is in order is not known");
        }
        assert_eq!(doors.panics("resp"), 4);

        doors.engine.mistakes.store(false, Ordering::Relaxed);
        http.send("POST", "/v1/check", &[], check);
        let answer = http.receive();
        assert_eq!(
            (answer.status, answer.json()["remaining"].as_u64()),
            (200, Some(4)),
            "nothing was charged"
        );
        assert!(Client::connect(doors.resp).ask("TG.PEEK login k").items()[2].is("4"));
    }
}

#[test]
fn envoy_is_told_to_deny_because_it_takes_an_error_for_leave_to_pass() {
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
        let settings = Settings { enforcement, ..Settings::default() };
        let service = InProcess::on(engine.clone(), clock, FILE, settings);
        runtime.block_on(async {
            let (address, _clock) = open(service).await;
            let client = EnvoyClient::connect(address).await;
            let question = request("d", &[descriptor(&[("k", "v")])]);
            let answer = client.ask(&question).await;
            match enforcement {
                Enforcement::Enforce => assert_eq!(answer.unwrap().overall_code(), Code::OverLimit),
                Enforcement::Shadow => {
                    let status = answer.unwrap_err();
                    assert_eq!(status.code(), tonic::Code::Internal);
                    assert!(!status.message().contains("s3cr3t"), "{status}");
                }
            }
            engine.mistakes.store(false, Ordering::Relaxed);
            assert_eq!(client.ask(&question).await.unwrap().overall_code(), Code::Ok);
        });
    }
}
