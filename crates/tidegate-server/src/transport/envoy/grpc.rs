//! gRPC services: rate limit, rate limit quota, health and reflection.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, Uri};
use http_body_util::BodyExt;
use tidegate::Health;
use tidegate::policy::Enforcement;
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status, async_trait};
use tonic_reflection::server::Builder as Reflection;
use tower::BoxError;

use super::error::EnvoyError;
use super::health::{HealthPublisher, WATCH};
use super::proto::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use super::proto::{self, RateLimitRequest, RateLimitResponse};
use super::quota::service::{QuotaHandler, QuotaServer};
use super::service::EnvoyService;
use crate::observe::metrics::ListenerKind;
use crate::observe::otlp::Tracer;
use crate::readiness::ReadyWhen;
use crate::shutdown::Shutdown;
use crate::transport::auth::{AccessLevel, AuthTokens, token_from_headers};
use crate::transport::caller_deadline::{grpc_timeout, within_deadline};
use crate::transport::cross_site::is_cross_site;
use crate::transport::listener::Timeouts;
use crate::transport::listener::body_deadline::{BodyTimedOut, DeadlineBody, ShutdownBody};
use crate::transport::listener::guarded_body::GuardedBody;
use crate::transport::listener::http_connection::{ConnectionInfo, PanicResponse};
use crate::transport::listener::panics::{Panicked, catch_panics};
use crate::transport::listener::partial_requests::{BudgetedBody, RequestBudgetExhausted};
use crate::transport::listener::request_activity::ResponseTimeout;

/// Longest message, in bytes.
pub const MAX_MESSAGE: usize = 256 << 10;
/// Longest message to a service that needs no token: health and reflection.
const MAX_UNAUTHENTICATED_MESSAGE: usize = 4 << 10;
/// Most open streams of these services: a health watch has no time limit.
const MAX_UNAUTHENTICATED_STREAMS: usize = 1_024;
/// Most streams of the rate limit quota service; each Envoy opens one.
const MAX_QUOTA_STREAMS: usize = 1_024;
/// Service names with a health status: the server as a whole, the name that envoyproxy/ratelimit
/// uses, and the full name.
const HEALTHY: [&str; 3] = ["", "ratelimit", RateLimitServer::NAME];

/// Method of the rate limit service.
const METHOD: &str = "ShouldRateLimit";

type RateLimitServer = RateLimitServiceServer<RateLimitHandler>;

/// All gRPC services. Cheap to clone.
#[derive(Clone, Debug)]
pub struct GrpcServices {
    rate_limit: RateLimitServer,
    quota: QuotaServer,
    quota_streams: Arc<Semaphore>,
    tokens: Arc<AuthTokens>,
    /// Health and reflection.
    others: Router,
    other_streams: Arc<Semaphore>,
    health: HealthPublisher,
    /// Time for a request to arrive.
    request_timeout: Duration,
    drain: Shutdown,
    envoy: Arc<EnvoyService>,
}

/// Handler of the rate limit service.
#[derive(Debug)]
struct RateLimitHandler {
    envoy: Arc<EnvoyService>,
}

impl GrpcServices {
    /// The services. The rate limit service needs a token, if one is configured; all streams end
    /// when the server drains.
    pub fn new(
        envoy: Arc<EnvoyService>,
        tokens: Arc<AuthTokens>,
        deadlines: Timeouts,
        drain: Shutdown,
    ) -> Self {
        let health = HealthPublisher::new(&HEALTHY);
        let checks = health.check_server().max_decoding_message_size(MAX_UNAUTHENTICATED_MESSAGE);
        let watches = health.watch_server().max_decoding_message_size(MAX_UNAUTHENTICATED_MESSAGE);
        let mut others = add(Router::new().route_service(WATCH, watches), checks);
        let reflection = || {
            Reflection::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // They fail on invalid descriptors only; a test uses reflection.
        if let (Ok(current), Ok(alpha)) = (reflection().build_v1(), reflection().build_v1alpha()) {
            others = add(others, current.max_decoding_message_size(MAX_UNAUTHENTICATED_MESSAGE));
            others = add(others, alpha.max_decoding_message_size(MAX_UNAUTHENTICATED_MESSAGE));
        }
        let others = others.fallback(async || {
            let unknown = Status::unimplemented("unknown service; use reflection to list services");
            unknown.into_http::<axum::body::Body>()
        });
        let rate_limit = RateLimitServer::new(RateLimitHandler { envoy: envoy.clone() })
            .max_decoding_message_size(MAX_MESSAGE);
        let quota = QuotaHandler::new(envoy.service().clone(), envoy.shares().clone());
        Self {
            rate_limit,
            quota: QuotaServer::new(quota).max_decoding_message_size(MAX_MESSAGE),
            quota_streams: Arc::new(Semaphore::new(MAX_QUOTA_STREAMS)),
            tokens,
            others: others.with_state(()),
            other_streams: Arc::new(Semaphore::new(MAX_UNAUTHENTICATED_STREAMS)),
            health,
            request_timeout: deadlines.request,
            drain,
            envoy,
        }
    }

    /// The same services with other tokens.
    #[must_use]
    pub(crate) fn with_tokens(&self, tokens: Arc<AuthTokens>) -> Self {
        Self { tokens, ..self.clone() }
    }

    /// Path patterns of the services.
    pub fn paths() -> [String; 5] {
        const REFLECTION: [&str; 2] =
            ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];
        let health = "grpc.health.v1.Health";
        [RateLimitServer::NAME, QuotaServer::NAME, health, REFLECTION[0], REFLECTION[1]]
            .map(|name| format!("/{name}/{{*method}}"))
    }

    /// Updates the health status until the server drains; then all services are unhealthy.
    pub async fn publish_health(&self, ready_when: ReadyWhen, health: impl Fn() -> Health) {
        self.health.run(ready_when, health, self.drain.clone()).await;
    }
}

fn add<S>(router: Router, service: S) -> Router
where
    S: tower::Service<Request<axum::body::Body>, Error = Infallible>
        + NamedService
        + Clone
        + Send
        + Sync
        + 'static,
    S::Response: IntoResponse,
    S::Future: Send + 'static,
{
    router.route_service(&format!("/{}/{{*method}}", S::NAME), service)
}

impl<B> tower::Service<Request<B>> for GrpcServices
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if is_of(RateLimitServer::NAME, request.uri().path()) {
            // Checked before the body is read.
            if let Err(status) = self.admit(request.uri(), request.headers()) {
                return Box::pin(std::future::ready(Ok(status.into_http())));
            }
            let (listener, timeout) = (listener_of(&request), self.request_timeout);
            // No timeout for the decision, as Envoy by default allows a request whose check fails:
            // the policy and the timeout of the caller bound the wait for the store.
            let caller_timeout = grpc_timeout(request.headers());
            let request = request.map(|body| {
                DeadlineBody::new(BudgetedBody::new(body, listener), timeout).map_err(to_status)
            });
            let (handled, envoy) = (self.rate_limit.call(request), self.envoy.clone());
            return Box::pin(async move {
                within_deadline(caller_timeout, envoy.service().clock(), handled).await
            });
        }
        if is_of(QuotaServer::NAME, request.uri().path()) {
            return self.call_quota(request);
        }
        if request.uri().path() == WATCH && self.drain.has_begun() {
            let status = Status::unavailable("server is shutting down");
            return Box::pin(std::future::ready(Ok(status.into_http())));
        }
        let response_timeout = response_timeout(request.uri().path());
        let permit = match response_timeout {
            ResponseTimeout::Bounded => None,
            ResponseTimeout::Unbounded => match self.other_streams.clone().try_acquire_owned() {
                Ok(permit) => Some(permit),
                Err(_) => {
                    let detail = "too many concurrent health watches or reflection requests";
                    let full = Status::resource_exhausted(detail).into_http();
                    return Box::pin(std::future::ready(Ok(full)));
                }
            },
        };
        let (timeout, drain) = (self.request_timeout, self.drain.clone());
        let response = match response_timeout {
            ResponseTimeout::Bounded => self.others.call(request),
            ResponseTimeout::Unbounded => {
                self.others.call(request.map(|body| ShutdownBody::new(body, drain)))
            }
        };
        Box::pin(async move {
            let mut response = match tokio::time::timeout(timeout, response).await {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(_) => return Ok(timed_out().into_http()),
            };
            if permit.is_some() {
                response.extensions_mut().insert(ResponseTimeout::Unbounded);
            }
            Ok(response.map(|body| Body::new(GuardedBody::new(body, permit))))
        })
    }
}

/// A health check has one response; a health watch and reflection are streams.
fn response_timeout(path: &str) -> ResponseTimeout {
    if path.ends_with("/Check") { ResponseTimeout::Bounded } else { ResponseTimeout::Unbounded }
}

/// An error of a request body as a gRPC status.
fn to_status(error: BoxError) -> BoxError {
    if error.is::<BodyTimedOut>() {
        timed_out().into()
    } else if error.is::<RequestBudgetExhausted>() {
        Status::resource_exhausted(RequestBudgetExhausted.to_string()).into()
    } else {
        error
    }
}

fn timed_out() -> Status {
    Status::deadline_exceeded(BodyTimedOut.to_string())
}

/// The listener that accepted the connection.
fn listener_of<B>(request: &Request<B>) -> ListenerKind {
    ConnectionInfo::of(request.extensions()).map_or(ListenerKind::Grpc, |it| it.listener)
}

/// Whether the path is that of a method of this service.
fn is_of(service: &str, path: &str) -> bool {
    path.strip_prefix('/')
        .and_then(|path| path.strip_prefix(service))
        .is_some_and(|rest| rest.starts_with('/'))
}

#[async_trait]
impl RateLimitService for RateLimitHandler {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let service = self.envoy.service();
        let begin = |tracer: &Arc<Tracer>| {
            let span = tracer.begin(ListenerKind::Grpc, Some(request.metadata().as_ref()))?;
            let span = span
                .named(format!("{}/{METHOD}", RateLimitServer::NAME))
                .with("rpc.system", "grpc");
            Some(span.with("rpc.service", RateLimitServer::NAME).with("rpc.method", METHOD))
        };
        let (span, request) = (service.tracer().and_then(begin), request.get_ref());
        let before = service.clock().elapsed();
        let decided = catch_panics(async {
            match span {
                None => self.envoy.decide(request).await,
                Some(mut span) => {
                    let decided = span.around(self.envoy.decide(request)).await;
                    let code = match &decided {
                        Ok(_) => Code::Ok,
                        Err(EnvoyError::Invalid(_)) => Code::InvalidArgument,
                        Err(EnvoyError::Unavailable(_)) => Code::Unavailable,
                    };
                    span.set("rpc.grpc.status_code", i32::from(code).into());
                    if code == Code::Unavailable {
                        span.fail();
                    }
                    decided
                }
            }
        })
        .await;
        let took: Duration = service.clock().elapsed().saturating_sub(before).into();
        service.metrics().observe(ListenerKind::Grpc, took);
        match decided {
            Ok(decided) => Ok(tonic::Response::new(decided?)),
            Err(Panicked) => {
                service.metrics().count_panic(ListenerKind::Grpc);
                self.deny()
            }
        }
    }
}

impl RateLimitHandler {
    /// Denies a request that panicked. An error would not do: Envoy by default allows a request
    /// whose check fails. In shadow mode that is the right result.
    fn deny(&self) -> Result<tonic::Response<RateLimitResponse>, Status> {
        match self.envoy.settings().enforcement {
            Enforcement::Shadow => Err(internal_error()),
            Enforcement::Enforce => Ok(tonic::Response::new(RateLimitResponse {
                overall_code: proto::Code::OverLimit.into(),
                ..RateLimitResponse::default()
            })),
        }
    }
}

fn internal_error() -> Status {
    Status::internal("internal error")
}

impl PanicResponse<Body> for GrpcServices {
    fn panic_response() -> Response<Body> {
        internal_error().into_http()
    }
}

/// The future of a response.
type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl GrpcServices {
    /// Serves a stream of the rate limit quota service. It has no time limit, and ends when the
    /// server drains.
    fn call_quota<B>(&mut self, request: Request<B>) -> ResponseFuture
    where
        B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError> + Send + 'static,
    {
        if let Err(status) = self.admit(request.uri(), request.headers()) {
            return Box::pin(std::future::ready(Ok(status.into_http())));
        }
        let Ok(permit) = self.quota_streams.clone().try_acquire_owned() else {
            let full = Status::resource_exhausted("too many streams of the quota service");
            return Box::pin(std::future::ready(Ok(full.into_http())));
        };
        let drain = self.drain.clone();
        let request = request.map(|body| ShutdownBody::new(body, drain));
        let handled = tower::Service::call(&mut self.quota, request);
        Box::pin(async move {
            let mut response = handled.await?;
            response.extensions_mut().insert(ResponseTimeout::Unbounded);
            Ok(response.map(|body| Body::new(GuardedBody::new(body, Some(permit)))))
        })
    }

    /// Refuses a request without a valid token and, if there is none, of a page of another site.
    fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Status> {
        if !self.tokens.guards_checks() && is_cross_site(uri, headers) {
            return Err(Status::permission_denied("cross-site request refused"));
        }
        let token = token_from_headers(headers);
        let access = token.and_then(|token| self.tokens.access_with(token));
        if access.max(Some(self.tokens.access())) >= Some(AccessLevel::Check) {
            return Ok(());
        }
        let detail = "missing or invalid token; send authorization: Bearer or x-tidegate-token \
                      (in Envoy: initial_metadata of grpc_service)";
        Err(Status::unauthenticated(detail))
    }
}

impl From<EnvoyError> for Status {
    fn from(error: EnvoyError) -> Self {
        match error {
            EnvoyError::Invalid(detail) => Self::invalid_argument(detail),
            EnvoyError::Unavailable(detail) => Self::unavailable(detail),
        }
    }
}
