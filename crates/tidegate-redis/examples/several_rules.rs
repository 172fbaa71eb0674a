//! Several rules, each with its own key and cost: one script charges all of them or none.
//!
//! `cargo run -p tidegate-redis --example several_rules`

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::process::ExitCode;
use std::time::Duration;

use tidegate::{Limiter, Rule, RuleCheck};
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
    let rules = [
        Rule::new("login", ["sliding-log 2/m".parse()?, "fixed-window 100/d".parse()?])?,
        Rule::new("api", ["10/m".parse()?])?,
    ];
    let engine = Redis::builder(&url).deadline(Duration::from_secs(1)).build()?;
    let limiter = Limiter::with_rules(engine, rules)?;

    let run = RandomState::new().hash_one("several_rules");
    let (address, account) = (format!("address-{run:x}"), format!("account-{run:x}"));
    let checks = [RuleCheck::new("login", &address), RuleCheck::new("api", &account).cost(3)];
    for attempt in 1..=3 {
        let decision = limiter.check_each(&checks).await?;
        let result = if decision.allowed() { "allowed" } else { "denied" };
        println!("attempt {attempt}: {result}");
        let names = ["login, 2 a minute", "login, 100 a day", "api, 10 a minute"];
        for (name, verdict) in names.into_iter().zip(&decision.verdicts) {
            let result = if verdict.allowed { "allows" } else { "denies" };
            println!("  {name}: {result}, {} left", verdict.remaining);
        }
    }
    println!("the third attempt charged no rule");
    Ok(())
}
