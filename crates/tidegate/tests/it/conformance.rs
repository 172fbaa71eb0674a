//! The memory engine and the layers, run through the conformance suite of engines.

#[tokio::test]
async fn memory_keeps_every_claim() {
    tidegate::conformance::run(|clock| tidegate::Memory::builder().clock(clock).build()).await;
}

#[tokio::test]
async fn a_fallback_around_an_available_store_keeps_every_claim() {
    let memory = |clock| tidegate::Memory::builder().clock(clock).build();
    tidegate::conformance::run(|clock| tidegate::Fallback::new(memory(clock))).await;
}

#[tokio::test]
async fn a_cache_of_denials_keeps_every_claim() {
    let memory = |clock| tidegate::Memory::builder().clock(clock).build();
    tidegate::conformance::run(|clock| tidegate::DenyCache::new(memory(clock))).await;
}

/// With rules that are not leased. The documentation of `Lease` lists what differs for leased ones.
#[tokio::test]
async fn a_lease_layer_without_leased_rules_keeps_every_claim() {
    let memory = |clock| tidegate::Memory::builder().clock(clock).build();
    tidegate::conformance::run(|clock| tidegate::Lease::new(memory(clock))).await;
}

#[tokio::test]
async fn a_breaker_around_an_available_store_keeps_every_claim() {
    let memory = |clock| tidegate::Memory::builder().clock(clock).build();
    tidegate::conformance::run(|clock| tidegate::Breaker::new(memory(clock))).await;
}
