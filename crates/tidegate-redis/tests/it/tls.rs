//! TLS with real servers and certificates: client certificates, verification of servers, and
//! renewed files.

use std::io::ErrorKind;
use std::time::Duration;

use testkit::certificates::{TestCa, TestCertificate};
use testkit::engine::{
    TEST_TIMEOUT, assert_admits, connect_error, connect_error_within, engine, wait_until,
};
use testkit::redis::{RedisServer, ReservedPort};
use tidegate::{Limit, Limiter};
use tidegate_redis::{InvalidSettings, InvalidTls, Redis};

/// A server with a plain port, for the test itself, and a TLS port.
struct TlsServer {
    server: RedisServer,
    port: ReservedPort,
}

impl TlsServer {
    /// `clients` is the value of `tls-auth-clients`.
    fn start(authority: &TestCa, certificate: &TestCertificate, clients: &str) -> Self {
        let (port, ca) = (ReservedPort::any(), authority.ca());
        let server = RedisServer::start_with(&[
            "--tls-port",
            &port.number.to_string(),
            "--tls-cert-file",
            &certificate.cert,
            "--tls-key-file",
            &certificate.key,
            "--tls-ca-cert-file",
            &ca,
            "--tls-auth-clients",
            clients,
        ]);
        Self { server, port }
    }

    fn url(&self, host: &str, query: &str) -> String {
        format!("rediss://{host}:{}/{query}", self.port.number)
    }
}

#[tokio::test]
async fn over_tls_redis_passes_the_conformance_suite() {
    let authority = TestCa::new();
    let secure = TlsServer::start(&authority, &authority.issue("localhost"), "no");
    let url = secure.url("localhost", &format!("?ca={}", authority.ca()));
    tidegate::conformance::run(|clock| {
        Redis::builder(&url).deadline(TEST_TIMEOUT).test_clock(clock).build().unwrap()
    })
    .await;
}

#[tokio::test]
async fn a_server_is_verified_by_its_certificate_and_its_name() {
    let authority = TestCa::new();
    let secure = TlsServer::start(&authority, &authority.issue("redis.example"), "no");
    let ca = format!("?ca={}", authority.ca());
    let named = format!("{ca}&server_name=redis.example");

    assert_admits(&secure.url("127.0.0.1", &named)).await;
    assert_admits(&secure.url("localhost", &named)).await;
    let error = connect_error(&secure.url("127.0.0.1", &ca)).await;
    assert!(error.contains("not valid for name"), "{error}");
    let error =
        connect_error(&secure.url("localhost", &format!("{ca}&server_name=other.example"))).await;
    assert!(error.contains("not valid for name"), "{error}");

    let other_ca = TestCa::new();
    let untrusted = format!("?ca={}&server_name=redis.example", other_ca.ca());
    let error = connect_error(&secure.url("127.0.0.1", &untrusted)).await;
    assert!(error.contains("invalid peer certificate"), "{error}");
    // The system does not trust the authority either.
    if Redis::builder("rediss://h").build().is_ok() {
        let error = connect_error(&secure.url("127.0.0.1", "?server_name=redis.example")).await;
        assert!(error.contains("UnknownIssuer"), "{error}");
    }
}

#[tokio::test]
async fn a_certificate_for_an_address_needs_no_name() {
    let authority = TestCa::new();
    let secure = TlsServer::start(&authority, &authority.issue("127.0.0.1"), "no");
    assert_admits(&secure.url("127.0.0.1", &format!("?ca={}", authority.ca()))).await;
}

#[tokio::test]
async fn a_server_that_requires_a_client_certificate_gets_it() {
    let authority = TestCa::new();
    let secure = TlsServer::start(&authority, &authority.issue("localhost"), "yes");
    let url = |client: Option<&TestCertificate>| {
        let files = client.map(|c| format!("&cert={}&key={}", c.cert, c.key));
        let files = files.unwrap_or_default();
        secure.url("localhost", &format!("?ca={}{files}", authority.ca()))
    };
    assert_admits(&url(Some(&authority.issue("client")))).await;
    let error = connect_error(&url(None)).await;
    assert!(error.contains("cannot connect to redis"), "{error}");
    let error = connect_error(&url(Some(&TestCa::new().issue("client")))).await;
    assert!(error.contains("cannot connect to redis"), "{error}");
}

#[tokio::test]
async fn tls_and_plain_ports_refuse_each_others_clients() {
    let authority = TestCa::new();
    let secure = TlsServer::start(&authority, &authority.issue("localhost"), "no");
    let plain = secure.server.port();
    // Redis waits for the rest of what it reads as a command.
    let moment = Duration::from_millis(500);
    let url = format!("rediss://localhost:{plain}?ca={}", authority.ca());
    let error = connect_error_within(moment, &url).await;
    assert!(error.contains("cannot connect to redis"), "{error}");
    let error =
        connect_error_within(moment, &format!("redis://localhost:{}", secure.port.number)).await;
    assert!(error.contains("cannot connect to redis"), "{error}");
}

/// Certificates are renewed while the process runs, and the files are replaced one by one.
#[tokio::test]
async fn files_are_read_again_for_the_next_connection_and_invalid_ones_are_ignored() {
    let authority = TestCa::new();
    let mut secure = TlsServer::start(&authority, &authority.issue("localhost"), "no");
    let trusted = authority.write("trusted.pem", &authority.root());
    let url = secure.url("localhost", &format!("?ca={trusted}"));
    let limiter = Limiter::new(engine(&url), "1000/h".parse::<Limit>().unwrap());
    limiter.check("subject").await.unwrap();

    let reconnect = async |server: &mut RedisServer| {
        server.kill();
        wait_until(|| !limiter.engine().health().up).await;
        server.restart();
        limiter.check("subject").await
    };
    authority.write("trusted.pem", "half a certificate");
    reconnect(&mut secure.server).await.unwrap();

    // From now on the server has a certificate of another authority.
    let next = TestCa::new();
    let TestCertificate { cert, key } = next.issue("localhost");
    authority.write("ca.pem", &next.root());
    authority.write("localhost.crt", &std::fs::read_to_string(cert).unwrap());
    authority.write("localhost.key", &std::fs::read_to_string(key).unwrap());
    authority.write("trusted.pem", &next.root());
    reconnect(&mut secure.server).await.unwrap();
}

#[test]
fn files_that_cannot_be_used_are_named_when_the_engine_is_built() {
    let authority = TestCa::new();
    let (one, other) = (authority.issue("one"), authority.issue("other"));
    let [ca, missing] = [authority.ca(), "/nowhere/ca.pem".into()];
    let [empty, damaged] = [
        authority.write("empty", ""),
        authority
            .write("damaged", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
    ];
    let dir = authority.dir().to_str().unwrap();
    for (query, expected) in [
        (format!("ca={missing}"), InvalidTls::Unreadable(missing.into(), ErrorKind::NotFound)),
        (format!("ca={dir}"), InvalidTls::Unreadable(dir.into(), ErrorKind::IsADirectory)),
        (format!("ca={empty}"), InvalidTls::Certificates(empty.clone().into())),
        (format!("ca={damaged}"), InvalidTls::Certificates(damaged.clone().into())),
        (format!("ca={}", one.key), InvalidTls::Certificates(one.key.clone().into())),
        (
            format!("ca={ca}&cert={empty}&key={}", one.key),
            InvalidTls::Certificates(empty.clone().into()),
        ),
        (
            format!("ca={ca}&cert={}&key={}", one.cert, one.cert),
            InvalidTls::Key(one.cert.clone().into()),
        ),
        (
            format!("ca={ca}&cert={}&key={}", one.cert, other.key),
            InvalidTls::OtherKey(other.key.clone().into()),
        ),
        (format!("ca={ca}&server_name=-"), InvalidTls::ServerName),
    ] {
        for scheme in ["rediss://u:hunter2@h", "rediss-cluster://:hunter2@h"] {
            let error = Redis::builder(&format!("{scheme}?{query}")).build().unwrap_err();
            assert_eq!(error, InvalidSettings::Tls(expected.clone()), "{query}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }
    let good = format!("rediss://h?ca={ca}&cert={}&key={}", one.cert, one.key);
    assert!(Redis::builder(&good).build().is_ok());
}
