//! A store that is out of memory admits nothing new, and still releases holds.

use std::io::{Write as _, stderr};
use std::time::Duration;

use testkit::engine::preload_functions;
use testkit::redis::RedisServer;
use tidegate::{EngineError, Limit, Limited, Limiter};
use tidegate_redis::Redis;

const LIMITS: [&str; 8] = [
    "10/30d",
    "10/30d every 30d",
    "fixed-window 10/30d",
    "fixed-window 10/month",
    "sliding-log 10/30d",
    "sliding-window 10/30d",
    "sliding-window 10/30d approximate",
    "concurrency 10 lease 30d",
];
/// Memory that may be used until the store is full, and what a few calls may exceed it by. A full
/// store refuses functions, and then keeps the text of a script that it is sent instead.
const ROOM: u64 = 200_000;
const BEYOND: u64 = 160_000;

#[tokio::test]
async fn once_the_store_is_full_new_keys_are_errors_and_holds_can_be_released() {
    let server = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    preload_functions(&server);
    for text in LIMITS {
        for holds in [false, true] {
            if text.starts_with("concurrency") && !holds {
                continue;
            }
            server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
            server.cli(&["FLUSHALL"]);
            let limit: Limit = text.parse().unwrap();
            let engine = Redis::builder(&server.url()).deadline(Duration::from_secs(10)).build();
            let limiter = Limiter::new(engine.unwrap(), limit);
            let kept = limiter.reserve("first", 2).await.unwrap().keep();
            let renewed = limiter.reserve("first", 2).await.unwrap().keep();
            let max = used_memory(&server) + ROOM;
            server.cli(&["CONFIG", "SET", "maxmemory", &max.to_string()]);
            let (mut done, mut errors) = (0, 0);
            for key in 0..3_000 {
                let key = format!("key-{key}");
                let result = if holds {
                    limiter.reserve(&key, 1).await.map(|made| _ = made.keep())
                } else {
                    limiter.check(&key).await.map(drop).map_err(Limited::from)
                };
                match result {
                    Ok(()) => done += 1,
                    Err(Limited::NoAnswer(EngineError::Unavailable(_))) => errors += 1,
                    Err(other) => panic!("{text}: {other}"),
                }
            }
            let used = used_memory(&server);
            let mut err = stderr().lock();
            let beyond = used.cast_signed() - max.cast_signed();
            writeln!(
                err,
                "out of memory: {text}, holds {holds}: {done} done, {errors} errors, {beyond} bytes \
                 beyond"
            )
            .unwrap();
            drop(err);
            assert!(errors > 1_000 && used < max + BEYOND, "{text}: {used} of {max} bytes");
            // Operations that release permits still work, and so does a renewal.
            server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
            let again = limiter.reservation(renewed);
            assert!(!again.renew(Duration::from_secs(60)).await.unwrap().expired(), "{text}");
            let cancelled = limiter.reservation(kept).cancel().await.unwrap();
            assert_eq!((cancelled.late(), cancelled.remaining()), (false, 8), "{text}");
            let settled = limiter.reservation(renewed).commit(1).await.unwrap();
            assert!(!settled.late(), "{text}");
            if !text.starts_with("concurrency") {
                assert_eq!(limiter.refund("first", 1).await.unwrap().refunded().get(), 1, "{text}");
            }
            assert_eq!(limiter.reset("first").await.unwrap().remaining(), 10, "{text}");
        }
    }
}

fn used_memory(server: &RedisServer) -> u64 {
    let info = server.cli(&["INFO", "memory"]);
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    line.trim().parse().unwrap()
}
