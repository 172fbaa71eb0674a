//! A step of a call over several slots that arrives when its caller has long gone, and another one has
//! done the work.

use std::sync::Arc;
use std::time::Duration;

use crate::server;
use server::Server;
use tidegate::{
    Call, CallId, Charge, Cost, Decision, Engine as _, EngineError, Key, Op, Rule, RuleLimit,
};
use tidegate_redis::Redis;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);
const SUBJECTS: [&str; 2] = ["first", "second"];

/// Its packets were lost, say, and sent again, when the machine that sent them had failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_is_charged_once_though_a_hold_under_it_comes_late() {
    let server = Server::start();
    let (late, url) = Late::begin(server.port()).await;
    let limit = limit();
    let other = engine(&server.url());

    // Somebody asks, and is gone before the first step under the id has arrived.
    let gone = std::thread::spawn({
        let (limit, late) = (limit.clone(), late.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let engine = engine(&url);
                assert!(ask(&engine, &limit, "before").await.unwrap().allowed());
                late.0.send_replace(State::Watch);
                let mut call = Box::pin(ask(&engine, &limit, "id"));
                let mut state = late.0.subscribe();
                tokio::select! {
                    answer = call.as_mut() => panic!("{answer:?}"),
                    _ = state.wait_for(|state| *state == State::Caught) => {}
                }
                // As if the process had gone: nobody is left to drop anything.
                std::mem::forget(call);
            });
        }
    });
    tokio::task::spawn_blocking(move || gone.join().unwrap()).await.unwrap();

    assert!(ask(&other, &limit, "id").await.unwrap().allowed());
    assert_eq!(standing(&other, &limit).await, [(2, 0), (2, 0)]);
    late.0.send_replace(State::Pass);
    let mut state = late.0.subscribe();
    let arrived = state.wait_for(|state| *state == State::Passed);
    timeout(PATIENCE, arrived).await.expect("it does not arrive").unwrap();
    // Whatever it holds ends by itself.
    let ended = async {
        sleep(Duration::from_millis(100)).await;
        while standing(&other, &limit).await.iter().any(|(_, held)| *held > 0) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, ended).await.expect("it is held for ever");
    assert_eq!(standing(&other, &limit).await, [(2, 0), (2, 0)], "charged twice under one id");
    assert!(ask(&other, &limit, "id").await.unwrap().repeated());
}

fn engine(url: &str) -> Redis {
    let builder = Redis::builder(url).secret("the same for all").test_slots_apart();
    builder.deadline(Duration::from_secs(2)).build().unwrap()
}

fn limit() -> Arc<RuleLimit> {
    let rule = Rule::new("late", ["fixed-window 60/30d first-hit".parse().unwrap()]).unwrap();
    rule.limits()[0].clone()
}

async fn ask(engine: &Redis, limit: &Arc<RuleLimit>, id: &str) -> Result<Decision, EngineError> {
    let charge = |key| Charge { limit, key: Key::from(key), cost: Cost::ONE, who: None };
    let once = Some(CallId::new(id).unwrap());
    engine.decide(Call { op: Op::Check, charges: &SUBJECTS.map(charge), once }).await
}

async fn standing(engine: &Redis, limit: &Arc<RuleLimit>) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for subject in SUBJECTS {
        let found = engine.inspect(limit, Key::from(subject)).await.unwrap().standing;
        all.push((found.used, found.held));
    }
    all
}

/// A way to a server on which the first step of a call can be kept back.
#[derive(Clone)]
struct Late(Arc<watch::Sender<State>>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Everything passes.
    Open,
    /// The next hold does not.
    Watch,
    Caught,
    /// It may go on,
    Pass,
    /// and has.
    Passed,
}

impl Late {
    async fn begin(port: u16) -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}/", listener.local_addr().unwrap());
        let late = Self(Arc::new(watch::Sender::new(State::Open)));
        let way = late.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let ((from, mut to), (mut back, mut there)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(async move { tokio::io::copy(&mut back, &mut to).await });
                let way = way.clone();
                tokio::spawn(async move {
                    let mut from = from;
                    let mut bytes = vec![0; 1 << 16];
                    while let Ok(len @ 1..) = from.read(&mut bytes).await {
                        let caught = way.catch(&bytes[..len]).await;
                        there.write_all(&bytes[..len]).await.unwrap();
                        if caught {
                            way.0.send_replace(State::Passed);
                        }
                    }
                });
            }
        });
        (late, url)
    }

    /// Keeps a hold back until it may pass, if one is waited for.
    async fn catch(&self, bytes: &[u8]) -> bool {
        let is_hold = bytes.windows(5).any(|word| word == b"visit");
        if !is_hold || *self.0.borrow() != State::Watch {
            return false;
        }
        self.0.send_replace(State::Caught);
        let _ = self.0.subscribe().wait_for(|state| *state == State::Pass).await;
        true
    }
}
