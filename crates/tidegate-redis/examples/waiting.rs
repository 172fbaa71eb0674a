//! Waiting for permits instead of being denied, in order of arrival.
//!
//! `cargo run -p tidegate-redis --example waiting`

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;
use std::time::Duration;

use tidegate::{Clock, Limit, Limited, Limiter, SystemClock};
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
    let engine = Redis::builder(&url).deadline(Duration::from_secs(1)).build()?;
    let limiter = Limiter::new(engine, "4/s burst 1".parse::<Limit>()?);
    let user = format!("user-{:x}", RandomState::new().hash_one("waiting"));

    let start = SystemClock.elapsed();
    for request in 1..=5 {
        limiter.acquire(&user, Duration::from_secs(2)).await?;
        let waited = Duration::from(SystemClock.elapsed().saturating_sub(start));
        println!("request {request} after {} ms", waited.as_millis());
    }
    // The next permit is available in 250 ms, so this is denied at once.
    match limiter.acquire(&user, Duration::from_millis(10)).await {
        Err(Limited::Denied(decision)) => {
            println!("not within 10 ms: {}", Limited::Denied(decision));
        }
        Err(error) => return Err(error.into()),
        Ok(_) => println!("a permit was available"),
    }
    Ok(())
}
