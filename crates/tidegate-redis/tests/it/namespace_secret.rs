//! A Redis that loses the stored secret, and a new process that stores another one first.

use std::sync::Arc;
use std::time::Duration;

use testkit::redis::RedisServer;
use tidegate::{Decision, Engine, EngineError, Limiter};
use tidegate_redis::{Redis, RedisBuilder};

/// The interval in which an engine looks for the secret on the same connection, and a little more.
const CHECK_INTERVAL: Duration = Duration::from_millis(1_050);

struct Process {
    engine: Arc<Redis>,
    limiter: Limiter,
}

impl Process {
    fn start(builder: RedisBuilder) -> Self {
        let engine = Arc::new(builder.deadline(Duration::from_secs(10)).build().unwrap());
        let limiter =
            Limiter::new(engine.clone(), "fixed-window 100/30d first-hit".parse().unwrap());
        Self { engine, limiter }
    }

    async fn check(&self) -> Result<Decision, EngineError> {
        self.limiter.check("subject").await
    }

    /// Waits until the process has connected to the restarted server.
    async fn reconnected(&self) {
        while self.engine.health().resets == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn remaining(&self) -> u64 {
        self.check().await.unwrap().remaining()
    }
}

#[tokio::test]
async fn after_a_restart_without_data_old_processes_use_the_secret_of_a_new_one() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let start = || Process::start(Redis::builder(&url));
    let old = [start(), start()];
    assert_eq!((old[0].remaining().await, old[1].remaining().await), (99, 98));
    redis.restart();
    let new = start();
    assert_eq!(new.remaining().await, 99, "the new process is the first");
    for process in &old {
        process.reconnected().await;
    }
    assert_eq!((old[0].remaining().await, old[1].remaining().await), (98, 97), "one count for all");
    assert!(old.iter().all(|process| process.engine.health().up));
}

/// Nothing shows that the data is gone: the counts under the old secret may still be in use.
#[tokio::test]
async fn a_secret_that_was_replaced_on_the_same_server_is_a_conflict_until_the_restart() {
    let redis = RedisServer::start();
    let start = || Process::start(Redis::builder(&redis.url()));
    let old = start();
    assert_eq!(old.remaining().await, 99);
    redis.cli(&["DEL", "tg:secret"]);
    let new = start();
    assert_eq!(new.remaining().await, 99);
    tokio::time::sleep(CHECK_INTERVAL).await;
    let error = old.check().await.unwrap_err();
    assert!(error.to_string().contains("another process has stored a new one"), "{error}");
    let health = old.engine.health();
    assert!(!health.up && error.to_string().ends_with(&*health.error.unwrap()), "{error}");
    // Restored, it is used again.
    redis.cli(&["DEL", "tg:secret"]);
    assert_eq!(old.remaining().await, 98);
    assert!(old.engine.health().up);
}

#[tokio::test]
async fn a_configured_secret_is_never_replaced() {
    let mut redis = RedisServer::start();
    let old = Process::start(Redis::builder(&redis.url()).secret("configured"));
    assert_eq!(old.remaining().await, 99);
    redis.restart();
    let new = Process::start(Redis::builder(&redis.url()));
    assert_eq!(new.remaining().await, 99);
    old.reconnected().await;
    let error = old.check().await.unwrap_err();
    assert!(error.to_string().contains("set the same secret everywhere"), "{error}");
    assert!(!old.engine.health().up);
}
