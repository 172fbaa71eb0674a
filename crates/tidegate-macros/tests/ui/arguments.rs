use std::time::Duration;

use tidegate::{Limited, rate_limit};

#[rate_limit]
async fn empty() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit(key = id)]
async fn only_a_key(id: u64) -> Result<(), Limited> {
    let _ = id;
    Ok(())
}

#[rate_limit("5/min", kye = id)]
async fn misspelt(id: u64) -> Result<(), Limited> {
    let _ = id;
    Ok(())
}

#[rate_limit("5/min", timeout = Duration::ZERO)]
async fn unknown() -> Result<(), Limited> {
    let _ = Duration::ZERO;
    Ok(())
}

#[rate_limit(limit = "5/min")]
async fn named_limit() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5/min", key = id, cost = 2, key = id)]
async fn twice(id: u64) -> Result<(), Limited> {
    let _ = id;
    Ok(())
}

#[rate_limit("5/min", id)]
async fn positional(id: u64) -> Result<(), Limited> {
    let _ = id;
    Ok(())
}

#[rate_limit("5/min", key =)]
async fn no_value() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5/min" key = id)]
async fn no_comma(id: u64) -> Result<(), Limited> {
    let _ = id;
    Ok(())
}

#[rate_limit("5/min", key = ())]
async fn empty_key() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5/min", key = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17))]
async fn long_key() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5/min", wait = "200")]
async fn wait_without_unit() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5/min", wait = "1month")]
async fn wait_for_a_month() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5/min", wait = 200)]
async fn wait_for_a_number() -> Result<(), Limited> {
    Ok(())
}

fn main() {}
