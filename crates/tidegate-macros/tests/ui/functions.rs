use tidegate::{Limited, rate_limit};

#[rate_limit("5/min")]
fn sync() -> Result<(), Limited> {
    Ok(())
}

#[rate_limit("5/min")]
pub const unsafe extern "C" fn sync_and_more() -> u8 {
    5
}

#[rate_limit("5/min")]
struct NoFunction {
    _field: u8,
}

trait Store {
    #[rate_limit("5/min")]
    async fn no_body(&self) -> Result<(), Limited>;
}

#[rate_limit("5/min")]
async fn returns_nothing() {}

#[rate_limit("5/min")]
async fn returns_unit() -> () {}

#[rate_limit("5/min")]
async fn returns_a_number() -> u64 {
    5
}

#[rate_limit("5/min")]
async fn returns_a_list(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

struct Service;

impl Service {
    #[rate_limit("5/min")]
    async fn returns_a_reference(&self) -> &Self {
        self
    }
}

fn main() {
    // Callers get no further error for a function that was refused.
    let _ = (sync(), returns_nothing(), Service.returns_a_reference());
    let _: NoFunction;
}
