//! Requests to the HTTP listener. The first byte selects the call, the rest is its body or path.
#![no_main]

use std::cell::OnceCell;

use axum::body::Body;
use http::{Request, Uri};
use http_body_util::BodyExt;
use libfuzzer_sys::fuzz_target;
use tidegate_fuzz::ServerFixture;
use tower::ServiceExt;

const CALLS: [(&str, &str); 12] = [
    ("POST", "/v1/check"),
    ("POST", "/v1/record"),
    ("POST", "/v1/refund"),
    ("POST", "/v1/reserve"),
    ("POST", "/v1/commit"),
    ("POST", "/v1/cancel"),
    ("POST", "/v1/renew"),
    ("PUT", "/v1/rules/fuzz"),
    ("POST", "/json"),
    // Empty: the rest of the input is the path.
    ("GET", ""),
    ("DELETE", ""),
    ("POST", ""),
];

thread_local! {
    static SERVER: OnceCell<ServerFixture> = const { OnceCell::new() };
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let (method, path) = CALLS[usize::from(*first) % CALLS.len()];
    let (uri, body) = match path {
        "" => (Uri::try_from(rest), &[][..]),
        path => (Ok(Uri::from_static(path)), rest),
    };
    let Ok(uri) = uri else { return };
    let request = Request::builder().method(method).uri(uri).header("x-tidegate-token", "admin");
    let request = request.header("host", "localhost");
    let Ok(request) = request.body(Body::from(body.to_vec())) else { return };
    SERVER.with(|server| {
        let server = server.get_or_init(ServerFixture::new);
        let response = async {
            let response = server.router.clone().oneshot(request).await.expect("a response");
            let (head, body) = response.into_parts();
            (head, body.collect().await.expect("a body").to_bytes())
        };
        let Some((head, body)) = server.run(response) else { return };
        assert!(head.status.as_u16() < 500, "{}: {body:?}", head.status);
        let kind = head.headers.get("content-type").map_or(&b""[..], |kind| kind.as_bytes());
        if kind.ends_with(b"json") {
            let _: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        }
    });
});
