//! A bare axum handler with the response of `POST /v1/check`, as a baseline for `bench/servers`.
//!
//! ```text
//! axum_baseline PORT
//! ```

use axum::Router;
use axum::routing::post;

const BODY: &str = r#"{"allowed":true,"limit":1000000000,"remaining":999999999,"retry_after_ms":0,"reset_after_ms":1,"delay_ms":0,"rule":"bench","source":"memory","rules":[{"rule":"bench","policy":"bench","allowed":true,"limit":1000000000,"remaining":999999999,"retry_after_ms":0,"reset_after_ms":1,"delay_ms":0}]}"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port: u16 = std::env::args().nth(1).ok_or("usage: axum_baseline PORT")?.parse()?;
    let headers = [
        ("ratelimit-policy", r#""bench";q=1000000000;w=1"#),
        ("ratelimit", r#""bench";r=999999999;t=1"#),
        ("x-ratelimit-limit", "1000000000"),
        ("x-ratelimit-remaining", "999999999"),
        ("x-ratelimit-reset", "1"),
        ("content-type", "application/json"),
    ];
    let check = move |_: axum::body::Bytes| async move { (headers, BODY) };
    let app = Router::new().route("/v1/check", post(check));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    axum::serve(listener, app).await?;
    Ok(())
}
