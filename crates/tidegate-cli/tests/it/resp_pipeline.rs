//! Checks that are sent without waiting for replies: decided together, each as if alone.

use testkit::redis::RedisServer;
use testkit::resp::{FuzzRng, RespConnection, RespReply, command};
use testkit::server::ServerProcess;

const POLICY: &str = r#"
rules:
  - { name: few, limits: ["fixed-window 3/36500d first-hit"] }
  - { name: both, limits: ["sliding-log 9/36500d", "5/36500d"] }
  - { name: shadow, limits: ["7/36500d"], shadow_limits: ["2/36500d"] }
  - { name: guests, limits: ["1/36500d"], allow: [k1], deny: [k2] }
"#;

/// A random command. Most are checks.
fn random_command(rng: &mut FuzzRng) -> String {
    let key = rng.pick(&["k1", "k2", "k3"]);
    let rule = rng.pick(&["few", "both", "shadow", "guests", "unknown"]);
    let cost = rng.pick(&["1", "2", "0", "x"]);
    match rng.below(16) {
        0 => "PING".to_owned(),
        1 => format!("TG.CHECK {rule} {key} COST 1 ID {}", rng.below(4)),
        2 => format!("TG.PEEK {rule} {key}"),
        3 => rng.pick(&["TG.CHECK few", "TG.CHECK", "NOTHING", "TG.CHECK few k COST"]).to_owned(),
        4 => rng.pick(&["MULTI", "EXEC", "DISCARD"]).to_owned(),
        5..7 => format!("TG.LIMIT 4/36500d {key} COST {cost}"),
        7..9 => format!("TG.CHECK {rule} {key} COST {cost}"),
        9..11 => format!("CL.THROTTLE {key} 3 1 100000 {cost}"),
        _ => format!("TG.CHECK {rule} {key}"),
    }
}

/// A reply without the spans, which depend on the time, and without the source: a denial that is in
/// flight is not cached yet.
fn timeless(reply: &RespReply) -> RespReply {
    let RespReply::Array(items) = reply else { return reply.clone() };
    let spans: &[usize] = match items.len() {
        5 => &[3, 4],
        8 => &[3, 4, 5],
        _ => &[],
    };
    let is_span = |i: &usize| spans.contains(i) && matches!(items[*i], RespReply::Integer(1..));
    let is_source = |i: &usize| items.len() == 8 && *i == 7;
    let is_left_out = |i: usize| is_span(&i) || is_source(&i);
    let item = |i: usize| if is_left_out(i) { RespReply::Nil } else { timeless(&items[i]) };
    RespReply::Array((0..items.len()).map(item).collect())
}

fn compare(pipelined: &ServerProcess, one_by_one: &ServerProcess, seeds: u64) {
    let mut longest = 0;
    for seed in 1..=seeds {
        let mut rng = FuzzRng::new(seed);
        let [mut at_once, mut in_turn] =
            [pipelined, one_by_one].map(|server| RespConnection::connect(server.resp));
        for _ in 0..4 {
            // Longer ones are decided in several groups.
            let count = rng.pick(&[1, 2, 3, 20, 63, 64, 65, 200]);
            let lines: Vec<String> = (0..count).map(|_| random_command(&mut rng)).collect();
            let bytes: Vec<u8> = lines
                .iter()
                .flat_map(|line| command(&line.split(' ').collect::<Vec<_>>()))
                .collect();
            at_once.write(&bytes);
            for (i, line) in lines.iter().enumerate() {
                let (reply, expected) = (at_once.receive(), in_turn.send(line));
                assert_eq!(timeless(&reply), timeless(&expected), "seed {seed}, {i}: {line}");
            }
            longest = longest.max(count);
        }
    }
    assert_eq!(longest, 200);
}

#[test]
fn the_replies_to_a_pipeline_are_those_to_the_same_commands_in_turn() {
    compare(&ServerProcess::with_policy(POLICY), &ServerProcess::with_policy(POLICY), 60);
}

#[test]
fn the_replies_to_a_pipeline_are_those_to_the_same_commands_in_turn_on_redis() {
    let redis = [RedisServer::start(), RedisServer::start()];
    let [first, second] =
        redis.each_ref().map(|redis| ServerProcess::with_policy_on(&redis.url(), POLICY));
    compare(&first, &second, 20);
}
