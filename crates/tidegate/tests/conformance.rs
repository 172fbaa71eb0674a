//! The memory engine is held to the same claims as every other.

#![cfg(feature = "conformance")]

#[tokio::test]
async fn memory_keeps_every_claim() {
    tidegate::conformance::run(|clock| tidegate::Memory::builder().clock(clock).build()).await;
}
