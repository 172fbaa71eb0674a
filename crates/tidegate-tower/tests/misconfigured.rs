//! What a layer without the peer address logs. In a program of its own: it is logged once for each
//! process.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use tidegate::{Limiter, Memory};
use tidegate_tower::RateLimitLayer;
use tidegate_tower::key::ClientIp;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Keeps the messages of errors.
#[derive(Clone, Default)]
struct ErrorLog(Arc<Mutex<Vec<String>>>);

impl Subscriber for ErrorLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message(self));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Message<'a>(&'a ErrorLog);

impl Visit for Message<'_> {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        self.0.0.lock().unwrap().push(format!("{value:?}"));
    }
}

#[tokio::test]
async fn a_missing_peer_address_is_logged_once_with_the_call_that_sets_it() {
    let log = ErrorLog::default();
    let _logging = tracing::subscriber::set_default(log.clone());
    let limiter = Limiter::try_new(Memory::default(), "5/m").unwrap();
    let layer = RateLimitLayer::new(limiter, ClientIp::default()).any_body();
    let handler =
        service_fn(async |_: Request<String>| Ok::<_, Infallible>(Response::new(String::new())));
    let service = ServiceBuilder::new().layer(layer).service(handler);
    for _ in 0..3 {
        let response = service.clone().oneshot(Request::new(String::new())).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
    let logged = log.0.lock().unwrap().clone();
    assert_eq!(logged.len(), 1, "{logged:?}");
    let remedy = "serve with into_make_service_with_connect_info::<SocketAddr>()";
    assert!(logged[0].contains(remedy), "{logged:?}");
}
