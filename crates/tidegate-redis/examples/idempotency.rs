//! A request that is retried with the same idempotency key is charged once.
//!
//! `cargo run -p tidegate-redis --example idempotency`

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;
use std::time::Duration;

use tidegate::{Decision, EngineError, Limit, Limiter};
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
    let limiter = Limiter::new(engine, "sliding-log 10/h".parse::<Limit>()?);
    let user = format!("user-{:x}", RandomState::new().hash_one("idempotency"));

    for attempt in 1..=3 {
        let decision = charge(&limiter, &user, "payment-17", 4).await?;
        let result = if decision.repeated() { "same decision as before" } else { "charged" };
        println!("payment-17, attempt {attempt}: {result}, {} left", decision.remaining());
    }
    let decision = charge(&limiter, &user, "payment-18", 4).await?;
    println!("payment-18: charged, {} left", decision.remaining());

    // The id identifies the request. Another request with the same id is a bug of the caller.
    match charge(&limiter, &user, "payment-17", 5).await {
        Err(EngineError::Refused(refusal)) => println!("payment-17 at another cost: {refusal}"),
        other => println!("payment-17 at another cost: {other:?}"),
    }
    Ok(())
}

/// Retries if it is unknown whether the request was charged. Only an idempotency key makes that
/// safe.
async fn charge(
    limiter: &Limiter,
    user: &str,
    id: &str,
    cost: u64,
) -> Result<Decision, EngineError> {
    match limiter.check(user).cost(cost).idempotency_key(id).await {
        Err(EngineError::Ambiguous(_)) => limiter.check(user).cost(cost).idempotency_key(id).await,
        result => result,
    }
}
