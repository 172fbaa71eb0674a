use tidegate::{Limited, rate_limit};

#[rate_limit("5/mn")]
async fn unknown_unit() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("100/s", "fixed-windw 1000/d", "100/s brust 20")]
async fn two_of_three() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5")]
async fn no_span() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("")]
async fn nothing() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit(r#"5.5/s"#)]
async fn raw() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5/\u{6d}n")]
async fn escaped() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5/min"x)]
async fn suffix() -> Result<(), Limited> {
    Ok(())
}


#[rate_limit(
    "1/s", "2/s", "3/s", "4/s", "5/s", "6/s", "7/s", "8/s", "9/s", "10/s", "11/s", "12/s", "13/s", "14/s", "15/s",
    "16/s", "17/s"
)]
async fn too_many() -> Result<(), Limited> {
    Ok(())
}

fn main() {}
