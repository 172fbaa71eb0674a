//! Runs the commands of the README with the real program, Redis and a server in Python.

use std::path::Path;

use testkit::console_blocks::{ConsoleBlocks, has_programs};

#[test]
fn processes_that_share_redis_stay_below_the_limit_of_a_third_party() {
    if !has_programs(&["python3", "redis-server"]) {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    ConsoleBlocks::new(&[6379, 9000])
        .program("outgoing-calls", Path::new(env!("CARGO_BIN_EXE_outgoing-calls")))
        .files(folder)
        .variable("TIDEGATE_REDIS_URL", "redis://127.0.0.1:6379")
        .run(include_str!("../README.md"));
}
