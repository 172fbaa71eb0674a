//! TLS, with real servers and certificates: who is let in, who is believed, and what is renewed.

#![cfg(feature = "tls")]
use std::io::ErrorKind;
use std::time::Duration;

use crate::{asking, certificates, server};
use asking::{PATIENCE, admitted, engine, refused, refused_within, until};
use certificates::{Authority, Certificate};
use server::{Server, free_port};
use tidegate::{Engine, Limit, Limiter};
use tidegate_redis::{InvalidSettings, InvalidTls, Redis};

/// A server that listens on a port without TLS, for the test itself, and on one with it.
struct Secure {
    server: Server,
    port: u16,
}

impl Secure {
    /// Certified as `certificate`; `clients` is whether they need one too.
    fn start(authority: &Authority, certificate: &Certificate, clients: &str) -> Self {
        let (port, ca) = (free_port(), authority.ca());
        let server = Server::start_with(&[
            "--tls-port",
            &port.to_string(),
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
        format!("rediss://{host}:{}/{query}", self.port)
    }
}

#[tokio::test]
async fn over_tls_redis_keeps_every_claim() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, &authority.certify("localhost"), "no");
    let url = secure.url("localhost", &format!("?ca={}", authority.ca()));
    tidegate::conformance::run(|clock| {
        Redis::builder(&url).deadline(PATIENCE).test_clock(clock).build().unwrap()
    })
    .await;
}

#[tokio::test]
async fn a_server_is_believed_by_its_certificate_and_its_name() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, &authority.certify("redis.example"), "no");
    let ca = format!("?ca={}", authority.ca());
    let named = format!("{ca}&server_name=redis.example");

    admitted(&secure.url("127.0.0.1", &named)).await;
    admitted(&secure.url("localhost", &named)).await;
    let told = refused(&secure.url("127.0.0.1", &ca)).await;
    assert!(told.contains("not valid for name"), "{told}");
    let told = refused(&secure.url("localhost", &format!("{ca}&server_name=other.example"))).await;
    assert!(told.contains("not valid for name"), "{told}");

    let stranger = Authority::new();
    let strange = format!("?ca={}&server_name=redis.example", stranger.ca());
    let told = refused(&secure.url("127.0.0.1", &strange)).await;
    assert!(told.contains("invalid peer certificate"), "{told}");
    // Nor does the system know the authority.
    if Redis::builder("rediss://h").build().is_ok() {
        let told = refused(&secure.url("127.0.0.1", "?server_name=redis.example")).await;
        assert!(told.contains("UnknownIssuer"), "{told}");
    }
}

#[tokio::test]
async fn a_certificate_for_an_address_needs_no_name() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, &authority.certify("127.0.0.1"), "no");
    admitted(&secure.url("127.0.0.1", &format!("?ca={}", authority.ca()))).await;
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_it() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, &authority.certify("localhost"), "yes");
    let url = |client: Option<&Certificate>| {
        let shown = client.map(|c| format!("&cert={}&key={}", c.cert, c.key));
        let shown = shown.unwrap_or_default();
        secure.url("localhost", &format!("?ca={}{shown}", authority.ca()))
    };
    admitted(&url(Some(&authority.certify("client")))).await;
    let told = refused(&url(None)).await;
    assert!(told.contains("cannot reach redis"), "{told}");
    let told = refused(&url(Some(&Authority::new().certify("client")))).await;
    assert!(told.contains("cannot reach redis"), "{told}");
}

#[tokio::test]
async fn who_speaks_tls_does_not_speak_to_one_who_does_not() {
    let authority = Authority::new();
    let secure = Secure::start(&authority, &authority.certify("localhost"), "no");
    let plain = secure.server.port();
    // Redis waits for the rest of what it takes for a command.
    let moment = Duration::from_millis(500);
    let url = format!("rediss://localhost:{plain}?ca={}", authority.ca());
    let told = refused_within(moment, &url).await;
    assert!(told.contains("cannot reach redis"), "{told}");
    let told = refused_within(moment, &format!("redis://localhost:{}", secure.port)).await;
    assert!(told.contains("cannot reach redis"), "{told}");
}

/// Certificates are renewed while the process runs, and files are replaced one after the other.
#[tokio::test]
async fn files_are_read_again_for_the_next_connection_and_bad_ones_change_nothing() {
    let authority = Authority::new();
    let mut secure = Secure::start(&authority, &authority.certify("localhost"), "no");
    let trusted = authority.write("trusted.pem", &authority.root());
    let url = secure.url("localhost", &format!("?ca={trusted}"));
    let limiter = Limiter::new(engine(&url), "1000/h".parse::<Limit>().unwrap());
    limiter.check("someone").await.unwrap();

    let reconnect = async |server: &mut Server| {
        server.kill();
        until(|| !limiter.engine().health().up).await;
        server.restart();
        limiter.check("someone").await
    };
    authority.write("trusted.pem", "half a certificate");
    reconnect(&mut secure.server).await.unwrap();

    // The server shows a certificate of another authority from now on.
    let next = Authority::new();
    let Certificate { cert, key } = next.certify("localhost");
    authority.write("ca.pem", &next.root());
    authority.write("localhost.crt", &std::fs::read_to_string(cert).unwrap());
    authority.write("localhost.key", &std::fs::read_to_string(key).unwrap());
    authority.write("trusted.pem", &next.root());
    reconnect(&mut secure.server).await.unwrap();
}

#[test]
fn files_that_cannot_be_used_are_named_when_the_engine_is_built() {
    let authority = Authority::new();
    let (one, other) = (authority.certify("one"), authority.certify("other"));
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
