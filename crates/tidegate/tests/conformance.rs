//! The memory engine, and the layers around an engine, are held to the same claims as every other.

#![cfg(feature = "conformance")]

#[tokio::test]
async fn memory_keeps_every_claim() {
    tidegate::conformance::run(|clock| tidegate::Memory::builder().clock(clock).build()).await;
}

#[tokio::test]
async fn a_fallback_around_a_store_that_answers_keeps_every_claim() {
    let memory = |clock| tidegate::Memory::builder().clock(clock).build();
    tidegate::conformance::run(|clock| tidegate::Fallback::new(memory(clock))).await;
}

#[tokio::test]
async fn a_cache_of_denials_keeps_every_claim() {
    let memory = |clock| tidegate::Memory::builder().clock(clock).build();
    tidegate::conformance::run(|clock| tidegate::DenyCache::new(memory(clock))).await;
}

/// Of rules that are not leased: what differs for those that are is said where `Lease` is.
#[tokio::test]
async fn a_lease_of_nothing_keeps_every_claim() {
    let memory = |clock| tidegate::Memory::builder().clock(clock).build();
    tidegate::conformance::run(|clock| tidegate::Lease::new(memory(clock))).await;
}

#[tokio::test]
async fn a_breaker_around_a_store_that_answers_keeps_every_claim() {
    let memory = |clock| tidegate::Memory::builder().clock(clock).build();
    tidegate::conformance::run(|clock| tidegate::Breaker::new(memory(clock))).await;
}
