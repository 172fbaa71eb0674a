//! TLS on every door, certificates of clients, and certificates that change.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::certificates::{Authority, Certificate};
use crate::inside::Inside;
use crate::life::{self, serve, tidegate};
use crate::secure::{ask, config, config_of, connect, grpc_health, shown};
use crate::support::{Folder, PATIENCE, Server, wait_until};
use tidegate_server::doors::{self, Deadlines, tls};
use tidegate_server::tokens::Tokens;
use tokio_rustls::rustls::version::{TLS12, TLS13};

const RULES: &str = "rules: [{ name: login, limits: [5/min] }]\n";
const GET: &str = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";

/// A policy in the folder of the certificates.
fn policy(authority: &Authority, client_ca: &str) -> String {
    let tls = format!("tls: {{ cert: 127.0.0.1.crt, key: 127.0.0.1.key{client_ca} }}\n");
    authority.write("policy.yaml", &(tls + RULES))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// What each door answers, HTTP first, then over HTTP/2, gRPC and the Redis protocol.
fn answers(server: &Server, trusted: &Authority, identity: Option<&Certificate>) -> [bool; 4] {
    let says = |address, question: &str, answer: &str| {
        let stream = connect(address, &config(trusted, identity, &[]));
        stream.and_then(|mut stream| ask(&mut stream, question)).is_ok_and(|said| said == answer)
    };
    let grpc = |address| {
        let config = config(trusted, identity, &["h2"]);
        runtime().block_on(grpc_health(address, config)).is_ok_and(|status| status == 200)
    };
    [
        says(server.http, GET, "HTTP/1.1 200 OK"),
        grpc(server.http),
        grpc(server.grpc),
        says(server.resp, "PING\r\n", "+PONG"),
    ]
}

fn check(server: &Server, arguments: &[&str]) -> life::Ran {
    let address = format!("https://{}", server.http);
    tidegate(&[&["check", "login", "k", "--server", &address], arguments].concat(), &[])
}

#[test]
fn every_door_speaks_tls_and_nothing_else() {
    let authority = Authority::new();
    authority.certify("127.0.0.1");
    let server = Server::start(&["--config", &policy(&authority, "")], &[]);
    assert_eq!(answers(&server, &authority, None), [true; 4]);
    let somebody_else = Authority::new();
    assert_eq!(answers(&server, &somebody_else, None), [false; 4], "clients look who it is");

    let ran = check(&server, &["--ca", &authority.ca()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.starts_with("allowed by login, 4 of 5 left"), "{}", ran.stdout);
    let ran = check(&server, &["--ca", &somebody_else.ca()]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("cannot agree on TLS with 127.0.0.1"), "{}", ran.stderr);
    let ran = check(&server, &["--ca", "/nowhere.pem"]);
    assert!(ran.stderr.contains("/nowhere.pem: cannot be read"), "{}", ran.stderr);
}

#[test]
fn a_client_without_a_certificate_is_not_let_in_where_one_is_wanted() {
    let (authority, clients, strangers) = (Authority::new(), Authority::new(), Authority::new());
    let Certificate { cert, key } = authority.certify("127.0.0.1");
    let known = clients.certify("client");
    let flags = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &clients.ca()];
    let server = Server::start(&flags, &[]);
    assert_eq!(answers(&server, &authority, Some(&known)), [true; 4]);
    assert_eq!(answers(&server, &authority, None), [false; 4]);
    let stranger = strangers.certify("client");
    assert_eq!(answers(&server, &authority, Some(&stranger)), [false; 4]);

    let ca = ["--ca", &authority.ca()];
    let shows = |one: &Certificate| {
        check(&server, &[&ca[..], &["--client-cert", &one.cert, "--client-key", &one.key]].concat())
    };
    assert_eq!(shows(&known).code, Some(0), "{}", shows(&known).stderr);
    assert_eq!(shows(&stranger).code, Some(2));
    assert_eq!(check(&server, &ca).code, Some(2));
}

#[test]
fn another_certificate_by_a_flag_does_not_let_everybody_in() {
    let (authority, clients, others) = (Authority::new(), Authority::new(), Authority::new());
    authority.certify("127.0.0.1");
    let Certificate { cert, key } = others.certify("127.0.0.1");
    let known = clients.certify("client");
    let policy = policy(&authority, &format!(", client_ca: {:?}", clients.ca()));
    let flags = ["--config", &policy, "--tls-cert", &cert, "--tls-key", &key];
    let server = Server::start(&flags, &[]);
    assert_eq!(answers(&server, &others, Some(&known)), [true; 4]);
    assert_eq!(answers(&server, &others, None), [false; 4]);
}

#[test]
fn tls_is_1_3_or_1_2_with_forward_secrecy_and_nothing_older() {
    let authority = Authority::new();
    authority.certify("127.0.0.1");
    let server = Server::start(&["--config", &policy(&authority, "")], &[]);
    for version in [&TLS12, &TLS13] {
        let config = config_of(&authority, None, &[], &[version]);
        for (address, question, answer) in
            [(server.http, GET, "HTTP/1.1 200 OK"), (server.resp, "PING\r\n", "+PONG")]
        {
            let mut stream = connect(address, &config).unwrap();
            assert_eq!(stream.conn.protocol_version(), Some(version.version));
            assert_eq!(ask(&mut stream, question).unwrap(), answer);
        }
    }
    // 1.0, 1.1, and 1.2 with a key that is sent along: TLS_RSA_WITH_AES_128_GCM_SHA256.
    const PROTOCOL_VERSION: u8 = 70;
    const HANDSHAKE_FAILURE: u8 = 40;
    for (version, alert) in [(1, PROTOCOL_VERSION), (2, PROTOCOL_VERSION), (3, HANDSHAKE_FAILURE)] {
        for address in [server.http, server.grpc, server.resp] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&hello(version)).unwrap();
            let mut told = [0; 7];
            stream.read_exact(&mut told).unwrap();
            assert_eq!([told[0], told[5], told[6]], [0x15, 2, alert], "3.{version}");
        }
    }
}

/// The first message of a client that can speak version 3 point `minor` at most, and one cipher.
fn hello(minor: u8) -> Vec<u8> {
    // Which signatures it takes: RSA or ECDSA, with SHA-256. Which groups: P-256.
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
    let authority = Authority::new();
    authority.certify("127.0.0.1");
    let server = Server::start(&["--config", &policy(&authority, "")], &[]);
    let trust = config(&authority, None, &[]);
    let mut old = connect(server.resp, &trust).unwrap();
    let mut old_web = connect(server.http, &trust).unwrap();
    let first = shown(&old);
    let present = || shown(&connect(server.http, &trust).unwrap());

    // By the change of the files alone.
    authority.certify("127.0.0.1");
    wait_until(|| (present() != first).then_some(())).expect("the new one is shown");
    let second = present();
    assert_eq!(second, shown(&connect(server.resp, &trust).unwrap()), "at every door");
    assert_eq!(ask(&mut old, "PING\r\n").unwrap(), "+PONG", "who is inside stays");
    assert_eq!(ask(&mut old_web, GET).unwrap(), "HTTP/1.1 200 OK");

    // A key that belongs to another certificate.
    let key = fs::read_to_string(authority.dir().join("127.0.0.1.key")).unwrap();
    let failed = server.logged("policy not reloaded");
    authority.write("127.0.0.1.key", &other_key());
    server.signal("HUP");
    wait_until(|| (server.logged("policy not reloaded") > failed).then_some(())).expect("told");
    let log = server.log().join("\n");
    assert!(log.contains("127.0.0.1.key: this is not the key of the certificate in"), "{log}");
    assert!(!log.contains("PRIVATE KEY"), "{log}");
    assert_eq!(present(), second, "the last good one stays");
    let metrics = {
        let mut web = connect(server.http, &trust).unwrap();
        web.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        web.read_to_string(&mut text).unwrap();
        text
    };
    assert!(metrics.contains("\ntidegate_config_valid 0\n"), "{metrics}");
    assert!(!metrics.contains("\ntidegate_config_reload_failures_total 0\n"), "{metrics}");

    // It gets better by itself.
    let reloaded = server.logged("policy reloaded");
    authority.write("127.0.0.1.key", &key);
    wait_until(|| (server.logged("policy reloaded") > reloaded).then_some(())).expect("again");
    assert_eq!(present(), second);
    assert_eq!(ask(&mut old, "PING\r\n").unwrap(), "+PONG");
}

#[test]
fn what_cannot_be_used_is_refused_by_its_name_before_the_doors_open() {
    let authority = Authority::new();
    let good = authority.certify("127.0.0.1");
    let other = authority.certify("other");
    let empty = authority.write("empty.pem", "no certificate");
    let ca = authority.ca();
    let cases: [([&str; 3], &str); 6] = [
        (["missing.pem", &good.key, &ca], "missing.pem: cannot be read"),
        ([&good.cert, "missing.pem", &ca], "missing.pem: cannot be read"),
        ([&good.cert, &good.key, "missing.pem"], "missing.pem: cannot be read"),
        ([&empty, &good.key, &ca], "empty.pem: there is no good certificate in it"),
        ([&good.cert, &empty, &ca], "empty.pem: there is no good private key in it"),
        ([&good.cert, &other.key, &ca], "other.key: this is not the key of the certificate in"),
    ];
    for ([cert, key, client_ca], told) in cases {
        let tls = format!("tls: {{ cert: {cert:?}, key: {key:?}, client_ca: {client_ca:?} }}\n");
        let file = authority.write("bad.yaml", &(tls + RULES));
        let flags = ["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
        let ran = serve(&[&flags[..], &["--config", &file]].concat(), &[]);
        assert_eq!(ran.code, Some(2), "{told}");
        assert!(ran.stderr.contains(told), "{told}: {}", ran.stderr);
        let ran = tidegate(&["validate", &file], &[]);
        assert_eq!(ran.code, Some(1), "{told}");
        assert!(ran.stderr.contains(told), "{told}: {}", ran.stderr);
    }
    let half = tidegate(&["serve", "--tls-cert", &good.cert], &[]);
    assert!(half.code == Some(2) && half.stderr.contains("--tls-key"), "{}", half.stderr);
}

#[test]
fn half_a_handshake_ends_by_its_deadline_and_keeps_nobody_waiting() {
    let authority = Authority::new();
    let Certificate { cert, key } = authority.certify("127.0.0.1");
    let files = tls::Files { cert: cert.into(), key: key.into(), client_ca: None };
    let deadlines = Deadlines { handshake: Duration::from_secs(2), ..Deadlines::default() };
    let options = doors::Options { tls: Some(files), deadlines, ..doors::Options::default() };
    let server = Inside::start(options, Tokens::default());
    let addresses = [server.http, server.grpc, server.resp];
    // A record that announces more than ever comes.
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
    server
        .expect_metric(r#"tidegate_connections_refused_total{door="grpc",reason="handshake"} 20"#);
}

/// The other side ends it, whatever it says before.
fn expect_end(mut stream: TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
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
fn whoever_speaks_the_other_language_is_sent_away_with_a_hint_in_the_log() {
    let authority = Authority::new();
    let Certificate { cert, key } = authority.certify("127.0.0.1");
    let plain = Server::start(&[], &[]);
    let secured = Server::start(&["--tls-cert", &cert, "--tls-key", &key], &[]);
    // Who says it tells at once, long before any deadline: the first bytes do.
    let say = |address: SocketAddr, bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        expect_end(stream);
    };
    let hello = [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03garbage-of-a-hello"[..], &[7; 100]]
        .concat();
    let (took, ()) = life::millis(|| {
        for _ in 0..20 {
            for address in [plain.http, plain.resp, plain.grpc] {
                say(address, &hello);
            }
            for address in [secured.http, secured.resp, secured.grpc] {
                say(address, b"GET /garbage-of-a-hello HTTP/1.1\r\nhost: x\r\n\r\n");
            }
        }
    });
    assert!(took < 9_000, "{took} ms for 120 clients, none of whom waits for a deadline");
    plain.expect_logged("a client speaks TLS", 1);
    secured.expect_logged("a client does not speak TLS", 1);
    for server in [&plain, &secured] {
        assert!(!server.log().join("\n").contains("garbage"), "{:?}", server.log());
    }
    assert_eq!(plain.get("/healthz").status, 200);
}

#[test]
fn tls_opens_a_door_to_other_machines_and_the_log_says_what_it_does_not_do() {
    let authority = Authority::new();
    let Certificate { cert, key } = authority.certify("127.0.0.1");
    let ca = authority.ca();
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    let clients = [&tls[..], &["--tls-client-ca", &ca]].concat();
    let token = [("TIDEGATE_TOKEN", "s3cr3t")];
    const ANYBODY: &str = "TLS alone keeps nobody out";
    const PLAIN: &str = "tokens cross the network in plain text";
    const OPEN: &str = "anybody may ask it";
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
    for (resp, flags, variables, told) in cases {
        let arguments = [&["--http", "127.0.0.1:0", "--resp", resp], flags].concat();
        let ran = serve(&arguments, variables);
        assert_eq!(ran.code, told.is_err().then_some(2), "{resp} {flags:?}: {}", ran.stderr);
        for warning in [ANYBODY, PLAIN, OPEN] {
            let expected = told == Ok(Some(warning));
            assert_eq!(ran.stderr.contains(warning), expected, "{resp} {flags:?}: {}", ran.stderr);
        }
    }
    // A mistake in the file is found before anybody can come in.
    let folder = Folder::new();
    let file = folder.write("policy.yaml", &format!("tls: {{ cert: {cert:?} }}\n{RULES}"));
    let ran = serve(
        &["--http", "0.0.0.0:0", "--resp", "127.0.0.1:0", "--config", file.to_str().unwrap()],
        &[],
    );
    assert!(ran.code == Some(2) && ran.stderr.contains("key is missing"), "{}", ran.stderr);
}

fn other_key() -> String {
    let other = Authority::new();
    fs::read_to_string(other.certify("other").key).unwrap()
}
