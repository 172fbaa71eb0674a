//! The service that the layer makes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower_service::Service;

use super::layer::Settings;
use super::{BoxError, HttpRequest, HttpResponse};

/// A client whose calls wait until they may be sent, made by
/// [`OutgoingLayer`](super::OutgoingLayer).
///
/// It is ready when the client inside is; nothing is taken before the call. The client that was
/// ready is kept for the call while it waits, since it may have set something aside for it.
#[derive(Clone, Debug)]
pub struct Outgoing<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> Outgoing<S> {
    pub(super) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }

    /// The client inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, Req> Service<Req> for Outgoing<S>
where
    S: Service<Req> + Clone + Send + 'static,
    S::Response: HttpResponse,
    S::Error: Into<BoxError>,
    S::Future: Send,
    Req: HttpRequest + Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        // The clone is not ready, so it is the one that stays.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let settings = self.settings.clone();
        let (key, cost) = settings.describe(&request.head());
        ResponseFuture(Box::pin(async move {
            let visit = settings.admit(key, cost).await?;
            let response = inner.call(request).await.map_err(Into::into)?;
            settings.heed(visit, response.status(), response.headers());
            Ok(response)
        }))
    }
}

/// The answer to come. Dropped, the call leaves its line; a permit that it has taken is spent.
#[must_use = "nothing is sent before it is polled"]
pub struct ResponseFuture<R>(Pin<Box<dyn Future<Output = Result<R, BoxError>> + Send>>);

impl<R> Future for ResponseFuture<R> {
    type Output = Result<R, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<R> fmt::Debug for ResponseFuture<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
