//! What the server has seen lately: once, or every second.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use hyper::body::{Body, Frame, SizeHint};
use tidegate_tower::extract;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::Door;
use super::activity::Lasts;
use super::problem::Problem;
use crate::live::{Live, Present, Seconds};
use crate::tokens::Access;

/// The longest piece of an event in bytes.
const MAX_PIECE: usize = 8 << 10;
/// What a stream is asked for with.
pub(super) const EVENT_STREAM: &str = "text/event-stream";

/// `GET /v1/live[?seconds=60]`
pub(super) async fn live(
    State(door): State<Door>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    door.admit(Access::Check, &headers)?;
    let seconds = seconds(query.as_deref().unwrap_or_default())?;
    let uncached = (CACHE_CONTROL, "no-store");
    if !wants_stream(&headers) {
        let typed = (CONTENT_TYPE, "application/json");
        let live = door.service.live();
        let json = live.json(seconds, present(&door)).await.unwrap_or_default();
        let room = live.hold(json.len()).filter(|_| !json.is_empty());
        let Some(room) = room else {
            let detail = "others are slow in taking what they asked for; ask later";
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
        };
        let body = axum::body::Body::new(Events::one(Event { rest: json, _room: room }));
        return Ok(([typed, uncached], body).into_response());
    }
    let Some(place) = door.service.live().follow() else {
        let detail = format!("{} follow already; ask once, or later", Live::MAX_STREAMS);
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
    };
    let ticks = door.service.live().ticks();
    let events = Events::new(Follower { door, seconds, ticks, is_first: true }, place);
    let body = axum::body::Body::new(events);
    let mut response = ([(CONTENT_TYPE, EVENT_STREAM), uncached], body).into_response();
    response.extensions_mut().insert(Lasts::AsLongAsWanted);
    Ok(response)
}

/// Looks at what is now, when it is asked to.
fn present(door: &Door) -> impl FnOnce() -> Present + Send + 'static + use<> {
    let (service, policies) = (door.service.clone(), door.policies.clone());
    move || Present::of(&service, &policies)
}

fn seconds(query: &str) -> Result<Seconds, Problem> {
    let mut seconds = None;
    for (name, value) in extract::pairs(query) {
        match (name.as_deref(), value.as_deref()) {
            (Some("seconds"), Some(value)) if seconds.is_none() => {
                let number = value.parse().ok().and_then(Seconds::new);
                let refused = || Problem::field("seconds", "use a number from 1 to 900");
                seconds = Some(number.ok_or_else(refused)?);
            }
            (name, _) => {
                let name = Cow::from(name.unwrap_or("query").to_owned());
                return Err(Problem::field(name, "use seconds once, and nothing else"));
            }
        }
    }
    Ok(seconds.unwrap_or(Seconds::DEFAULT))
}

/// Does somebody ask for events? Whoever takes anything gets JSON.
fn wants_stream(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    let mut ranges = accepted.flat_map(|value| value.split(','));
    ranges.any(|range| {
        let kind = range.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case(EVENT_STREAM)
    })
}

/// Somebody who wants to know every second.
struct Follower {
    door: Door,
    seconds: Seconds,
    ticks: watch::Receiver<u64>,
    is_first: bool,
}

impl Follower {
    /// The next event, with whom to ask for the one after it; none when the server drains.
    async fn next(mut self) -> Option<(Event, Self)> {
        loop {
            // Who is slow in taking one misses those in between.
            if !self.is_first {
                tokio::select! {
                    biased;
                    () = self.door.drain.begun() => return None,
                    changed = self.ticks.changed() => changed.ok()?,
                }
            }
            self.is_first = false;
            self.ticks.mark_unchanged();
            let live = self.door.service.live();
            let bytes = live.event(self.seconds, present(&self.door)).await?;
            // Where others take up the room there is none this time.
            if let Some(room) = live.hold(bytes.len()) {
                return Some((Event { rest: bytes, _room: room }, self));
            }
        }
    }
}

/// An event or an answer, as far as it was not taken yet.
struct Event {
    rest: Bytes,
    _room: OwnedSemaphorePermit,
}

type Next = Pin<Box<dyn Future<Output = Option<(Event, Follower)>> + Send>>;

/// Events as a body: one is made when the one before was taken, so that nothing piles up.
struct Events {
    event: Option<Event>,
    next: Option<Next>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Events {
    fn new(follower: Follower, place: OwnedSemaphorePermit) -> Self {
        Self { event: None, next: Some(Box::pin(follower.next())), _place: Some(place) }
    }

    /// This one, and none after it.
    fn one(event: Event) -> Self {
        Self { event: Some(event), next: None, _place: None }
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.event.is_none() {
            let Some(next) = &mut this.next else { return Poll::Ready(None) };
            let (event, follower) = ready!(next.as_mut().poll(context)).unzip();
            this.event = event;
            this.next = follower.map(|follower: Follower| -> Next { Box::pin(follower.next()) });
        }
        let Some(event) = &mut this.event else { return Poll::Ready(None) };
        let piece = event.rest.split_to(event.rest.len().min(MAX_PIECE));
        // A copy, since a part of it would keep all of it.
        let piece = Bytes::copy_from_slice(&piece);
        if event.rest.is_empty() {
            this.event = None;
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.event.is_none() && self.next.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.event.as_ref().map_or(0, |event| event.rest.len() as u64);
        match self.next {
            None => SizeHint::with_exact(rest),
            Some(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn only_a_number_of_seconds_can_be_asked_for() {
        for (query, expected) in [
            ("", Ok(60)),
            ("seconds=1", Ok(1)),
            ("seconds=900", Ok(900)),
            ("seconds=0", Err("seconds")),
            ("seconds=901", Err("seconds")),
            ("seconds=-1", Err("seconds")),
            ("seconds=", Err("seconds")),
            ("seconds=%ff", Err("seconds")),
            ("seconds=5&seconds=5", Err("seconds")),
            ("second=5", Err("second")),
            ("%ff=5", Err("query")),
        ] {
            let read = seconds(query).map(Seconds::get);
            let field = |problem: Problem| {
                serde_json::to_value(problem.body()).unwrap()["field"].as_str().unwrap().to_string()
            };
            assert_eq!(read.map_err(field), expected.map_err(String::from), "{query}");
        }
    }

    #[tokio::test]
    async fn an_answer_has_a_length_and_its_room_until_it_was_taken() {
        let live = Live::new(tidegate::Micros::ZERO);
        let room = live.hold(Live::MAX_HELD).unwrap();
        let rest = Bytes::from(vec![b'x'; 3 * MAX_PIECE]);
        let mut body = Events::one(Event { rest, _room: room });
        assert_eq!(body.size_hint().exact(), Some(3 * MAX_PIECE as u64));
        for left in (0..3).rev() {
            assert!(live.hold(1).is_none() && !body.is_end_stream());
            let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(piece.len(), MAX_PIECE);
            assert_eq!(body.size_hint().exact(), Some(left * MAX_PIECE as u64));
        }
        assert!(body.is_end_stream() && live.hold(1).is_some());
    }

    #[test]
    fn events_are_for_those_who_ask_for_them() {
        for (accept, expected) in [
            ("text/event-stream", true),
            ("Text/Event-Stream; q=0.9, application/json", true),
            ("application/json, text/event-stream", true),
            ("*/*", false),
            ("text/*", false),
            ("application/json", false),
            ("text/event-streams", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
            assert_eq!(wants_stream(&headers), expected, "{accept}");
        }
        assert!(!wants_stream(&HeaderMap::new()));
    }
}
