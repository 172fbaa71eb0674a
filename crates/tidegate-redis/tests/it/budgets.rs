//! Budgets of tokens on Redis: what is really consumed stays within the bound of each algorithm.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use testkit::bounds::families::LIMIT_FAMILIES;
use testkit::budget_traffic::{
    BUDGET, Estimates, GatewayKind, Overshoot, WINDOW, consumption, tokens,
};
use tidegate::{Limiter, ManualClock};
use tidegate_redis::Redis;

#[tokio::test]
async fn holds_keep_the_bounds_of_every_algorithm() {
    let server = testkit::redis::RedisServer::start();
    for (seed, (name, make)) in LIMIT_FAMILIES.into_iter().enumerate() {
        let (limit, bound) = make(BUDGET, WINDOW);
        let clock = ManualClock::default();
        let builder = Redis::builder(&server.url()).deadline(Duration::from_secs(10));
        let engine = builder.namespace(&format!("n{seed}")).test_clock(clock.clone());
        let limiter = Limiter::with_rules(engine.build().unwrap(), [tokens(&limit)]).unwrap();
        let gateway = if seed % 2 == 0 { GatewayKind::Hold } else { GatewayKind::AtMost };
        let way = (gateway, Estimates::Mixed);
        let log = consumption(&limiter, &clock, way, 3, seed as u64).await;
        let found = Overshoot::of(&log, bound, Estimates::Mixed);
        assert_eq!(found.violations, 0, "{name}, seed {seed}: {found:?}");
        assert!(found.worst >= 50, "{name}: the traffic uses the budget");
    }
}

/// The commands of clients from now on, in the form of Redis's MONITOR.
struct ClientCommands(BufReader<TcpStream>);

impl ClientCommands {
    fn watch(server: &testkit::redis::RedisServer) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"MONITOR\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        reader.read_line(&mut String::new()).unwrap();
        Self(reader)
    }

    /// How many called a script, and how many read a record. What scripts do is not counted.
    fn counts(mut self, server: &testkit::redis::RedisServer) -> (usize, usize) {
        const END: &str = "all are counted";
        server.cli(&["ECHO", END]);
        let (mut scripts, mut reads) = (0, 0);
        loop {
            let mut line = Vec::new();
            self.0.read_until(b'\n', &mut line).unwrap();
            let line = String::from_utf8_lossy(&line).to_lowercase();
            if line.contains(END) {
                return (scripts, reads);
            }
            let is =
                |name: &str| !line.contains(" lua]") && line.contains(&format!("] \"{name}\""));
            scripts += usize::from(["evalsha", "eval", "fcall"].into_iter().any(is));
            reads += usize::from(["hget", "hmget", "get"].into_iter().any(is));
        }
    }
}

#[tokio::test]
async fn a_reservation_and_its_commit_are_two_scripts_and_one_read() {
    let server = testkit::redis::RedisServer::start();
    let engine = Redis::builder(&server.url()).deadline(Duration::from_secs(10)).build().unwrap();
    let rules = [
        tokens("fixed-window 100000/h"),
        tidegate::Rule::new("plain", ["9000/s".parse().unwrap()]).unwrap(),
    ];
    let limiter = Limiter::with_rules(engine, rules).unwrap();
    // The first call loads scripts and reads the secret.
    limiter.reserve("k", 5).await.unwrap().commit(3).await.unwrap();
    for at_most in [false, true] {
        let commands = ClientCommands::watch(&server);
        for _ in 0..10 {
            let reserve = match at_most {
                true => limiter.reserve_at_most("k", 2..=5),
                false => limiter.reserve("k", 5),
            };
            reserve.await.unwrap().commit(3).await.unwrap();
        }
        assert_eq!(commands.counts(&server), (20, 10), "at most: {at_most}");
    }
}
