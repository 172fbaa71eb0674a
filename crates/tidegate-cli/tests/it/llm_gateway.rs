//! The gateway of `examples/recipes/llm-gateway` in front of its model server, which streams.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use testkit::raw_http::exchange;
use testkit::server::ServerProcess;

/// A Python program of the recipe, killed on drop.
struct Program {
    child: Child,
    address: SocketAddr,
}

impl Program {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/recipes/llm-gateway");
        let mut command = Command::new("python3");
        command.arg(folder.join(name)).arg("0").args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3 runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port: u16 = line.trim().parse().unwrap_or_else(|_| panic!("{name}: {line:?}"));
        Self { child, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The reply to a prompt, with its head.
    fn ask(&self, user: &str, tokens: u32, prompt: &str) -> String {
        let body = json!({ "model": "gpt-x", "max_tokens": tokens,
            "messages": [{ "role": "user", "content": prompt }] })
        .to_string();
        let request = format!(
            "POST /v1/chat/completions HTTP/1.0\r\nx-org: acme\r\nx-team: search\r\nx-user: {user}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        String::from_utf8(exchange(self.address, request.as_bytes())).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_gateway_reserves_streams_and_commits_what_was_used() {
    let policy = include_str!("../../../../examples/recipes/llm-gateway/policy.yaml");
    // Windows that cannot end during the test.
    let server = ServerProcess::with_policy(&policy.replace("/m\"", "/d\""));
    let model = Program::start("model.py", &[]);
    let tidegate = format!("http://{}", server.http);
    let gateway = Program::start("gateway.py", &[&tidegate, &model.url()]);
    let left = |rule: &str, key: &str| {
        let peek = server.post("/v1/check", &json!({ "rule": rule, "key": key, "cost": 0 }));
        peek.json()["remaining"].as_u64().unwrap()
    };

    let reply = gateway.ask("ann", 900, "count to 40");
    assert!(reply.contains("\"40 \"") && reply.ends_with("data: [DONE]\n\n"), "{reply}");
    // 3 tokens of input and 40 of output. The model that replied has no price of its own, so that
    // of "*" is used.
    assert_eq!(left("user-tokens", "ann"), 2_000 - 43);
    assert_eq!(left("team-tokens", "search"), 4_000 - 43);
    assert_eq!(left("user-requests", "ann"), 4);
    assert_eq!(left("org-spend", "acme"), 50_000 - (3 * 5 + 40 * 20));

    let denied = gateway.ask("ann", 1_990, "count to 3");
    assert!(denied.starts_with("HTTP/1.0 429"), "{denied}");
    assert!(denied.contains("x-ratelimit-remaining-tokens: 1957"), "{denied}");
    assert!(denied.contains("retry-after: "), "{denied}");
    assert_eq!(left("user-tokens", "ann"), 1_957, "a denial holds nothing");

    drop(model);
    let unreachable = gateway.ask("bob", 900, "count to 3");
    assert!(unreachable.starts_with("HTTP/1.0 502"), "{unreachable}");
    assert_eq!(left("user-tokens", "bob"), 2_000, "cancelled");
    assert_eq!(left("user-requests", "bob"), 4, "a request is charged when it is reserved");
}
