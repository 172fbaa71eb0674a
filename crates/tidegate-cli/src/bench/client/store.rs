//! Benchmark client that runs the library on a store, as an application would.

use std::sync::Arc;

use tidegate::{EngineError, Limiter};

use super::response::{BenchResponse, RequestError};
use crate::bench::request_template::BenchKeys;

/// One worker on a store. Workers share the connections of the library.
pub(crate) struct StoreClient(pub(crate) Arc<LimitedStore>);

/// A limit on a store.
pub(crate) struct LimitedStore {
    pub(crate) limiter: Limiter,
    pub(crate) keys: BenchKeys,
    pub(crate) cost: u64,
}

impl StoreClient {
    pub(crate) async fn check(&mut self, numbers: &[u32], responses: &mut Vec<BenchResponse>) {
        let LimitedStore { limiter, keys, cost } = &*self.0;
        for number in numbers {
            responses.push(match limiter.check(&keys.name(*number)).cost(*cost).await {
                Ok(decision) if decision.allowed() => BenchResponse::Allow,
                Ok(_) => BenchResponse::Deny,
                Err(error) => BenchResponse::Error(request_error(&error)),
            });
        }
    }
}

fn request_error(error: &EngineError) -> RequestError {
    let kind = match error {
        EngineError::Unavailable(_) => "store unavailable",
        EngineError::Ambiguous(_) => "store ambiguous",
        EngineError::Refused(_) => "store refused",
        _ => "store",
    };
    RequestError::new(kind, error)
}
