//! A reservation whose answer nobody got is cancelled, and takes no permits until its deadline.

use std::future::{Future as _, IntoFuture, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::server;
use server::Server;
use tidegate::{EngineError, Limit, Limited, Limiter};
use tidegate_redis::Redis;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(20);

fn limiter(server: &Server, deadline: Duration) -> Limiter {
    let engine = Redis::builder(&server.url()).deadline(deadline).build().unwrap();
    Limiter::new(engine, "concurrency 50 lease 1h".parse::<Limit>().unwrap())
}

async fn held(limiter: &Limiter, key: &str) -> u64 {
    limiter.inspect(key).await.unwrap()[0].standing.held
}

async fn until_nothing_is_held(limiter: &Limiter, key: &str) {
    let waiting = async {
        while held(limiter, key).await > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("it is held for ever");
}

/// How often the server was given this command.
fn calls(server: &Server, command: &str) -> u64 {
    let info = server.cli(&["INFO", "commandstats"]);
    let (_, rest) = info.split_once(&format!("cmdstat_{command}:calls=")).unwrap_or(("", "0"));
    rest.split(',').next().unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn a_reservation_that_was_dropped_on_its_way_is_cancelled() {
    let server = Server::start();
    let limiter = limiter(&server, PATIENCE);
    limiter.check("k").peek().await.unwrap();
    let before = calls(&server, "evalsha");
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
    // Dropped before it is sent, it leaves no trace; there must be those that were sent.
    assert!(calls(&server, "evalsha") > before + 20, "hardly any was sent");
    until_nothing_is_held(&limiter, "k").await;
}

#[tokio::test]
async fn a_reservation_without_an_answer_is_cancelled_when_the_server_is_back() {
    let server = Server::start();
    let patient = limiter(&server, PATIENCE);
    let hasty = limiter(&server, Duration::from_millis(100));
    hasty.check("k").peek().await.unwrap();
    server.cli(&["CLIENT", "PAUSE", "400", "ALL"]);
    let lost = hasty.reserve("k", 1).await;
    assert!(matches!(lost, Err(Limited::NoAnswer(EngineError::Ambiguous(_)))), "{lost:?}");
    // It is made, and cancelled behind it: nobody else may see it.
    let making = async {
        while calls(&server, "zadd") == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, making).await.expect("it was never made");
    until_nothing_is_held(&patient, "k").await;
    // Under an id it is not: whoever asks again gets it.
    server.cli(&["CLIENT", "PAUSE", "400", "WRITE"]);
    let lost = hasty.reserve("other", 1).once("job").await;
    assert!(matches!(lost, Err(Limited::NoAnswer(EngineError::Ambiguous(_)))), "{lost:?}");
    sleep(Duration::from_millis(1_500)).await;
    assert_eq!(held(&patient, "other").await, 1);
    let again = patient.reserve("other", 1).once("job").await.unwrap();
    assert!(again.decision().unwrap().repeated());
    again.cancel().await.unwrap();
}

/// What it answers is not what a script of ours answers: it has charged, perhaps.
#[tokio::test]
async fn an_answer_that_cannot_be_read_is_ambiguous_if_it_may_have_charged() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(babble(stream));
        }
    });
    let engine = Redis::builder(&url).deadline(PATIENCE).secret("s").build().unwrap();
    let limiter = Limiter::new(engine, "5/m".parse::<Limit>().unwrap());
    let checked = limiter.check("k").await.unwrap_err();
    assert!(matches!(checked, EngineError::Ambiguous(_)), "{checked}");
    let peeked = limiter.check("k").peek().await.unwrap_err();
    assert!(matches!(peeked, EngineError::Unavailable(_)), "{peeked}");
}

/// A server that knows no keys, and whose scripts return half an answer.
async fn babble(mut stream: TcpStream) {
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
