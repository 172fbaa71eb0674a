//! Prints the script of an algorithm, or of all of them, as the engine sends it to Redis. If the
//! first argument is `checks`, prints the script for many checks in one call; if it is `lean` or
//! `lean-log`, the script for plain checks, or for those of logs; if it is `library`, the library
//! of functions.
//!
//! `cargo run -p tidegate-redis --example print_script -- token-bucket > token-bucket.lua`

use std::error::Error;
use std::io::{Write, stdout};

use tidegate::Algorithm;

fn main() -> Result<(), Box<dyn Error>> {
    let mut algorithms = Vec::new();
    let mut names = std::env::args().skip(1).peekable();
    let for_checks = names.next_if(|name| name == "checks").is_some();
    let is_lean = names.next_if(|name| name == "lean").is_some();
    let is_lean_log = names.next_if(|name| name == "lean-log").is_some();
    let is_library = names.next_if(|name| name == "library").is_some();
    for name in names {
        let found = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        let names = Algorithm::ALL.map(Algorithm::name).join(", ");
        algorithms.push(found.ok_or_else(|| format!("no algorithm {name:?}; use {names}"))?);
    }
    // Without a line end, which would change its digest.
    let text = match for_checks {
        _ if is_lean => tidegate_redis::lean_script(),
        _ if is_lean_log => tidegate_redis::lean_log_script(),
        _ if is_library => tidegate_redis::function_library(),
        true => tidegate_redis::checks_script(&algorithms),
        false => tidegate_redis::decide_script(&algorithms),
    };
    stdout().write_all(text.as_bytes())?;
    Ok(())
}
