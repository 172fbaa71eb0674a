//! The answer of a service behind a layer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::ResponseBody;
use super::outcome::{Outcome, Passed};

pin_project! {
    /// The answer of a [`RateLimit`](super::RateLimit).
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B>,
    }
}

type Deciding = Pin<Box<dyn Future<Output = (Parts, Outcome)> + Send>>;

pin_project! {
    #[project = Projected]
    enum State<S, B>
    where
        S: Service<Request<B>>,
    {
        Deciding { service: S, deciding: Deciding, body: Option<B> },
        Passing { #[pin] answer: S::Future, passed: Passed },
        Denied { response: Option<Response<Bytes>> },
    }
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(super) fn deciding(service: S, deciding: Deciding, body: B) -> Self {
        Self { state: State::Deciding { service, deciding, body: Some(body) } }
    }

    pub(super) fn passing(service: &mut S, passed: Passed, head: Parts, body: B) -> Self {
        Self { state: State::passing(service, passed, head, body) }
    }

    pub(super) fn denied(response: Response<Bytes>) -> Self {
        Self { state: State::Denied { response: Some(response) } }
    }
}

impl<S: Service<Request<B>>, B> State<S, B> {
    fn passing(service: &mut S, passed: Passed, mut head: Parts, body: B) -> Self {
        if let Some(spent) = passed.more.as_ref().and_then(|more| more.spent.clone()) {
            head.extensions.insert(spent);
        }
        Self::Passing { answer: service.call(Request::from_parts(head, body)), passed }
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
                    let (head, outcome) = ready!(deciding.as_mut().poll(cx));
                    match (outcome, body.take()) {
                        (Outcome::Pass(passed), Some(body)) => {
                            State::passing(service, passed, head, body)
                        }
                        (Outcome::Deny(response), _) => State::Denied { response: Some(response) },
                        // It was polled after its end, which nobody may do.
                        (Outcome::Pass(_), None) => return Poll::Pending,
                    }
                }
                Projected::Passing { answer, passed } => {
                    let guard =
                        |passed: &mut Passed| passed.more.take().and_then(|more| more.guard);
                    let mut response = match ready!(answer.poll(cx)) {
                        Ok(response) => response,
                        Err(error) => {
                            if let Some(guard) = guard(passed) {
                                guard.forgive();
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
