//! The global limiter, once it is set. A separate program, because a process has only one.

use tidegate::{GlobalInUse, Limit, Limited, Limiter, ManualClock, Memory, rate_limit};

use testkit::now_or_never::now_or_panic;

#[rate_limit("2/min", key = name)]
async fn post(name: &str) -> Result<(), Limited> {
    Ok(())
}

#[rate_limit(rule = "default", key = name)]
async fn under_its_rule(name: &str) -> Result<(), Limited> {
    Ok(())
}

#[test]
fn the_limiter_that_is_set_first_is_used_until_the_end() {
    let memory = || Memory::builder().clock(ManualClock::default()).build();
    let limiter = Limiter::new(memory(), "3/min".parse::<Limit>().unwrap());
    assert_eq!(Limiter::set_global(limiter.clone()), Ok(()));
    assert_eq!(Limiter::set_global(limiter.clone()), Err(GlobalInUse));

    let passed: Vec<bool> = (0..3).map(|_| now_or_panic(post("alice")).is_ok()).collect();
    assert_eq!(passed, [true, true, false]);
    assert!(now_or_panic(under_its_rule("alice")).is_ok());
    assert_eq!(
        limiter.check("alice").peek().now().unwrap().remaining(),
        2,
        "the check used this limiter"
    );
}
