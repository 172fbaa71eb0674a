use tidegate::{Limiter, Memory};
use tidegate_tower::RateLimitLayer;

fn main() {
    let limiter = Limiter::new(Memory::default(), "100/s".parse().unwrap());
    RateLimitLayer::new(limiter, "x-api-key");
}
