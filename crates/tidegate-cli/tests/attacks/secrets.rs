//! No log line, response or error contains a secret.

use serde_json::json;
use tokio::runtime::Runtime;

use testkit::envoy::{descriptor, request};
use testkit::process::{print_figure, tidegate};
use testkit::redis::RedisServer;
use testkit::resp::RespConnection;
use testkit::server::{ServerProcess, TempFolder, wait_until};

/// Random texts that occur nowhere else.
const PASSWORD: &str = "pw7Kx2Vb9mLq4ZtR";
const HASH: &str = "hs3Nd8Yc5wJf6GpU";
const CHECK: &str = "ck9Tz4Mq7vBe2XaH";
const ADMIN: &str = "ad5Rw8Ps3nCy6KjF";
const GUESS: &str = "gs2Lh7Dv4xQb9EuM";
const KEY: &str = "ky6Fg3Zn8tSw5VcP";
const SECRETS: [&str; 6] = [PASSWORD, HASH, CHECK, ADMIN, GUESS, KEY];

/// Length of a part of a secret that counts as a leak.
const PART: usize = 8;

/// All outputs with their origin.
#[derive(Default)]
struct Outputs(Vec<(String, String)>);

impl Outputs {
    fn add(&mut self, who: impl Into<String>, what: impl Into<String>) {
        self.0.push((who.into(), what.into()));
    }

    fn run(&mut self, arguments: &[&str], variables: &[(&str, &str)]) {
        let ran = tidegate(arguments, variables);
        self.add(format!("tidegate {arguments:?}"), ran.stdout + &ran.stderr);
    }

    fn len(&self) -> usize {
        self.0.iter().map(|(_, what)| what.len()).sum()
    }

    /// Outputs that contain a part of a secret, in plain text, hex or base64.
    fn leaks(&self) -> Vec<String> {
        let mut leaks = Vec::new();
        for secret in SECRETS {
            for written in [secret.to_string(), hex(secret), base64(secret)] {
                let parts: Vec<&str> =
                    (0..=written.len() - PART).map(|at| &written[at..at + PART]).collect();
                for (who, what) in &self.0 {
                    if let Some(at) = parts.iter().find_map(|part| what.find(part)) {
                        let around = what.as_bytes()[at.saturating_sub(100)..].iter().take(200);
                        let around: Vec<u8> = around.copied().collect();
                        leaks.push(format!("{secret} in {who}: ..{}..", around.escape_ascii()));
                    }
                }
            }
        }
        leaks
    }
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<u8> =
        text.bytes().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    bits.chunks_exact(6)
        .map(|six| six.iter().fold(0, |sum, bit| sum << 1 | bit))
        .map(|sum| LETTERS[usize::from(sum)] as char)
        .collect()
}

/// Calls everything, with valid tokens, wrong ones and none.
fn exercise(server: &ServerProcess, outputs: &mut Outputs) {
    let bodies = [
        json!({ "rule": "api", "key": "k" }),
        json!({ "rule": "missing", "key": "k" }),
        json!({ "limit": "5/parsec", "key": "k" }),
        json!({ "reservation": "00000000000000000000000000000000", "cost": 1 }),
        json!({ "limits": ["7/m"] }),
        json!({ "limits": ["7/parsec"] }),
        json!({ "domain": "edge", "descriptors": [{ "entries": [{ "key": "k", "value": "v" }] }] }),
    ];
    for token in [CHECK, ADMIN, GUESS, ""] {
        let headers = [
            ("authorization", &*format!("Bearer {token}")),
            ("cookie", token),
            ("x-api-key", token),
        ];
        for path in
            ["check", "record", "refund", "reserve", "commit", "cancel", "renew", "simulate"]
        {
            for body in &bodies {
                let response =
                    server.request("POST", &format!("/v1/{path}"), &headers, &body.to_string());
                outputs.add(path, format!("{response:?}"));
            }
        }
        for path in [
            "/v1/rules",
            "/v1/rules/api",
            "/v1/keys/api/k",
            "/v1/keys?rule=missing&key=k",
            "/v1/explain?rule=api&key=k",
            "/v1/authorize",
            "/metrics",
            "/healthz",
            "/readyz",
            "/healthcheck",
            "/openapi.json",
            "/",
            "/json",
        ] {
            for method in ["GET", "PUT", "DELETE", "POST", "BREW"] {
                let response = server.request(method, path, &headers, &bodies[4].to_string());
                outputs.add(format!("{method} {path}"), format!("{response:?}"));
            }
        }
        let mut resp = RespConnection::connect(server.resp);
        for words in [
            &["AUTH", token][..],
            &["AUTH", "user", token],
            &["HELLO", "3", "AUTH", "user", token, "SETNAME", "me"],
            &["TG.INFO"],
            &["INFO"],
            &["INFO", "everything"],
            &["CLIENT", "LIST"],
            &["CLIENT", "INFO"],
            &["CLIENT", "GETNAME"],
            &["CONFIG", "GET", "*"],
            &["CONFIG", "GET", "requirepass"],
            &["COMMAND"],
            &["COMMAND", "DOCS"],
            &["TG.CHECK", "api", "k"],
            &["TG.CHECK", "missing", "k"],
            &["TG.RESET", "api", "k"],
            &["NOTHING", token],
        ] {
            outputs.add(words[0], resp.send_args(words).to_string());
        }
    }
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(testkit::envoy::EnvoyClient::connect(server.grpc));
    for token in [CHECK, ADMIN, GUESS] {
        for check in [request("edge", &[descriptor(&[("k", "v")])]), request("", &[])] {
            outputs.add(
                "gRPC",
                format!(
                    "{:?}",
                    runtime.block_on(client.clone().with_token(token).should_rate_limit(&check))
                ),
            );
        }
    }
}

#[test]
fn no_output_contains_a_secret() {
    let redis = RedisServer::start_with(&["--requirepass", PASSWORD]);
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{}", redis.port());
    let wrong = format!("redis://default:{GUESS}@127.0.0.1:{}", redis.port());
    let folder = TempFolder::new();
    let text = |path: std::path::PathBuf| path.to_str().unwrap().to_string();
    let tls = text(folder.write(
        "key.pem",
        &format!("-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n"),
    ));
    let (check, admin) =
        (text(folder.write("check", CHECK)), text(folder.write("admin", &format!("{ADMIN}\n"))));
    std::fs::create_dir_all(folder.path("envoy")).unwrap();
    folder.write("envoy/edge.yaml", "domain: edge\ndescriptors: [{ key: k, limit: 5/s }]\n");
    let envoy = text(folder.path("envoy"));
    let write =
        |store: &str, more: &str| {
            let rules = "rules: [{ name: api, limits: [5/s] }]\n";
            text(folder.write(
                "policy.yaml",
                &format!("store: {store}\nsecret: ${{SECRET}}\n{more}{rules}"),
            ))
        };
    let file = write(&url, "");
    let shared = [("TIDEGATE_LOG", "trace"), ("RUST_BACKTRACE", "1"), ("SECRET", HASH)];
    let by_name =
        [&shared[..], &[("TIDEGATE_TOKEN", CHECK), ("TIDEGATE_ADMIN_TOKEN", ADMIN)]].concat();
    let by_file =
        [&shared[..], &[("TIDEGATE_TOKEN_FILE", &*check), ("TIDEGATE_ADMIN_TOKEN_FILE", &*admin)]]
            .concat();
    let mut outputs = Outputs::default();
    for (store, variables) in [
        (&*url, &by_name),
        (&*wrong, &by_file),
        (&*format!("redis://:{PASSWORD}@127.0.0.1:1"), &by_name),
    ] {
        let arguments = ["--config", &file, "--store", store, "--envoy-config", &envoy];
        let mut server = ServerProcess::start(&arguments, variables);
        exercise(&server, &mut outputs);
        // Invalid files with secrets in wrong places.
        let faulty = [
            format!("secret: {GUESS}\n"),
            format!("tls: {{ cert: {tls}, key: {tls} }}\nstore: {wrong}\n"),
            format!("namespace: [\"{wrong}\"]\n"),
            format!("tls: {{ key: \"{wrong}\" }}\n"),
        ];
        for (nth, more) in faulty.iter().enumerate() {
            write(&url, more);
            server.signal("HUP");
            let logged = || (server.logged("policy reload failed") > nth).then_some(());
            wait_until(logged).unwrap_or_else(|| panic!("not logged: {more}"));
            outputs.add("/healthz", server.get("/healthz").body);
            outputs.run(&["validate", &file], variables);
        }
        write(&url, "");
        server.signal("TERM");
        server.wait();
        outputs.add("the log", server.log().join("\n"));
        for target in [
            &["--store", store][..],
            &["--server", &format!("http://{GUESS}@127.0.0.1:1")],
            &["--server", "http://127.0.0.1:1"],
        ] {
            outputs.run(&[&["check", "--limit", "5/s", "k"], target].concat(), variables);
            outputs.run(&[&["check", "api", "k", "--config", &file], target].concat(), variables);
        }
        for bad in [
            format!("rediss://:{PASSWORD}@h?cert={tls}"),
            format!("redis:/{PASSWORD}@h"),
            format!("unix:///x?password={PASSWORD}"),
            format!("redis-cluster://:{PASSWORD}@,/"),
        ] {
            outputs.run(
                &["serve", "--http", "127.0.0.1:0", "--resp", "256.0.0.1:0", "--store", &bad],
                variables,
            );
            outputs.run(&["check", "--limit", "5/s", "k", "--store", &bad], variables);
        }
    }
    let tokens = [("TIDEGATE_TOKEN", &*format!("{CHECK} with a space")), ("TIDEGATE_LOG", "trace")];
    outputs.run(&["serve", "--http", "127.0.0.1:0"], &tokens);
    let key = [("TIDEGATE_TOKEN_FILE", &*tls)];
    outputs.run(&["serve", "--http", "127.0.0.1:0"], &key);
    print_figure(format_args!(
        "secrets: {} bytes in {} outputs, {} leaks",
        outputs.len(),
        outputs.0.len(),
        outputs.leaks().len()
    ));
    assert!(outputs.len() > 200_000, "something was outputs: {}", outputs.len());
    assert_eq!(outputs.leaks(), <Vec<String>>::new());
}

/// Checks the search itself.
#[test]
fn a_planted_secret_is_found_in_every_encoding() {
    for planted in
        [ADMIN.to_string(), hex(ADMIN), base64(ADMIN), format!("token=\"{}\"", &ADMIN[3..12])]
    {
        let mut outputs = Outputs::default();
        outputs.add("the log", format!("nothing here, {planted}, nor there"));
        assert_eq!(outputs.leaks().len(), 1, "{planted}");
    }
    let mut outputs = Outputs::default();
    outputs.add("the log", "nothing here, token, password, ad5Rw8P, nor there");
    assert!(outputs.leaks().is_empty());
}
