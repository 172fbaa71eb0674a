//! The door that Envoy comes through: gRPC, with health and reflection.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status, async_trait};
use tonic_reflection::server::Builder as Reflection;
use tower::BoxError;

use super::arrival::{InTime, UntilDrained, too_late};
use super::health::{Health, WATCH};
use super::proto::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use super::proto::{self, RateLimitRequest, RateLimitResponse};
use super::service::{Enforcement, Fault, RateLimits};
use crate::doors::Deadlines;
use crate::doors::panics::{Panicked, caught};
use crate::drain::Drain;
use crate::http::activity::Lasts;
use crate::http::connection::Sorry;
use crate::http::kept::Kept;
use crate::http::token;
use crate::metrics::Door;
use crate::tokens::{Access, Tokens};
use crate::trace::Tracer;
use crate::unfinished::{Counted, NoRoom};

/// The longest message in bytes.
pub const MAX_MESSAGE: usize = 256 << 10;
/// The longest message to a service that anybody may ask: health and reflection.
const MAX_ASIDE: usize = 4 << 10;
/// How many may ask them at once: whoever watches health does so for as long as it likes.
const MAX_ASIDES: usize = 1_024;
/// The services whose health is told: all together, as envoyproxy/ratelimit calls itself, and by its name.
const HEALTHY: [&str; 3] = ["", "ratelimit", Limits::NAME];

/// What Envoy calls.
const METHOD: &str = "ShouldRateLimit";

type Limits = RateLimitServiceServer<Asked>;

/// All services of this door. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Grpc {
    limits: Limits,
    tokens: Arc<Tokens>,
    /// Those that are asked now and then.
    others: Router,
    room_for_others: Arc<Semaphore>,
    health: Health,
    /// How long a request may take to arrive.
    allowed: Duration,
    drain: Drain,
}

/// Answers Envoy.
#[derive(Debug)]
struct Asked {
    limits: Arc<RateLimits>,
}

impl Grpc {
    /// The services, answered by `limits` for whoever has a token. They end when the server drains.
    pub fn new(
        limits: Arc<RateLimits>,
        tokens: Arc<Tokens>,
        deadlines: Deadlines,
        drain: Drain,
    ) -> Self {
        let health = Health::of(&HEALTHY);
        let watched = health.watched().max_decoding_message_size(MAX_ASIDE);
        let others = Router::new().route_service(WATCH, watched);
        let mut others = add(others, health.asked().max_decoding_message_size(MAX_ASIDE));
        let reflection = || {
            Reflection::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // They fail on descriptors that are none, and a test asks for ours.
        if let (Ok(present), Ok(older)) = (reflection().build_v1(), reflection().build_v1alpha()) {
            others = add(others, present.max_decoding_message_size(MAX_ASIDE));
            others = add(others, older.max_decoding_message_size(MAX_ASIDE));
        }
        let others = others.fallback(async || {
            let unknown =
                Status::unimplemented("no such service; ask reflection for all there are");
            unknown.into_http::<axum::body::Body>()
        });
        let limits = Limits::new(Asked { limits }).max_decoding_message_size(MAX_MESSAGE);
        let room_for_others = Arc::new(Semaphore::new(MAX_ASIDES));
        let (others, allowed) = (others.with_state(()), deadlines.request);
        Self { limits, tokens, others, room_for_others, health, allowed, drain }
    }

    /// The addresses that its services are at.
    pub fn addresses() -> [String; 4] {
        const REFLECTION: [&str; 2] =
            ["grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];
        let health = "grpc.health.v1.Health";
        [Limits::NAME, health, REFLECTION[0], REFLECTION[1]]
            .map(|name| format!("/{name}/{{*method}}"))
    }

    /// Keeps health up to date until the server drains; then nothing here is healthy any more.
    pub async fn tell_health(&self, is_ready: impl Fn() -> bool) {
        self.health.tell(is_ready, self.drain.clone()).await;
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

impl<B> tower::Service<Request<B>> for Grpc
where
    B: hyper::body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if is_for_limits(request.uri().path()) {
            // Before anything is read that somebody without a token sends.
            if let Err(status) = self.admit(request.headers()) {
                return Box::pin(std::future::ready(Ok(status.into_http())));
            }
            let (door, allowed) = (door_of(&request), self.allowed);
            // How long the store may take is for the policy to say: an error instead of its answer would be leave to
            // pass.
            let request =
                request.map(|body| InTime::new(Counted::new(body, door), allowed).map_err(told));
            return Box::pin(self.limits.call(request));
        }
        if request.uri().path() == WATCH && self.drain.has_begun() {
            let ends = Status::unavailable("the server is about to end; watch another");
            return Box::pin(std::future::ready(Ok(ends.into_http())));
        }
        let lasts = lasts(request.uri().path());
        let place = match lasts {
            Lasts::UntilTaken => None,
            Lasts::AsLongAsWanted => match self.room_for_others.clone().try_acquire_owned() {
                Ok(place) => Some(place),
                Err(_) => {
                    let told = "too many watch health or ask for reflection at once";
                    let full = Status::resource_exhausted(told).into_http();
                    return Box::pin(std::future::ready(Ok(full)));
                }
            },
        };
        let (allowed, drain) = (self.allowed, self.drain.clone());
        let answer = match lasts {
            Lasts::UntilTaken => self.others.call(request),
            Lasts::AsLongAsWanted => {
                self.others.call(request.map(|body| UntilDrained::new(body, drain)))
            }
        };
        Box::pin(async move {
            let mut response = match tokio::time::timeout(allowed, answer).await {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(_) => return Ok(too_late().into_http()),
            };
            if place.is_some() {
                response.extensions_mut().insert(Lasts::AsLongAsWanted);
            }
            Ok(response.map(|body| Body::new(Kept::new(body, place))))
        })
    }
}

/// What is asked about health comes at once; watching it, and reflection, go on.
fn lasts(path: &str) -> Lasts {
    if path.ends_with("/Check") { Lasts::UntilTaken } else { Lasts::AsLongAsWanted }
}

/// An error of a body, as gRPC tells it.
fn told(error: BoxError) -> BoxError {
    if error.is::<NoRoom>() { Status::resource_exhausted(NoRoom.to_string()).into() } else { error }
}

/// The door that a request came through.
fn door_of<B>(request: &Request<B>) -> Door {
    request.extensions().get().copied().unwrap_or(Door::Grpc)
}

fn is_for_limits(path: &str) -> bool {
    path.strip_prefix('/')
        .and_then(|path| path.strip_prefix(Limits::NAME))
        .is_some_and(|rest| rest.starts_with('/'))
}

#[async_trait]
impl RateLimitService for Asked {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let service = self.limits.service();
        let begin = |tracer: &Arc<Tracer>| {
            let span = tracer.begin(Door::Grpc, Some(request.metadata().as_ref()))?;
            let span = span.named(format!("{}/{METHOD}", Limits::NAME)).with("rpc.system", "grpc");
            Some(span.with("rpc.service", Limits::NAME).with("rpc.method", METHOD))
        };
        let (span, request) = (service.tracer().and_then(begin), request.get_ref());
        let before = service.clock().elapsed();
        let decided = caught(async {
            match span {
                None => self.limits.decide(request).await,
                Some(mut span) => {
                    let decided = span.around(self.limits.decide(request)).await;
                    let code = match &decided {
                        Ok(_) => Code::Ok,
                        Err(Fault::Invalid(_)) => Code::InvalidArgument,
                        Err(Fault::Unavailable(_)) => Code::Unavailable,
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
        service.metrics().observe(Door::Grpc, took);
        match decided {
            Ok(decided) => Ok(tonic::Response::new(decided?)),
            Err(Panicked) => {
                service.metrics().count_panic(Door::Grpc);
                self.deny()
            }
        }
    }
}

impl Asked {
    /// Denies because of a mistake of ours. Envoy takes an error for leave to pass, unless it is told otherwise; so
    /// only where everything is to pass, that is what it gets.
    fn deny(&self) -> Result<tonic::Response<RateLimitResponse>, Status> {
        match self.limits.settings().enforcement {
            Enforcement::Shadow => Err(mistake()),
            Enforcement::Enforce => Ok(tonic::Response::new(RateLimitResponse {
                overall_code: proto::Code::OverLimit.into(),
                ..RateLimitResponse::default()
            })),
        }
    }
}

fn mistake() -> Status {
    Status::internal("the server has made a mistake")
}

impl Sorry<Body> for Grpc {
    fn sorry() -> Response<Body> {
        mistake().into_http()
    }
}

impl Grpc {
    /// Lets somebody in who may ask.
    fn admit(&self, headers: &HeaderMap) -> Result<(), Status> {
        let shown = token(headers);
        let access = shown.and_then(|token| self.tokens.access_with(token));
        if access.max(Some(self.tokens.access())) >= Some(Access::Check) {
            return Ok(());
        }
        let told = "show the token as authorization: Bearer, or as x-tidegate-token; \
                    in Envoy with initial_metadata of the grpc_service";
        Err(Status::unauthenticated(told))
    }
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Invalid(told) => Self::invalid_argument(told),
            Fault::Unavailable(told) => Self::unavailable(told),
        }
    }
}
