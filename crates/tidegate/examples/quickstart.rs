//! The main operations: check, several rules at once, wait, reserve and commit.

use std::error::Error;
use std::time::Duration;

use tidegate::{Decision, Limit, Limiter, Memory, Outcome, Rule, RuleCheck};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("-- a burst of 3, then 2 per second");
    let limiter = Limiter::new(Memory::default(), "2/s burst 3".parse::<Limit>()?);
    for request in 1..=4 {
        show(&format!("request {request}"), &limiter.check("user-42").await?);
    }

    println!(
        "
-- waiting instead of being denied"
    );
    show("acquired", &limiter.acquire("user-42", Duration::from_secs(1)).await?);

    println!("\n-- two rules, one decision: all are charged or none");
    let rules = [
        Rule::new("login", ["sliding-log 2/m".parse()?, "fixed-window 100/d".parse()?])?,
        Rule::new("api", ["10/s".parse()?])?,
    ];
    let limiter = Limiter::with_rules(Memory::default(), rules)?;
    let checks = [RuleCheck::new("login", "1.2.3.4"), RuleCheck::new("api", "key-7").cost(3)];
    for attempt in 1..=3 {
        show(&format!("attempt {attempt}"), &limiter.check_each(&checks).await?);
    }

    println!(
        "
-- reserve the estimated cost, commit the actual one"
    );
    let limiter = Limiter::new(Memory::default(), "1000/m".parse::<Limit>()?);
    let reserved = limiter.reserve("tenant-a", 500).await?;
    show("while reserved", &limiter.check("tenant-a").peek().await?);
    show("committed 312", &reserved.commit(312).await?.into_decision());
    Ok(())
}

fn show(label: &str, decision: &Decision) {
    let outcome = match decision.outcome() {
        Outcome::Allow => "allowed".to_string(),
        Outcome::RetryAfter(span) => format!("denied, retry after {span}"),
        Outcome::Never => "never".to_string(),
    };
    println!("{label}: {outcome}, {} of {} left", decision.remaining(), decision.verdict().limit);
}
