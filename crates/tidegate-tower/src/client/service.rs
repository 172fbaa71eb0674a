//! The service that the layer makes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower_service::Service;

use super::settings::OutgoingSettings;
use super::{BoxError, HttpRequest, HttpResponse};

/// A client whose calls wait until they may be sent, made by
/// [`OutgoingLayer`](super::OutgoingLayer).
///
/// It is ready when the inner client is. The call keeps the instance that was ready while it waits,
/// because that instance may have reserved something for it.
#[derive(Clone, Debug)]
pub struct Outgoing<S> {
    inner: S,
    settings: Arc<OutgoingSettings>,
}

impl<S> Outgoing<S> {
    pub(super) fn new(inner: S, settings: Arc<OutgoingSettings>) -> Self {
        Self { inner, settings }
    }

    /// The inner client.
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
    type Future = OutgoingFuture<S::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        // The clone is not ready, so it stays and the call takes the ready instance.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let settings = self.settings.clone();
        let (key, cost) = settings.describe(&request.head());
        OutgoingFuture(Box::pin(async move {
            let call = settings.admit(key, cost).await?;
            let response = inner.call(request).await.map_err(Into::into)?;
            settings.apply_advice(call, response.status(), response.headers());
            Ok(response)
        }))
    }
}

/// The response future. When dropped, the call leaves the queue; a permit that it has taken is
/// spent.
#[must_use = "nothing is sent before it is polled"]
pub struct OutgoingFuture<R>(Pin<Box<dyn Future<Output = Result<R, BoxError>> + Send>>);

impl<R> Future for OutgoingFuture<R> {
    type Output = Result<R, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

impl<R> fmt::Debug for OutgoingFuture<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingFuture").finish_non_exhaustive()
    }
}
