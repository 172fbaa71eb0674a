//! `StreamRateLimitQuotas`.

use std::collections::HashMap;
use std::sync::Arc;

use tonic::{Request, Response, Status, Streaming, async_trait};

use super::registry::QuotaShares;
use super::stream::QuotaStream;
use crate::check::CheckService;
use crate::transport::envoy::proto::service::rate_limit_quota::v3 as quota;
use quota::rate_limit_quota_service_server::{RateLimitQuotaService, RateLimitQuotaServiceServer};

/// The gRPC service.
pub(crate) type QuotaServer = RateLimitQuotaServiceServer<QuotaHandler>;

/// Handler of the rate limit quota service.
#[derive(Debug)]
pub(crate) struct QuotaHandler {
    service: Arc<CheckService>,
    shares: Arc<QuotaShares>,
}

impl QuotaHandler {
    pub(crate) fn new(service: Arc<CheckService>, shares: Arc<QuotaShares>) -> Self {
        Self { service, shares }
    }
}

#[async_trait]
impl RateLimitQuotaService for QuotaHandler {
    type StreamRateLimitQuotasStream = QuotaStream;

    async fn stream_rate_limit_quotas(
        &self,
        request: Request<Streaming<quota::RateLimitQuotaUsageReports>>,
    ) -> Result<Response<QuotaStream>, Status> {
        Ok(Response::new(QuotaStream {
            service: self.service.clone(),
            shares: self.shares.clone(),
            id: self.shares.connect(),
            reports: request.into_inner(),
            domain: String::new(),
            holders: HashMap::new(),
        }))
    }
}
