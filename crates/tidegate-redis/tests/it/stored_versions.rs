//! States that earlier versions wrote are read, and written as the present version.

use std::sync::Arc;
use std::time::Duration;

use testkit::redis::RedisServer;
use tidegate::{
    Call, Charge, Cost, Engine as _, HoldId, Limit, ManualClock, Micros, Op, Rule, RuleLimit,
};
use tidegate_redis::Redis;

/// A state of version 1: at `FIRST` one permit was used, 90 s later two more. Bytes in hexadecimal.
struct Stored {
    limit: &'static str,
    value: &'static str,
    log: [&'static str; 2],
    reset_after: u64,
}

const FIRST: u64 = 1_700_000_000_123_456;
const NO_LOG: [&str; 2] = ["", ""];
const VERSION_1: [Stored; 6] = [
    Stored {
        limit: "10/h",
        value: "010101000000000000f03f000000002a75b541000000000000f03f0000000000002440\
                00000000c01981cd4100b3f57590281843000000002a75c541",
        log: NO_LOG,
        reset_after: 960_000_000,
    },
    Stored {
        limit: "10/h every 1h",
        value: "0102010000008074d2ea41000000000000244000000000000024400000000000000840\
                0000000078d21c41",
        log: NO_LOG,
        reset_after: 2_679_876_544,
    },
    Stored {
        limit: "fixed-window 10/h",
        value: "0103010000000000000024400000008074d2ea41000000000000084000e0bca18f281843",
        log: NO_LOG,
        reset_after: 2_679_876_544,
    },
    Stored {
        limit: "sliding-log 10/h",
        value: "0104010000000000002440000000000000f03f0000008074d2ea410000000000000000\
                0000000000000000000000000000084000b3f57590281843",
        log: ["0089806090281843000000000000f03f", "00b3f575902818430000000000000840"],
        reset_after: 3_570_000_000,
    },
    Stored {
        limit: "sliding-window 10/h precision 1m",
        value: "010401000000000000244000000000389c8c410000000000804e400000000000000000\
                000000000000000000000000000008400000006051057b41",
        log: ["0000005051057b41000000000000f03f", "0000006051057b410000000000000840"],
        reset_after: 3_579_876_544,
    },
    Stored {
        limit: "sliding-window 10/h approximate",
        value: "010501000000000000f03f00000000000024400000008074d2ea410000000000000000\
                00000000000008400000000078d21c41",
        log: NO_LOG,
        reset_after: 6_279_876_544,
    },
];
/// What follows a value of version 1 if two permits are held, 100 s after `FIRST`; the flags of
/// such holds; their member and its deadline.
const HELD: &str = "0000000000000040000d5878902818430000000000000000000000000000f03f";
const HAS_HOLDS: u8 = 6;
const MEMBER: &str = "00000001400000000000000041dad274800000000030303030303030303030303030303030\
                      3030303030303030303030303030303031";
const DEADLINE: &str = "1700001900123456";
const CONCURRENCY: &str = "0106000000000000002440";
/// The key of `user-42` under the secret `s3cret`.
const TAG: &str = "tg:{d2947ba601fdd317a32e97ba673502ae}:old:";

struct Store {
    _server: RedisServer,
    admin: redis::Connection,
    engine: Redis,
    limit: Arc<RuleLimit>,
}

impl Store {
    fn start(text: &str) -> Self {
        let (server, clock) = (RedisServer::start(), ManualClock::default());
        clock.set(Micros::new(FIRST + 120_000_000));
        let builder = Redis::builder(&server.url()).secret("s3cret");
        let builder = builder.deadline(Duration::from_secs(30)).test_clock(clock);
        let admin = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        let limit: Limit = text.parse().unwrap();
        let limit = Rule::new("old", [limit]).unwrap().limits()[0].clone();
        Self { engine: builder.build().unwrap(), _server: server, admin, limit }
    }

    fn state(&self) -> String {
        format!("{TAG}{}", self.limit.state().strip_prefix("old:").unwrap())
    }

    fn store(&mut self, value: &str, log: [&str; 2], is_held: bool) {
        let (state, mut value) = (self.state(), bytes(value));
        for item in log.iter().filter(|item| !item.is_empty()) {
            self.run(redis::cmd("RPUSH").arg(format!("{state}:log")).arg(bytes(item)));
        }
        if is_held {
            value[2] |= HAS_HOLDS;
            value.extend(bytes(HELD));
            let key = format!("{state}:holds");
            self.run(redis::cmd("ZADD").arg(key).arg(DEADLINE).arg(bytes(MEMBER)));
        }
        self.run(redis::cmd("SET").arg(state).arg(value));
    }

    fn run(&mut self, command: &redis::Cmd) {
        command.query::<()>(&mut self.admin).unwrap();
    }

    fn value(&mut self) -> Vec<u8> {
        redis::cmd("GET").arg(self.state()).query(&mut self.admin).unwrap()
    }

    async fn decide(&self, op: Op<'_>, cost: u64) -> tidegate::Decision {
        let cost = Cost::total(cost);
        let charges = [Charge { limit: &self.limit, key: "user-42".into(), cost, caller: None }];
        let call = Call { op, charges: &charges, idempotency_key: None };
        self.engine.decide(call).await.unwrap()
    }

    async fn used_and_held(&self) -> (u64, u64) {
        let standing = self.engine.inspect(&self.limit, "user-42".into()).await.unwrap().standing;
        (standing.used, standing.held)
    }
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<_> = hexadecimal.chars().map(|digit| digit.to_digit(16).unwrap()).collect();
    digits.chunks(2).map(|pair| u8::try_from(16 * pair[0] + pair[1]).unwrap()).collect()
}

#[tokio::test]
async fn a_state_of_version_1_is_read_and_written_as_version_2() {
    for Stored { limit, value, log, reset_after } in VERSION_1 {
        for held in [0, 2] {
            let mut store = Store::start(limit);
            store.store(value, log, held > 0);
            let before = store.value();
            assert_eq!(store.used_and_held().await, (3, held), "{limit}");
            let peek = store.decide(Op::Peek, 0).await.verdict();
            let reset_after = if held > 0 { reset_after.max(1_780_000_000) } else { reset_after };
            assert_eq!(peek.reset_after, Micros::new(reset_after), "{limit}");
            assert!(!store.decide(Op::Check, 8 - held).await.allowed(), "{limit}");
            assert_eq!(store.value(), before, "{limit}: a denial writes nothing");
            assert!(store.decide(Op::Check, 7 - held).await.allowed(), "{limit}");
            assert_eq!(store.used_and_held().await, (10 - held, held), "{limit}");
            let (written, kind, flags) = (store.value(), before[1], before[2]);
            assert_eq!(written[..3], [2, kind, flags], "{limit}");
            // One stamp more.
            assert_eq!(written.len(), before.len() + 8, "{limit}");
        }
    }
}

#[tokio::test]
async fn slots_of_version_1_are_read() {
    let mut store = Store::start("concurrency 10 lease 1h");
    store.store(CONCURRENCY, NO_LOG, true);
    assert_eq!(store.used_and_held().await, (0, 2));
    let slot =
        Op::hold(HoldId::random().unwrap(), Micros::from_secs(60), tidegate::Expiry::Release);
    assert!(store.decide(slot, 8).await.allowed());
    assert_eq!((store.used_and_held().await, store.value()[0]), ((0, 10), 2));
}
