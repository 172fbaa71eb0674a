//! Prints the script of an algorithm, or of all of them, as the engine sends it to Redis.
//!
//! `cargo run -p tidegate-redis --example print_script -- token-bucket > token-bucket.lua`

use std::error::Error;
use std::io::{Write, stdout};

use tidegate::Algorithm;

fn main() -> Result<(), Box<dyn Error>> {
    let mut algorithms = Vec::new();
    for name in std::env::args().skip(1) {
        let found = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
        let names = Algorithm::ALL.map(Algorithm::name).join(", ");
        algorithms.push(found.ok_or_else(|| format!("no algorithm {name:?}; use {names}"))?);
    }
    // To the byte: what is added to it would change its digest.
    stdout().write_all(tidegate_redis::script_text(&algorithms).as_bytes())?;
    Ok(())
}
