//! The gateway in front of the recipe's model server, which streams. The one in Python has the same
//! test, in `tidegate-cli`.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use testkit::raw_http::exchange;
use testkit::server::TempFolder;

/// A program that prints its port, killed on drop.
struct Program(Child, SocketAddr);

impl Program {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port: u16 = line.trim().parse().unwrap_or_else(|_| panic!("{line:?}"));
        Self(child, SocketAddr::from(([127, 0, 0, 1], port)))
    }

    fn ask(&self, user: &str, tokens: u32, prompt: &str) -> String {
        let body = format!(
            r#"{{"model":"gpt-x","max_tokens":{tokens},"messages":[{{"content":"{prompt}"}}]}}"#
        );
        let request = format!(
            "POST /v1/chat/completions HTTP/1.0\r\nx-org: acme\r\nx-team: search\r\n\
             x-user: {user}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        String::from_utf8(exchange(self.1, request.as_bytes())).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_gateway_reserves_streams_and_commits_what_was_used() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Windows that cannot end during the test.
    let policy = include_str!("../policy.yaml").replace("/m\"", "/d\"");
    let policy = TempFolder::new().write("policy.yaml", &policy);
    let model = Program::start(Command::new("python3").arg(folder.join("model.py")).arg("0"));
    let url = format!("http://{}", model.1);
    let gateway = Program::start(
        Command::new(env!("CARGO_BIN_EXE_llm-gateway")).arg("0").arg(policy).arg(url),
    );

    let reply = gateway.ask("ann", 900, "count to 40");
    assert!(reply.contains("\"40 \"") && reply.ends_with("data: [DONE]\n\n"), "{reply}");
    // 3 tokens of input and 40 of output, and no longer the estimate.
    let denied = gateway.ask("ann", 1_990, "count to 3");
    assert!(denied.starts_with("HTTP/1.0 429"), "{denied}");
    assert!(denied.contains("x-ratelimit-remaining-tokens: 1957"), "{denied}");
    assert!(denied.contains("x-ratelimit-remaining-requests: 4"), "{denied}");
    assert!(denied.contains("retry-after: "), "{denied}");

    drop(model);
    let unreachable = gateway.ask("bob", 900, "count to 3");
    assert!(unreachable.starts_with("HTTP/1.0 502"), "{unreachable}");
    let denied = gateway.ask("bob", 1_999, "count to 3");
    assert!(denied.contains("x-ratelimit-remaining-tokens: 2000"), "cancelled: {denied}");
}
