//! Listeners with addresses, TLS and tokens of their own.

use std::net::TcpListener;
use std::process::Command;

use testkit::certificates::TestCa;
use testkit::listening_process::ListeningProcess;
use testkit::server::{RawHttpConnection, TempFolder, tidegate_path, wait_until};
use testkit::tls_client;

fn serve(arguments: &[&str]) -> Command {
    let mut command = Command::new(tidegate_path());
    command.arg("serve").args(arguments);
    command
}

/// On free ports.
const ALL: [&str; 6] = ["--http", "localhost:0", "--resp", "127.0.0.1:0", "--grpc", "localhost:0"];

#[test]
fn one_listener_can_have_mutual_tls_and_another_plaintext() {
    let ca = TestCa::new();
    let (own, client) = (ca.issue("127.0.0.1"), ca.issue("client"));
    let files = format!("{},{},{}", own.cert, own.key, ca.ca());
    let server = ListeningProcess::start(&mut serve(&[&ALL[..], &["--grpc-tls", &files]].concat()));
    assert_eq!(server.request("http", "GET", "/healthz", "").status, 200, "plaintext");
    let grpc = server.address("grpc").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let health = |identity| {
        let config = tls_client::config(&ca, identity, &["h2"]);
        runtime.block_on(tls_client::grpc_health(grpc, config))
    };
    assert_eq!(health(Some(&client)).unwrap(), 200);
    assert!(health(None).is_err(), "a client certificate is required");

    // TLS for all, and one without.
    let tls = ["--tls-cert", &own.cert, "--tls-key", &own.key, "--http-tls", "off"];
    let server = ListeningProcess::start(&mut serve(&[&ALL[..], &tls].concat()));
    assert_eq!(server.request("http", "GET", "/healthz", "").status, 200);
    let config = tls_client::config(&ca, None, &["h2"]);
    let grpc = server.address("grpc").unwrap();
    assert_eq!(runtime.block_on(tls_client::grpc_health(grpc, config)).unwrap(), 200);
}

#[test]
fn certificates_of_one_listener_are_renewed_whatever_the_policy_says_of_others() {
    let ca = TestCa::new();
    let (own, folder) = (ca.issue("127.0.0.1"), TempFolder::new());
    let rules = "rules: [{ name: a, limits: [5/s] }]\n";
    let policy = folder.write("policy.yaml", rules);
    let files = format!("{},{}", own.cert, own.key);
    let arguments = ["--config", policy.to_str().unwrap(), "--grpc-tls", &files];
    let server = ListeningProcess::start(&mut serve(&[&ALL[..], &arguments].concat()));
    let config = tls_client::config(&ca, None, &["h2"]);
    let grpc = server.address("grpc").unwrap();
    let present = || {
        let stream = tls_client::connect(grpc, &config).unwrap();
        stream.conn.peer_certificates().unwrap()[0].to_vec()
    };
    let first = present();

    // TLS for the others too: that needs a restart.
    let tls = format!("tls: {{ cert: {:?}, key: {:?} }}\n", own.cert, own.key);
    folder.write("policy.yaml", &(tls + rules));
    let warnings = || server.log().matches("turning TLS on or off needs a restart").count();
    let is_warned = || (warnings() >= 2).then_some(());
    assert!(wait_until(is_warned).is_some(), "{}", server.log());
    let warnings = server.log();
    let warnings: Vec<_> = warnings.lines().filter(|line| line.contains("turning TLS")).collect();
    let of = |listener: &str| {
        let field = format!("\"listener\":\"{listener}\"");
        warnings.iter().any(|line| line.contains(&field))
    };
    assert_eq!([of("http"), of("resp"), of("grpc")], [true, true, false], "{warnings:?}");
    ca.issue("127.0.0.1");
    let is_renewed = || (present() != first).then_some(());
    assert!(wait_until(is_renewed).is_some(), "{}", server.log());
    assert_eq!(server.request("http", "GET", "/healthz", "").status, 200, "still plaintext");
}

#[test]
fn listeners_can_be_off_and_metrics_can_have_their_own() {
    let arguments =
        ["--http", "off", "--resp", "off", "--grpc", "localhost:0", "--metrics", "localhost:0"];
    let server = ListeningProcess::start(&mut serve(&arguments));
    assert_eq!((server.address("http"), server.address("resp")), (None, None));
    assert!(server.address("grpc").is_some());
    let metrics = server.request("metrics", "GET", "/metrics", "");
    assert!(metrics.body.contains("tidegate_"), "{metrics:?}");
    assert_eq!(server.request("metrics", "GET", "/healthz", "").status, 404, "metrics alone");

    let output = serve(&["--http", "off", "--resp", "off", "--grpc", "off"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("all of --http, --resp and --grpc"),
        "{error}"
    );
}

#[test]
fn a_port_in_use_names_its_flag() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--http", "--resp", "--grpc", "--health", "--metrics"] {
        let others = ALL.chunks(2).filter(|pair| pair[0] != flag).flatten().copied();
        let arguments: Vec<&str> = others.chain([flag, &address]).collect();
        let output = serve(&arguments).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flag}: {error}");
        let advice = format!("choose another address with {flag}");
        assert!(error.contains(&address) && error.contains(&advice), "{flag}: {error}");
    }
}

#[test]
fn a_listener_without_token_decides_and_the_others_still_need_it() {
    let body = r#"{"rule":"login","key":"x"}"#;
    let start = |more: &[&str]| {
        let mut command = serve(&[&ALL[..], more].concat());
        ListeningProcess::start(command.env("TIDEGATE_TOKEN", "a-token-of-sixteen"))
    };
    let guarded = start(&[]);
    assert_eq!(guarded.request("http", "POST", "/v1/check", body).status, 401);
    let open = start(&["--no-token", "http"]);
    assert_eq!(open.request("http", "POST", "/v1/check", body).status, 200);
    let resp = open.address("resp").unwrap();
    let mut client = RawHttpConnection::connect(resp);
    client.try_write(b"*3\r\n$8\r\nTG.CHECK\r\n$5\r\nlogin\r\n$1\r\nx\r\n").unwrap();
    assert!(client.first_line().starts_with("-NOAUTH"));
}

/// Sends a command and expects this beginning of the reply.
fn expect_reply(client: &mut RawHttpConnection, command: &[&str], wanted: &str) {
    let words = command.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let text = format!("*{}\r\n{}", command.len(), words.collect::<String>());
    client.try_write(text.as_bytes()).unwrap();
    let line = client.first_line();
    assert!(line.starts_with(wanted), "{command:?}: {line}");
}

#[test]
fn a_resp_listener_without_token_accepts_the_valid_token() {
    const CHECK: &str = "a-token-of-sixteen";
    const ADMIN: &str = "an-admin-token-of-24-bytes";
    for admin in [None, Some(ADMIN)] {
        let mut command = serve(&[&ALL[..], &["--no-token", "resp"]].concat());
        command.env("TIDEGATE_TOKEN", CHECK);
        if let Some(admin) = admin {
            command.env("TIDEGATE_ADMIN_TOKEN", admin);
        }
        let server = ListeningProcess::start(&mut command);
        let mut client = RawHttpConnection::connect(server.address("resp").unwrap());
        // More often than wrong tokens close the connection.
        for _ in 0..12 {
            expect_reply(&mut client, &["AUTH", CHECK], "+OK");
        }
        expect_reply(&mut client, &["PING"], "+PONG");
        expect_reply(&mut client, &["TG.RESET", "login", "x"], "-NOAUTH admin token required");
        expect_reply(&mut client, &["AUTH", "default", "wrong"], "-WRONGPASS");
        expect_reply(&mut client, &["PING"], "+PONG");
        if let Some(admin) = admin {
            expect_reply(&mut client, &["AUTH", admin], "+OK");
        }
    }
}
