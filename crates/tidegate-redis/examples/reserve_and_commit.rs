//! Reserve the estimated cost of a request and commit the actual one, also from another process.
//!
//! `cargo run -p tidegate-redis --example reserve_and_commit`

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;
use std::time::Duration;

use tidegate::{HoldId, Limit, Limiter};
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
    let limit: Limit = "fixed-window 1000/d".parse()?;
    let engine = || Redis::builder(&url).deadline(Duration::from_secs(1)).build();
    let (here, elsewhere) =
        (Limiter::new(engine()?, limit.clone()), Limiter::new(engine()?, limit));
    let tenant = format!("tenant-{:x}", RandomState::new().hash_one("reserve_and_commit"));
    let left = async |limiter: &Limiter| {
        limiter.check(&tenant).peek().await.map(|decision| decision.remaining())
    };

    println!("at first: {} left", left(&here).await?);
    let reserved = here.reserve(&tenant, 500).await?;
    println!("500 reserved: {} left", left(&here).await?);
    reserved.commit(312).await?;
    println!("312 committed: {} left", left(&here).await?);

    // Another process needs only the id.
    let id = here.reserve(&tenant, 200).ttl(Duration::from_secs(30)).await?.keep().to_string();
    println!("200 reserved as {id}: {} left", left(&here).await?);
    elsewhere.reservation(id.parse::<HoldId>()?).commit_all().await?;
    println!("committed elsewhere: {} left", left(&elsewhere).await?);

    here.reserve(&tenant, 100).await?.cancel().await?;
    println!("100 reserved and cancelled: {} left", left(&here).await?);
    Ok(())
}
