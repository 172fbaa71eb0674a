//! The service that a layer makes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::admission::Admission;
use super::body::{LimitedBody, ResponseBody};
use super::future::ResponseFuture;
use super::settings::Decider;

/// A service behind a [`RateLimitLayer`](super::RateLimitLayer).
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    decider: Arc<Decider>,
}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, decider: Arc<Decider>) -> Self {
        Self { inner, decider }
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: ResponseBody,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> ResponseFuture<S, B> {
        let (head, body) = request.into_parts();
        let admission = match self.decider.decide_now(&head) {
            Some(Admission::Deny(response)) => return ResponseFuture::denied(response),
            Some(Admission::Pass(passed)) if !passed.is_queued() => {
                return ResponseFuture::passing(&mut self.inner, passed, head, body);
            }
            admission => admission,
        };
        // `self.inner` is the instance that is ready, so the call takes it and leaves the clone.
        let other = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, other);
        let decider = self.decider.clone();
        let deciding = Box::pin(async move {
            let mut admission = match admission {
                Some(admission) => admission,
                None => decider.decide(&head).await,
            };
            if let Admission::Pass(passed) = &mut admission {
                passed.wait_in_queue().await;
            }
            (head, admission)
        });
        ResponseFuture::deciding(ready, deciding, body)
    }
}

impl<S: std::fmt::Debug> std::fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// A layer or service that wraps the bodies of the inner service in a [`LimitedBody`].
#[derive(Clone, Debug)]
pub struct AnyBody<T>(T);

impl<T> AnyBody<T> {
    pub(super) fn new(inner: T) -> Self {
        Self(inner)
    }
}

impl<L: Layer<AnyBody<S>>, S> Layer<S> for AnyBody<L> {
    type Service = L::Service;

    fn layer(&self, inner: S) -> L::Service {
        self.0.layer(AnyBody(inner))
    }
}

impl<S, B, R> Service<Request<B>> for AnyBody<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
{
    type Response = Response<LimitedBody<R>>;
    type Error = S::Error;
    type Future = AnyBodyFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        AnyBodyFuture { inner: self.0.call(request) }
    }
}

pin_project! {
    /// The response future of an [`AnyBody`].
    #[derive(Debug)]
    pub struct AnyBodyFuture<F> {
        #[pin]
        inner: F,
    }
}

impl<F, R, E> Future for AnyBodyFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body,
{
    type Output = Result<Response<LimitedBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(self.project().inner.poll(cx))?;
        Poll::Ready(Ok(response.map(LimitedBody::new)))
    }
}
