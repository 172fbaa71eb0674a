//! The examples print what they document.

#[path = "../../examples/axum.rs"]
#[expect(dead_code, reason = "only its demo function is called")]
mod axum_demo;
#[path = "../../examples/tonic.rs"]
#[expect(dead_code, reason = "only its demo function is called")]
mod tonic_demo;

#[tokio::test]
async fn three_requests_pass_and_the_fourth_gets_a_retry_after() {
    let lines = axum_demo::demo().await.unwrap();
    for (line, remaining) in lines[..3].iter().zip([2, 1, 0]) {
        let expected = format!("HTTP/1.1 200 OK  ratelimit: \"address.1\";r={remaining};");
        assert!(line.starts_with(&expected), "{line}");
    }
    assert!(lines[3].starts_with("HTTP/1.1 429 Too Many Requests  "), "{}", lines[3]);
    assert!(lines[3].contains("retry-after: 2"), "{}", lines[3]);
}

#[tokio::test]
async fn three_calls_pass_and_the_fourth_gets_a_retry_delay() {
    let lines = tonic_demo::demo().await.unwrap();
    assert_eq!(
        lines,
        [
            "hello, 2 left",
            "hello, 1 left",
            "hello, 0 left",
            "ResourceExhausted: rate limited; retry later, after 2 s",
        ]
    );
}
