//! A reservation whose reply was lost is cancelled, and does not hold permits until its deadline.

use std::future::{Future as _, IntoFuture, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use testkit::redis::RedisServer;
use tidegate::{
    Call, Charge, Cost, Costs, Engine, EngineError, Expiry, HoldId, HoldKind, HoldSpec, Key, Limit,
    Limited, Limiter, Micros, Op, Rule,
};
use tidegate_redis::Redis;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

const TIMEOUT: Duration = Duration::from_secs(20);

fn limiter(server: &RedisServer, deadline: Duration) -> Limiter {
    let engine = Redis::builder(&server.url()).deadline(deadline).build().unwrap();
    Limiter::new(engine, "concurrency 50 lease 1h".parse::<Limit>().unwrap())
}

async fn held(limiter: &Limiter, key: &str) -> u64 {
    limiter.inspect(key).await.unwrap()[0].standing.held
}

async fn until_no_holds(limiter: &Limiter, key: &str) {
    let waiting = async {
        while held(limiter, key).await > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, waiting).await.expect("holds do not end");
}

#[tokio::test]
async fn a_reservation_dropped_in_flight_is_cancelled() {
    let server = RedisServer::start();
    let limiter = limiter(&server, TIMEOUT);
    limiter.check("k").peek().await.unwrap();
    let before = server.script_calls();
    for round in 0..100 {
        let mut call = pin!(limiter.reserve("k", 1).into_future());
        for _ in 0..round % 5 {
            let polled = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
            if let Poll::Ready(made) = polled {
                made.unwrap().cancel().await.unwrap();
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    // A call dropped before it is sent leaves no trace, so enough have to be sent.
    assert!(server.script_calls() > before + 20, "hardly any call was sent");
    until_no_holds(&limiter, "k").await;
}

/// Several calls may make a hold of one name. One that is given up drops its own hold only.
#[tokio::test]
async fn a_named_hold_outlives_calls_of_its_name_that_are_dropped_in_flight() {
    let server = RedisServer::start();
    let engine = Redis::builder(&server.url()).deadline(TIMEOUT).build().unwrap();
    let rule = Rule::new("tokens", ["fixed-window 1000/h".parse().unwrap()]).unwrap();
    let (limit, key) = (&rule.limits()[0], Key::from("k"));
    let charges = [Charge { limit, key, cost: Cost::new(100).unwrap(), caller: None }];
    let id = HoldId::from(7);
    let hold = |attempt| {
        let (ttl, kind) = (Micros::from_secs(600), HoldKind::Named { attempt });
        let op = Op::Hold(HoldSpec { id, ttl, expiry: Expiry::Charge, kind, quantity: None });
        engine.decide(Call { op, charges: &charges, idempotency_key: None })
    };
    let abandon = async || {
        let before = server.script_calls();
        for round in 0..100 {
            let mut call = pin!(hold(round));
            for _ in 0..round % 5 {
                let polled = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
                if let Poll::Ready(Ok(made)) = &polled {
                    settle(&engine, made.hold().unwrap()).await;
                }
                if polled.is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        assert!(server.script_calls() > before + 20, "hardly any call was sent");
        // The drops are sent in the background.
        sleep(Duration::from_millis(300)).await;
    };
    let held = async || engine.inspect(limit, key).await.unwrap().standing.held;
    hold(1_000).await.unwrap();
    abandon().await;
    assert_eq!(held().await, 100, "that of the first call");
    settle(&engine, engine.locate_hold(id, key).await.unwrap()).await;
    abandon().await;
    let ending = async {
        while held().await > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, ending).await.expect("their own are dropped");
}

async fn settle(engine: &Redis, id: HoldId) {
    let op = Op::Settle { id, costs: Costs::All(Cost::ZERO) };
    engine.decide(Call { op, charges: &[], idempotency_key: None }).await.unwrap();
}

#[tokio::test]
async fn a_reservation_without_a_reply_is_cancelled_when_the_server_works_again() {
    let server = RedisServer::start();
    let patient = limiter(&server, TIMEOUT);
    let hasty = limiter(&server, Duration::from_secs(1));
    while hasty.check("k").peek().await.is_err() {}
    server.freeze();
    let lost = hasty.reserve("k", 1).await;
    server.thaw();
    assert!(matches!(lost, Err(Limited::NoAnswer(EngineError::Ambiguous(_)))), "{lost:?}");
    // The hold is made and cancelled right after it, so it may never be visible.
    let making = async {
        while server.calls("zadd") == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, making).await.expect("the hold was never made");
    until_no_holds(&patient, "k").await;
    // With an id it is kept, so that a retry gets it.
    while hasty.check("k").peek().await.is_err() {}
    server.freeze();
    let lost = hasty.reserve("other", 1).idempotency_key("job").await;
    server.thaw();
    assert!(matches!(lost, Err(Limited::NoAnswer(EngineError::Ambiguous(_)))), "{lost:?}");
    sleep(Duration::from_millis(1_500)).await;
    assert_eq!(held(&patient, "other").await, 1);
    let again = patient.reserve("other", 1).idempotency_key("job").await.unwrap();
    assert!(again.decision().unwrap().repeated());
    again.cancel().await.unwrap();
}

/// The reply is not one of a Tidegate script, so the call may have been charged.
#[tokio::test]
async fn an_unreadable_reply_is_ambiguous_if_it_may_have_charged() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve_partial_replies(stream));
        }
    });
    let engine = Redis::builder(&url).deadline(TIMEOUT).secret("s").build().unwrap();
    let limiter = Limiter::new(engine, "5/m".parse::<Limit>().unwrap());
    let checked = limiter.check("k").await.unwrap_err();
    assert!(matches!(checked, EngineError::Ambiguous(_)), "{checked}");
    let peeked = limiter.check("k").peek().await.unwrap_err();
    assert!(matches!(peeked, EngineError::Unavailable(_)), "{peeked}");
}

/// A server without keys, whose scripts return partial replies.
async fn serve_partial_replies(mut stream: TcpStream) {
    let mut buffer = [0; 65_536];
    while let Ok(len @ 1..) = stream.read(&mut buffer).await {
        let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
        for word in text.split("\r\n") {
            let reply = match word {
                "PING" => "+PONG\r\n",
                "CLIENT" | "HELLO" | "INFO" | "SET" => "+OK\r\n",
                "GET" => "$-1\r\n",
                "EVALSHA" => "*3\r\n:1\r\n:1\r\n:0\r\n",
                _ => continue,
            };
            stream.write_all(reply.as_bytes()).await.unwrap();
        }
    }
}
