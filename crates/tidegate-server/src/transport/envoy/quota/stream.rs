//! One stream of an Envoy: reports in, assignments out.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::bucket;
use super::registry::{BucketMessage, LimitKey, QuotaShares, StreamId};
use crate::check::CheckService;
use crate::observe::metrics::QuotaEvent;
use crate::shares::allocator::Message;
use crate::shares::ledger::HolderId;
use crate::transport::envoy::proto::service::rate_limit_quota::v3 as quota;
use crate::transport::envoy::proto::{BucketId, RateLimitStrategy, TokenBucket, strategy};
use quota::rate_limit_quota_response::BucketAction;
use quota::rate_limit_quota_response::bucket_action::{self, QuotaAssignmentAction};
use quota::rate_limit_quota_usage_reports::BucketQuotaUsage;
use tidegate_config::envoy::ShareLimit;

/// Most buckets of a stream.
const MAX_BUCKETS: usize = 4_096;
/// Most messages that are read before another task runs.
const MAX_READS: usize = 16;

/// The responses of one stream. Reports are read when a response is asked for, so that an Envoy
/// that does not read is not read either. Dropping it ends the stream of all its holders.
pub(crate) struct QuotaStream {
    pub(super) service: Arc<CheckService>,
    pub(super) shares: Arc<QuotaShares>,
    pub(super) id: StreamId,
    pub(super) reports: Streaming<quota::RateLimitQuotaUsageReports>,
    pub(super) domain: String,
    pub(super) holders: HashMap<Vec<(String, String)>, HolderId>,
}

impl Stream for QuotaStream {
    type Item = Result<quota::RateLimitQuotaResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        for _ in 0..MAX_READS {
            if let Poll::Ready(messages) = self.shares.poll_messages(self.id, context) {
                return Poll::Ready(Some(Ok(self.response(messages))));
            }
            let read = match Pin::new(&mut self.reports).poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(read)) => read,
            };
            if let Err(status) = read.and_then(|reports| self.read(reports)) {
                return Poll::Ready(Some(Err(status)));
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl QuotaStream {
    fn response(&self, messages: Vec<BucketMessage>) -> quota::RateLimitQuotaResponse {
        let ttl = i64::try_from(self.shares.timing().ttl.get() / 1_000_000).unwrap_or(0);
        let action = |(bucket, message)| {
            let strategy = match message {
                Message::DenyAll => {
                    strategy::Strategy::BlanketRule(strategy::BlanketRule::DenyAll.into())
                }
                Message::Assign(it) => strategy::Strategy::TokenBucket(TokenBucket {
                    max_tokens: u32::try_from(it.share.burst).unwrap_or(u32::MAX),
                    tokens_per_fill: Some(u32::try_from(it.share.tokens).unwrap_or(u32::MAX)),
                    fill_interval: Some(prost_types::Duration {
                        seconds: i64::try_from(it.interval.length().get() / 1_000_000).unwrap_or(0),
                        nanos: 0,
                    }),
                }),
            };
            let assigned = QuotaAssignmentAction {
                assignment_time_to_live: Some(prost_types::Duration { seconds: ttl, nanos: 0 }),
                rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy) }),
            };
            BucketAction {
                bucket_id: Some(bucket),
                bucket_action: Some(bucket_action::BucketAction::QuotaAssignmentAction(assigned)),
            }
        };
        quota::RateLimitQuotaResponse { bucket_action: messages.into_iter().map(action).collect() }
    }

    fn read(&mut self, reports: quota::RateLimitQuotaUsageReports) -> Result<(), Status> {
        if !reports.domain.is_empty() {
            self.domain = reports.domain;
        } else if self.domain.is_empty() {
            return Err(Status::invalid_argument("the first report names no domain; set one"));
        }
        for usage in reports.bucket_quota_usages {
            let Some(bucket) = usage.bucket_id.clone().filter(|it| !it.bucket.is_empty()) else {
                return Err(Status::invalid_argument("a usage without bucket_id; send its bucket"));
            };
            self.read_usage(bucket, &usage)?;
        }
        Ok(())
    }

    fn read_usage(&mut self, bucket: BucketId, usage: &BucketQuotaUsage) -> Result<(), Status> {
        let metrics = self.service.metrics();
        metrics.count_quota(QuotaEvent::Admitted, usage.num_requests_allowed);
        metrics.count_quota(QuotaEvent::Denied, usage.num_requests_denied);
        let count = usage.num_requests_allowed.saturating_add(usage.num_requests_denied);
        let mut name: Vec<(String, String)> = bucket.bucket.clone().into_iter().collect();
        name.sort_unstable();
        let Some(found) = self.find(&bucket) else {
            self.service.metrics().count_quota(QuotaEvent::Unknown, 1);
            self.holders.remove(&name).into_iter().for_each(|id| self.shares.leave(id));
            return Ok(());
        };
        if let Some(&id) = self.holders.get(&name) {
            if self.shares.report(id, &found, count) {
                return Ok(());
            }
            self.shares.leave(id);
            self.holders.remove(&name);
        }
        if self.holders.len() >= MAX_BUCKETS {
            let detail = format!("more than {MAX_BUCKETS} buckets on a stream; use fewer");
            return Err(Status::resource_exhausted(detail));
        }
        let joined = self.shares.join(self.id, found, bucket);
        self.holders.extend(joined.map(|id| (name, id)));
        Ok(())
    }

    /// The limit of a bucket under the policy of this instant.
    fn find(&self, id: &BucketId) -> Option<(LimitKey, ShareLimit)> {
        let active = self.service.active();
        bucket::find(active.envoy()?.domain(&self.domain)?, id)
    }
}

impl Drop for QuotaStream {
    fn drop(&mut self) {
        self.shares.disconnect(self.id, self.holders.drain().map(|(_, id)| id));
    }
}
