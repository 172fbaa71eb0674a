//! One limit, counted in Redis and shared by all processes that use the same Redis.
//!
//! `cargo run -p tidegate-redis --example basic`

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;
use std::time::Duration;

use tidegate::{Limit, Limiter, Outcome};
use tidegate_redis::Redis;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("TIDEGATE_REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let limit: Limit = "5/m".parse()?;
    // Two limiters with a connection each, as in two processes.
    let engine = || Redis::builder(&url).deadline(Duration::from_secs(1)).build();
    let limiters = [Limiter::new(engine()?, limit.clone()), Limiter::new(engine()?, limit)];
    // Another user in every run, so that it can be run again.
    let user = format!("user-{:x}", RandomState::new().hash_one("basic"));

    for request in 1..=6 {
        let process = request % 2;
        let decision = limiters[process].check(&user).await?;
        let outcome = match decision.outcome() {
            Outcome::Allow => "allowed".to_string(),
            Outcome::RetryAfter(span) => format!("denied, retry after {span}"),
            Outcome::Never => "never".to_string(),
        };
        let left = decision.remaining();
        println!("request {request} by limiter {process}: {outcome}, {left} left");
    }
    Ok(())
}
