//! A step of a call over several slots that arrives after its caller was killed and another caller
//! has done the work.

use std::sync::Arc;
use std::time::Duration;

use testkit::redis::RedisServer;
use tidegate::{
    Call, Charge, Cost, Decision, Engine as _, EngineError, IdempotencyKey, Key, Op, Rule,
    RuleLimit,
};
use tidegate_redis::Redis;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const TIMEOUT: Duration = Duration::from_secs(20);
const SUBJECTS: [&str; 2] = ["first", "second"];

/// For example, packets were lost and sent again after the sending machine had failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_is_charged_once_though_a_hold_under_it_arrives_late() {
    let server = RedisServer::start();
    let (proxy, url) = DelayingProxy::begin(server.port()).await;
    let limit = limit();
    let other = engine(&server.url());

    // A caller is killed before the first step under the id has arrived.
    let killed = std::thread::spawn({
        let (limit, proxy) = (limit.clone(), proxy.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let engine = engine(&url);
                assert!(decide(&engine, &limit, "before").await.unwrap().allowed());
                proxy.0.send_replace(ProxyState::Watch);
                let mut call = Box::pin(decide(&engine, &limit, "id"));
                let mut state = proxy.0.subscribe();
                tokio::select! {
                    result = call.as_mut() => panic!("{result:?}"),
                    _ = state.wait_for(|state| *state == ProxyState::Caught) => {}
                }
                // As if the process was killed: nothing is released.
                std::mem::forget(call);
            });
        }
    });
    tokio::task::spawn_blocking(move || killed.join().unwrap()).await.unwrap();

    assert!(decide(&other, &limit, "id").await.unwrap().allowed());
    assert_eq!(standing(&other, &limit).await, [(2, 0), (2, 0)]);
    proxy.0.send_replace(ProxyState::Pass);
    let mut state = proxy.0.subscribe();
    let arrived = state.wait_for(|state| *state == ProxyState::Passed);
    timeout(TIMEOUT, arrived).await.expect("the step does not arrive").unwrap();
    // Its holds expire.
    let ended = async {
        sleep(Duration::from_millis(100)).await;
        while standing(&other, &limit).await.iter().any(|(_, held)| *held > 0) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(TIMEOUT, ended).await.expect("holds do not end");
    assert_eq!(standing(&other, &limit).await, [(2, 0), (2, 0)], "charged twice under one id");
    assert!(decide(&other, &limit, "id").await.unwrap().repeated());
}

fn engine(url: &str) -> Redis {
    let builder = Redis::builder(url).secret("the same for all").test_force_cross_slot();
    builder.deadline(Duration::from_secs(2)).build().unwrap()
}

fn limit() -> Arc<RuleLimit> {
    let rule = Rule::new("late", ["fixed-window 60/30d first-hit".parse().unwrap()]).unwrap();
    rule.limits()[0].clone()
}

async fn decide(engine: &Redis, limit: &Arc<RuleLimit>, id: &str) -> Result<Decision, EngineError> {
    let charge = |key| Charge { limit, key: Key::from(key), cost: Cost::ONE, caller: None };
    let once = Some(IdempotencyKey::new(id).unwrap());
    engine
        .decide(Call { op: Op::Check, charges: &SUBJECTS.map(charge), idempotency_key: once })
        .await
}

async fn standing(engine: &Redis, limit: &Arc<RuleLimit>) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for subject in SUBJECTS {
        let found = engine.inspect(limit, Key::from(subject)).await.unwrap().standing;
        all.push((found.used, found.held));
    }
    all
}

/// A proxy to a server that can delay the first step of a call.
#[derive(Clone)]
struct DelayingProxy(Arc<watch::Sender<ProxyState>>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProxyState {
    /// Everything passes.
    Open,
    /// The next hold is delayed.
    Watch,
    Caught,
    /// The delayed hold may be forwarded.
    Pass,
    /// The delayed hold was forwarded.
    Passed,
}

impl DelayingProxy {
    async fn begin(port: u16) -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let proxy = Self(Arc::new(watch::Sender::new(ProxyState::Open)));
        let forwarding = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let ((from, mut to), (mut back, mut there)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut back, &mut to).await });
                let forwarding = forwarding.clone();
                tokio::spawn(async move {
                    let mut from = from;
                    let mut bytes = vec![0; 1 << 16];
                    while let Ok(len @ 1..) = from.read(&mut bytes).await {
                        let caught = forwarding.catch(&bytes[..len]).await;
                        there.write_all(&bytes[..len]).await.unwrap();
                        if caught {
                            forwarding.0.send_replace(ProxyState::Passed);
                        }
                    }
                });
            }
        });
        (proxy, url)
    }

    /// Delays a hold until it may pass, if the proxy waits for one.
    async fn catch(&self, bytes: &[u8]) -> bool {
        let is_hold = bytes.windows(5).any(|word| word == b"visit");
        if !is_hold || *self.0.borrow() != ProxyState::Watch {
            return false;
        }
        self.0.send_replace(ProxyState::Caught);
        let _ = self.0.subscribe().wait_for(|state| *state == ProxyState::Pass).await;
        true
    }
}
