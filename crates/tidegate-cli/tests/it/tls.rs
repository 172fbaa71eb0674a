//! TLS on every listener, client certificates, and reloaded certificates.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use testkit::certificates::{TestCa, TestCertificate};
use testkit::process::{serve, tidegate};
use testkit::server::{ServerProcess, TEST_TIMEOUT, TempFolder, wait_until};
use testkit::server_in_process::InProcessServer;
use testkit::tls_client::{
    config, config_with_versions, connect, first_line, grpc_health, server_certificate,
};
use tidegate_server::TlsSources;
use tidegate_server::internal::transport::auth::AuthTokens;
use tidegate_server::internal::transport::listener;
use tidegate_server::internal::transport::listener::Timeouts;
use tokio_rustls::rustls::version::{TLS12, TLS13};

const RULES: &str = "rules: [{ name: login, limits: [5/min] }]\n";
const GET: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A policy in the folder of the certificates.
fn policy(authority: &TestCa, client_ca: &str) -> String {
    let tls = format!("tls: {{ cert: 127.0.0.1.crt, key: 127.0.0.1.key{client_ca} }}\n");
    authority.write("policy.yaml", &(tls + RULES))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Whether each listener responds: HTTP/1.1, HTTP/2, gRPC and RESP.
fn responds(
    server: &ServerProcess,
    trusted: &TestCa,
    identity: Option<&TestCertificate>,
) -> [bool; 4] {
    let replies = |address, request: &str, reply: &str| {
        let stream = connect(address, &config(trusted, identity, &[]));
        stream
            .and_then(|mut stream| first_line(&mut stream, request))
            .is_ok_and(|line| line == reply)
    };
    let grpc = |address| {
        let config = config(trusted, identity, &["h2"]);
        runtime().block_on(grpc_health(address, config)).is_ok_and(|status| status == 200)
    };
    [
        replies(server.http, GET, "HTTP/1.1 200 OK"),
        grpc(server.http),
        grpc(server.grpc),
        replies(server.resp, "PING\r\n", "+PONG"),
    ]
}

fn check(server: &ServerProcess, arguments: &[&str]) -> testkit::process::CommandOutput {
    let address = format!("https://{}", server.http);
    tidegate(&[&["check", "login", "k", "--server", &address], arguments].concat(), &[])
}

#[test]
fn every_listener_accepts_only_tls() {
    let authority = TestCa::new();
    authority.issue("127.0.0.1");
    let server = ServerProcess::start(&["--config", &policy(&authority, "")], &[]);
    assert_eq!(responds(&server, &authority, None), [true; 4]);
    let other_ca = TestCa::new();
    assert_eq!(responds(&server, &other_ca, None), [false; 4], "clients verify the certificate");

    let ran = check(&server, &["--ca", &authority.ca()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("allowed by login, 4 of 5 remaining"), "{}", ran.stdout);
    let ran = check(&server, &["--ca", &other_ca.ca()]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("TLS handshake with 127.0.0.1"), "{}", ran.stderr);
    let ran = check(&server, &["--ca", "/nowhere.pem"]);
    assert!(ran.stderr.contains("/nowhere.pem: cannot be read"), "{}", ran.stderr);
}

#[test]
fn a_client_without_a_certificate_is_not_let_in_where_one_is_wanted() {
    let (authority, clients, strangers) = (TestCa::new(), TestCa::new(), TestCa::new());
    let TestCertificate { cert, key } = authority.issue("127.0.0.1");
    let known = clients.issue("client");
    let flags = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &clients.ca()];
    let server = ServerProcess::start(&flags, &[]);
    assert_eq!(responds(&server, &authority, Some(&known)), [true; 4]);
    assert_eq!(responds(&server, &authority, None), [false; 4]);
    let stranger = strangers.issue("client");
    assert_eq!(responds(&server, &authority, Some(&stranger)), [false; 4]);

    let ca = ["--ca", &authority.ca()];
    let shows = |one: &TestCertificate| {
        check(&server, &[&ca[..], &["--client-cert", &one.cert, "--client-key", &one.key]].concat())
    };
    assert_eq!(shows(&known).code, Some(0), "{}", shows(&known).stderr);
    assert_eq!(shows(&stranger).code, Some(2));
    assert_eq!(check(&server, &ca).code, Some(2));
}

#[test]
fn a_certificate_set_by_flag_keeps_client_authentication() {
    let (authority, clients, others) = (TestCa::new(), TestCa::new(), TestCa::new());
    authority.issue("127.0.0.1");
    let TestCertificate { cert, key } = others.issue("127.0.0.1");
    let known = clients.issue("client");
    let policy = policy(&authority, &format!(", client_ca: {:?}", clients.ca()));
    let flags = ["--config", &policy, "--tls-cert", &cert, "--tls-key", &key];
    let server = ServerProcess::start(&flags, &[]);
    assert_eq!(responds(&server, &others, Some(&known)), [true; 4]);
    assert_eq!(responds(&server, &others, None), [false; 4]);
}

#[test]
fn tls_is_1_3_or_1_2_with_forward_secrecy_and_nothing_older() {
    let authority = TestCa::new();
    authority.issue("127.0.0.1");
    let server = ServerProcess::start(&["--config", &policy(&authority, "")], &[]);
    for version in [&TLS12, &TLS13] {
        let config = config_with_versions(&authority, None, &[], &[version]);
        for (address, request, reply) in
            [(server.http, GET, "HTTP/1.1 200 OK"), (server.resp, "PING\r\n", "+PONG")]
        {
            let mut stream = connect(address, &config).unwrap();
            assert_eq!(stream.conn.protocol_version(), Some(version.version));
            assert_eq!(first_line(&mut stream, request).unwrap(), reply);
        }
    }
    // 1.0, 1.1, and 1.2 with RSA key exchange: TLS_RSA_WITH_AES_128_GCM_SHA256.
    const PROTOCOL_VERSION: u8 = 70;
    const HANDSHAKE_FAILURE: u8 = 40;
    for (version, alert) in [(1, PROTOCOL_VERSION), (2, PROTOCOL_VERSION), (3, HANDSHAKE_FAILURE)] {
        for address in [server.http, server.grpc, server.resp] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
            stream.write_all(&hello(version)).unwrap();
            let mut message = [0; 7];
            stream.read_exact(&mut message).unwrap();
            assert_eq!([message[0], message[5], message[6]], [0x15, 2, alert], "3.{version}");
        }
    }
}

/// ClientHello with version 3.`minor` and one cipher.
fn hello(minor: u8) -> Vec<u8> {
    // Signatures: RSA or ECDSA with SHA-256. Groups: P-256.
    let extensions =
        [&[0, 13, 0, 6, 0, 4, 4, 1, 4, 3][..], &[0, 10, 0, 4, 0, 2, 0, 23], &[0, 11, 0, 2, 1, 0]]
            .concat();
    let mut body = vec![3, minor];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x00, 0x9c, 1, 0, 0, u8::try_from(extensions.len()).unwrap()]);
    body.extend(extensions);
    let len = u8::try_from(body.len()).unwrap();
    [&[0x16, 3, 1, 0, len + 4, 1, 0, 0, len][..], &body].concat()
}

#[test]
fn a_new_certificate_is_for_new_connections_and_a_bad_one_for_none() {
    let authority = TestCa::new();
    authority.issue("127.0.0.1");
    let server = ServerProcess::start(&["--config", &policy(&authority, "")], &[]);
    let trust = config(&authority, None, &[]);
    let mut old = connect(server.resp, &trust).unwrap();
    let mut old_web = connect(server.http, &trust).unwrap();
    let first = server_certificate(&old);
    let present = || server_certificate(&connect(server.http, &trust).unwrap());

    // Without a signal: the files have changed.
    authority.issue("127.0.0.1");
    wait_until(|| (present() != first).then_some(())).expect("the new one is shown");
    let second = present();
    assert_eq!(
        second,
        server_certificate(&connect(server.resp, &trust).unwrap()),
        "at every listener"
    );
    assert_eq!(first_line(&mut old, "PING\r\n").unwrap(), "+PONG", "who is inside stays");
    assert_eq!(first_line(&mut old_web, GET).unwrap(), "HTTP/1.1 200 OK");

    // A key that belongs to another certificate.
    let key = fs::read_to_string(authority.dir().join("127.0.0.1.key")).unwrap();
    let failed = server.logged("policy reload failed");
    authority.write("127.0.0.1.key", &other_key());
    server.signal("HUP");
    wait_until(|| (server.logged("policy reload failed") > failed).then_some(()))
        .expect("not logged");
    let log = server.log().join("\n");
    assert!(log.contains("127.0.0.1.key: key does not belong to the certificate in"), "{log}");
    assert!(!log.contains("PRIVATE KEY"), "{log}");
    assert_eq!(present(), second, "the last valid certificate stays");
    let metrics = {
        let mut web = connect(server.http, &trust).unwrap();
        web.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        web.read_to_string(&mut text).unwrap();
        text
    };
    assert!(metrics.contains("\ntidegate_config_valid 0\n"), "{metrics}");
    assert!(!metrics.contains("\ntidegate_config_reload_failures_total 0\n"), "{metrics}");

    // The reload recovers without a signal.
    let reloaded = server.logged("policy reloaded");
    authority.write("127.0.0.1.key", &key);
    wait_until(|| (server.logged("policy reloaded") > reloaded).then_some(())).expect("again");
    assert_eq!(present(), second);
    assert_eq!(first_line(&mut old, "PING\r\n").unwrap(), "+PONG");
}

#[test]
fn invalid_files_are_refused_by_name_before_the_listeners_open() {
    let authority = TestCa::new();
    let good = authority.issue("127.0.0.1");
    let other = authority.issue("other");
    let empty = authority.write("empty.pem", "no certificate");
    let ca = authority.ca();
    let cases: [([&str; 3], &str); 6] = [
        (["missing.pem", &good.key, &ca], "missing.pem: cannot be read"),
        ([&good.cert, "missing.pem", &ca], "missing.pem: cannot be read"),
        ([&good.cert, &good.key, "missing.pem"], "missing.pem: cannot be read"),
        ([&empty, &good.key, &ca], "empty.pem: no valid certificate found"),
        ([&good.cert, &empty, &ca], "empty.pem: no valid private key found"),
        ([&good.cert, &other.key, &ca], "other.key: key does not belong to the certificate in"),
    ];
    for ([cert, key, client_ca], message) in cases {
        let tls = format!("tls: {{ cert: {cert:?}, key: {key:?}, client_ca: {client_ca:?} }}\n");
        let file = authority.write("bad.yaml", &(tls + RULES));
        let flags = ["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
        let ran = serve(&[&flags[..], &["--config", &file]].concat(), &[]);
        assert_eq!(ran.code, Some(2), "{message}");
        assert!(ran.stderr.contains(message), "{message}: {}", ran.stderr);
        let ran = tidegate(&["validate", &file], &[]);
        assert_eq!(ran.code, Some(1), "{message}");
        assert!(ran.stderr.contains(message), "{message}: {}", ran.stderr);
    }
    let half = tidegate(&["serve", "--tls-cert", &good.cert], &[]);
    assert!(half.code == Some(2) && half.stderr.contains("--tls-key"), "{}", half.stderr);
}

#[test]
fn half_a_handshake_ends_by_its_deadline_and_delays_no_client() {
    let authority = TestCa::new();
    let TestCertificate { cert, key } = authority.issue("127.0.0.1");
    let files = tidegate_config::TlsFiles { cert: cert.into(), key: key.into(), client_ca: None };
    let deadlines = Timeouts { handshake: Duration::from_secs(2), ..Timeouts::default() };
    let options = listener::ListenerOptions {
        tls: TlsSources { all: Some(files), ..TlsSources::default() },
        deadlines,
        ..listener::ListenerOptions::default()
    };
    let server = InProcessServer::start(options, AuthTokens::default());
    let addresses = [server.http, server.grpc, server.resp];
    // A TLS record that is never completed.
    let half = |address: &SocketAddr| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01]).unwrap();
        stream
    };
    let slow: Vec<TcpStream> = addresses.iter().cycle().take(60).map(half).collect();
    for address in addresses {
        assert!(
            connect(address, &config(&authority, None, &[])).is_ok(),
            "others come in meanwhile"
        );
    }
    slow.into_iter().for_each(expect_end);
    server.expect_metric(
        r#"tidegate_connections_refused_total{listener="grpc",reason="handshake"} 20"#,
    );
}

/// Asserts that the server closes the connection.
fn expect_end(mut stream: TcpStream) {
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut buffer = [0; 1_024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
                return;
            }
        }
    }
}

#[test]
fn a_client_of_another_protocol_is_rejected_with_a_hint_in_the_log() {
    let authority = TestCa::new();
    let TestCertificate { cert, key } = authority.issue("127.0.0.1");
    let plain = ServerProcess::start(&[], &[]);
    let secured = ServerProcess::start(&["--tls-cert", &cert, "--tls-key", &key], &[]);
    // The first bytes reveal the protocol, long before any deadline.
    let say = |address: SocketAddr, bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        expect_end(stream);
    };
    let hello = [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03garbage-of-a-hello"[..], &[7; 100]]
        .concat();
    let (took, ()) = testkit::process::millis(|| {
        for _ in 0..20 {
            for address in [plain.http, plain.resp, plain.grpc] {
                say(address, &hello);
            }
            for address in [secured.http, secured.resp, secured.grpc] {
                say(address, b"GET /garbage-of-a-hello HTTP/1.1\r\nhost: localhost\r\n\r\n");
            }
        }
    });
    // Each would wait for a deadline of seconds.
    let took = std::time::Duration::from_millis(took);
    testkit::timing::compare_with_goal("120 clients", took, std::time::Duration::from_secs(9));
    plain.expect_logged("client uses TLS", 1);
    secured.expect_logged("client does not use TLS", 1);
    for server in [&plain, &secured] {
        assert!(!server.log().join("\n").contains("garbage"), "{:?}", server.log());
    }
    assert_eq!(plain.get("/healthz").status, 200);
}

#[test]
fn tls_allows_listening_for_other_machines_and_the_log_warns_about_missing_authentication() {
    let authority = TestCa::new();
    let TestCertificate { cert, key } = authority.issue("127.0.0.1");
    let ca = authority.ca();
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    let clients = [&tls[..], &["--tls-client-ca", &ca]].concat();
    let token = [("TIDEGATE_TOKEN", "s3cr3t")];
    const ANYBODY: &str = "without authentication (TLS only)";
    const PLAIN: &str = "tokens are sent in plaintext";
    const OPEN: &str = "with neither token nor TLS";
    type Case<'a> = (&'a str, &'a [&'a str], &'a [(&'a str, &'a str)], Result<Option<&'a str>, ()>);
    let cases: [Case<'_>; 9] = [
        ("0.0.0.0:0", &[], &[], Err(())),
        ("0.0.0.0:0", &["--insecure"], &[], Ok(Some(OPEN))),
        ("0.0.0.0:0", &tls, &[], Ok(Some(ANYBODY))),
        ("0.0.0.0:0", &tls, &token, Ok(None)),
        ("[::]:0", &clients, &[], Ok(None)),
        ("0.0.0.0:0", &clients, &token, Ok(None)),
        ("0.0.0.0:0", &[], &token, Ok(Some(PLAIN))),
        ("127.0.0.1:0", &tls, &[], Ok(None)),
        ("127.0.0.2:0", &[], &token, Ok(None)),
    ];
    for (resp, flags, variables, message) in cases {
        let arguments = [&["--http", "127.0.0.1:0", "--resp", resp], flags].concat();
        let ran = serve(&arguments, variables);
        assert_eq!(ran.code, message.is_err().then_some(2), "{resp} {flags:?}: {}", ran.stderr);
        for warning in [ANYBODY, PLAIN, OPEN] {
            let expected = message == Ok(Some(warning));
            assert_eq!(ran.stderr.contains(warning), expected, "{resp} {flags:?}: {}", ran.stderr);
        }
    }
    // An error in the file is found before the listeners open.
    let folder = TempFolder::new();
    let file = folder.write("policy.yaml", &format!("tls: {{ cert: {cert:?} }}\n{RULES}"));
    let ran = serve(
        &["--http", "0.0.0.0:0", "--resp", "127.0.0.1:0", "--config", file.to_str().unwrap()],
        &[],
    );
    assert!(ran.code == Some(2) && ran.stderr.contains("missing field key"), "{}", ran.stderr);
}

fn other_key() -> String {
    let other = TestCa::new();
    fs::read_to_string(other.issue("other").key).unwrap()
}
