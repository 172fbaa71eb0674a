//! `tidegate-redis` uses the module of a server that has it, and the scripts otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use testkit::engine::wait_until;
use testkit::redis::RedisServer;
use tidegate::{
    Call, Clock, Decision, Engine, EngineFuture, Health, HoldId, Inspection, Key, Limit, Limiter,
    ManualClock, RuleLimit,
};
use tidegate_model::{ChangeModel, EngineSystem, Profile, SharingClass, Spec, run, run_size};
use tidegate_redis::Redis;

use crate::fixture::{module_path, start, start_without};

pub(crate) fn build(url: &str) -> Redis {
    Redis::builder(url).secret("s3cret").deadline(Duration::from_secs(30)).build().unwrap()
}

/// The URL of a user who may call everything but the commands of `denied`.
fn url_without(server: &RedisServer, denied: &str) -> String {
    let words = ["ACL", "SETUSER", "plain", "on", ">secret", "~*", "&*", "+@all", denied];
    assert_eq!(server.cli(&words), "OK");
    format!("redis://plain:secret@127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn the_engine_passes_the_conformance_suite_through_the_module() {
    let server = start();
    tidegate::conformance::run(|clock| {
        let builder = Redis::builder(&server.url()).deadline(Duration::from_secs(10));
        builder.test_clock(clock).build().unwrap()
    })
    .await;
    let native = server.calls("TG.DECIDE");
    assert!(native > 500, "{native} calls of the module");
}

/// Sends calls through two engines in turns.
struct ByTurns {
    engines: [Redis; 2],
    next: AtomicUsize,
}

impl ByTurns {
    fn engine(&self) -> &Redis {
        &self.engines[self.next.fetch_add(1, Ordering::Relaxed) % 2]
    }
}

impl Engine for ByTurns {
    fn decide<'a>(&'a self, call: Call<'a>) -> EngineFuture<'a, Decision> {
        self.engine().decide(call)
    }

    fn inspect<'a>(
        &'a self,
        limit: &'a Arc<RuleLimit>,
        key: Key<'a>,
    ) -> EngineFuture<'a, Inspection> {
        self.engine().inspect(limit, key)
    }

    fn locate_hold<'a>(&'a self, id: HoldId, key: Key<'a>) -> EngineFuture<'a, HoldId> {
        self.engine().locate_hold(id, key)
    }

    fn health(&self) -> Health {
        self.engines[0].health()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.engines[0].clock()
    }
}

/// Traces until the module has decided so many calls by turns with the scripts.
fn compare_with_model(class: SharingClass, wanted: u64) {
    let server = start();
    // An engine that may not ask for the modules of the server sends scripts.
    let urls = [server.url(), url_without(&server, "-info")];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = ManualClock::default();
    let engines = runtime.block_on(async {
        urls.map(|url| {
            let builder = Redis::builder(&url).secret("s3cret").deadline(Duration::from_secs(30));
            builder.test_clock(clock.clone()).build().unwrap()
        })
    });
    let engine: Arc<dyn Engine> = Arc::new(ByTurns { engines, next: AtomicUsize::new(0) });
    let model = ChangeModel::Shared(class);
    let profile = Profile { last_instant: 1 << 52, model, returns: true, ..Profile::ENGINE };
    let (mut seed, mut decisions) = (0, 0);
    while server.calls("TG.DECIDE") < wanted {
        for _ in 0..20 {
            let make = |specs: &[Spec]| {
                let wait = |decision: EngineFuture<'_, Decision>| runtime.block_on(decision);
                let key = format!("trace-{seed}");
                let system = EngineSystem::new(engine.clone(), clock.clone(), specs, key, wait);
                match class {
                    SharingClass::Policies => system,
                    SharingClass::Calls => system.with_limits_of_calls(specs),
                }
            };
            decisions +=
                run(seed, profile, make).unwrap_or_else(|mismatch| panic!("{mismatch}")).calls;
            seed += 1;
        }
    }
    let native = server.calls("TG.DECIDE");
    eprintln!(
        "module = script = model, {class:?}: {decisions} decisions in {seed} traces by turns, \
         {native} calls of the module, 0 mismatches"
    );
}

#[test]
fn the_module_and_the_scripts_by_turns_decide_as_the_model_does() {
    compare_with_model(SharingClass::Policies, run_size(300, 3_000, 300_000));
}

#[test]
fn limits_that_come_with_calls_are_decided_as_the_model_does_by_turns() {
    compare_with_model(SharingClass::Calls, run_size(300, 1_000, 100_000));
}

pub(crate) const PLENTY: &str = "fixed-window 1000000/365d first-hit";

/// How much of the limit is used.
pub(crate) async fn used(limiter: &Limiter, key: &str) -> u64 {
    limiter.inspect(key).await.unwrap()[0].standing.used
}

#[tokio::test]
async fn a_module_that_is_unloaded_and_loaded_again_is_replaced_and_used_again() {
    let server = start();
    let limiter = Limiter::new(build(&server.url()), PLENTY.parse::<Limit>().unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) {
                    assert!(limiter.check("user").await.unwrap().allowed());
                    done += 1;
                }
                done
            })
        })
        .collect();
    wait_until(|| server.calls("TG.DECIDE") > 20).await;
    for _ in 0..3 {
        assert_eq!(server.cli(&["MODULE", "UNLOAD", "tidegate"]), "OK");
        let before = server.script_calls();
        wait_until(|| server.script_calls() > before + 20).await;
        assert_eq!(server.cli(&["MODULE", "LOAD", &module_path()]), "OK");
        // The statistics of a command begin again with it.
        wait_until(|| server.calls("TG.DECIDE") > 20).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut done = 0;
    for caller in callers {
        done += caller.await.unwrap();
    }
    assert_eq!(used(&limiter, "user").await, done);
}

#[tokio::test]
async fn a_server_without_the_module_or_without_permission_for_it_runs_the_scripts() {
    let (plain, server) = (RedisServer::start(), start());
    for url in [plain.url(), url_without(&server, "-tg.decide")] {
        let limiter = Limiter::new(build(&url), PLENTY.parse::<Limit>().unwrap());
        for _ in 0..5 {
            assert!(limiter.check("user").await.unwrap().allowed());
        }
        assert_eq!(used(&limiter, "user").await, 5);
    }
    assert_eq!((server.calls("TG.DECIDE"), plain.calls("TG.DECIDE")), (0, 0));
}

#[tokio::test]
async fn a_full_server_still_denies() {
    let server = start();
    let limiter =
        Limiter::new(build(&server.url()), "fixed-window 2/365d".parse::<Limit>().unwrap());
    for allowed in [true, true, false] {
        assert_eq!(limiter.check("user").await.unwrap().allowed(), allowed);
    }
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(!limiter.check("user").await.unwrap().allowed(), "nothing has to be written");
    assert!(limiter.check("other").await.is_err());
}

#[test]
fn a_server_can_get_the_module_while_it_runs() {
    let server = start_without(&[]);
    assert_eq!(server.cli(&["MODULE", "LOAD", &module_path()]), "OK");
    assert!(server.cli(&["INFO", "modules"]).contains("module:name=tidegate,"));
}
