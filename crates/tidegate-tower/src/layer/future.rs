//! The response future of a service behind a layer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::admission::{Admission, Admitted};
use super::body::ResponseBody;

pin_project! {
    /// The response future of a [`RateLimit`](super::RateLimit).
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: ResponseState<S, B>,
    }
}

type DecisionFuture = Pin<Box<dyn Future<Output = (Parts, Admission)> + Send>>;

pin_project! {
    #[project = Projected]
    enum ResponseState<S, B>
    where
        S: Service<Request<B>>,
    {
        Deciding { service: S, deciding: DecisionFuture, body: Option<B> },
        Passing { #[pin] response: S::Future, passed: Admitted },
        Denied { response: Option<Response<Bytes>> },
    }
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(super) fn deciding(service: S, deciding: DecisionFuture, body: B) -> Self {
        Self { state: ResponseState::Deciding { service, deciding, body: Some(body) } }
    }

    pub(super) fn passing(service: &mut S, passed: Admitted, head: Parts, body: B) -> Self {
        Self { state: ResponseState::passing(service, passed, head, body) }
    }

    pub(super) fn denied(response: Response<Bytes>) -> Self {
        Self { state: ResponseState::Denied { response: Some(response) } }
    }
}

impl<S: Service<Request<B>>, B> ResponseState<S, B> {
    fn passing(service: &mut S, passed: Admitted, mut head: Parts, body: B) -> Self {
        if let Some(meter) = passed.extras.as_ref().and_then(|extras| extras.meter.clone()) {
            head.extensions.insert(meter);
        }
        Self::Passing { response: service.call(Request::from_parts(head, body)), passed }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: ResponseBody,
{
    type Output = Result<Response<R>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                Projected::Deciding { service, deciding, body } => {
                    let (head, admission) = ready!(deciding.as_mut().poll(cx));
                    match (admission, body.take()) {
                        (Admission::Pass(passed), Some(body)) => {
                            ResponseState::passing(service, passed, head, body)
                        }
                        (Admission::Deny(response), _) => {
                            ResponseState::Denied { response: Some(response) }
                        }
                        // Polled after completion, which the contract of `Future` forbids.
                        (Admission::Pass(_), None) => return Poll::Pending,
                    }
                }
                Projected::Passing { response, passed } => {
                    let guard = |passed: &mut Admitted| {
                        passed.extras.take().and_then(|extras| extras.guard)
                    };
                    let mut response = match ready!(response.poll(cx)) {
                        Ok(response) => response,
                        Err(error) => {
                            if let Some(guard) = guard(passed) {
                                guard.cancel_charge();
                            }
                            return Poll::Ready(Err(error));
                        }
                    };
                    if let Some(headers) = passed.headers.take() {
                        headers.add(response.headers_mut());
                    }
                    let response = match guard(passed) {
                        Some(guard) => guard.respond(response),
                        None => response,
                    };
                    return Poll::Ready(Ok(response));
                }
                Projected::Denied { response } => {
                    let response = response.take().unwrap_or_default();
                    return Poll::Ready(Ok(response.map(R::of_bytes)));
                }
            };
            state.set(next);
        }
    }
}
