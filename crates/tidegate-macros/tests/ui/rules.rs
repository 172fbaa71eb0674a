use tidegate::{Limited, rate_limit};

#[rate_limit("5/min", rule = "login")]
async fn limit_and_rule() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit(rule = "login", name = "posts")]
async fn rule_and_name() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit(rule = LOGIN)]
async fn rule_by_a_constant() -> Result<(), Limited> {
    let _ = LOGIN;
    Ok(())
}

#[rate_limit(rule = "log in")]
async fn no_name_for_a_rule() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5/min", name = "adhoc")]
async fn reserved() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5/mn", name = "", wait = "soon")]
async fn all_at_once() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5/min")]
#[rate_limit("100/h")]
async fn two_without_a_name() -> Result<(), Limited> {
    Ok(())
}

const LOGIN: &str = "login";

fn main() {}
