//! Addresses, TLS and bounds of the listeners, of `tidegate serve`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidegate::Span;
use tidegate_config::TlsFiles;
use tidegate_server::internal::transport::listener;
use tidegate_server::internal::transport::listener::{Timeouts, open_files};
use tidegate_server::{ListenerKind, ListenerTls, TlsSources, WaitLimits};
use tracing::warn;

/// Where the listeners listen.
#[derive(Args, Debug)]
pub(super) struct AddressArgs {
    /// HTTP listen address, or off
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = listen_address)]
    pub(super) http: ListenAddress,
    /// RESP (Redis protocol) listen address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6380", value_parser = listen_address)]
    pub(super) resp: ListenAddress,
    /// gRPC listen address, for Envoy
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081", value_parser = listen_address)]
    pub(super) grpc: ListenAddress,
    /// Listen address of /healthz and /readyz alone, on a separate thread
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address)]
    pub(super) health: Option<ListenAddress>,
    /// Listen address of /metrics alone, in plaintext
    #[arg(long, value_name = "ADDRESS", value_parser = listen_address)]
    pub(super) metrics: Option<ListenAddress>,
}

/// An address, or `None` if the listener is off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ListenAddress(pub(super) Option<SocketAddr>);

/// `off`, an IP address and port, `localhost:PORT`, or `:PORT` for every IPv4 address.
fn listen_address(text: &str) -> Result<ListenAddress, &'static str> {
    if text == "off" {
        return Ok(ListenAddress(None));
    }
    let named = match text.rsplit_once(':') {
        Some(("", port)) => Some((Ipv4Addr::UNSPECIFIED, port)),
        Some(("localhost", port)) => Some((Ipv4Addr::LOCALHOST, port)),
        _ => None,
    };
    let address = match named {
        Some((ip, port)) => port.parse().ok().map(|port: u16| SocketAddr::from((ip, port))),
        None => text.parse().ok(),
    };
    let expected = "expected an IP address and port (127.0.0.1:8080), localhost:8080, :8080 or off";
    address.map(|address| ListenAddress(Some(address))).ok_or(expected)
}

fn listener_tls(text: &str) -> Result<ListenerTls, &'static str> {
    if text == "off" {
        return Ok(ListenerTls::Off);
    }
    let files: Vec<PathBuf> = text.split(',').map(PathBuf::from).collect();
    let (cert, key, client_ca) = match <[PathBuf; 3]>::try_from(files) {
        Ok([cert, key, client_ca]) => (cert, key, Some(client_ca)),
        Err(files) => match <[PathBuf; 2]>::try_from(files) {
            Ok([cert, key]) => (cert, key, None),
            Err(_) => return Err("expected off, or two or three files: CERT,KEY[,CLIENT_CA]"),
        },
    };
    Ok(ListenerTls::Files(TlsFiles { cert, key, client_ca }))
}

fn listener_kind(text: &str) -> Result<ListenerKind, &'static str> {
    let known = ListenerKind::ALL.into_iter().find(|listener| listener.name() == text);
    known.ok_or("expected http, resp or grpc")
}

/// TLS and bounds of all listeners.
#[derive(Args, Debug)]
pub(super) struct ListenerArgs {
    /// TLS certificate for all listeners; overrides the policy file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of the TLS certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CA for client certificates; enables mutual TLS
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// HTTP listener's own TLS: off, or CERT,KEY[,CLIENT_CA]
    #[arg(long, value_name = "FILES", value_parser = listener_tls)]
    http_tls: Option<ListenerTls>,
    /// RESP listener's own TLS
    #[arg(long, value_name = "FILES", value_parser = listener_tls)]
    resp_tls: Option<ListenerTls>,
    /// gRPC listener's own TLS
    #[arg(long, value_name = "FILES", value_parser = listener_tls)]
    grpc_tls: Option<ListenerTls>,
    /// Listener without token: http, resp or grpc; repeatable
    #[arg(long, value_name = "LISTENER", value_parser = listener_kind)]
    no_token: Vec<ListenerKind>,
    /// Maximum open connections, within the file limit
    #[arg(long, value_name = "N", default_value_t = listener::ListenerOptions::MAX_CONNECTIONS, value_parser = connections)]
    max_connections: usize,
    /// Maximum requests waiting for permits (wait_ms)
    #[arg(long, value_name = "N", default_value_t = WaitLimits::TOTAL, value_parser = waiting)]
    max_waiting: usize,
    /// Maximum requests waiting on one connection
    #[arg(long, value_name = "N", default_value_t = WaitLimits::PER_CONNECTION, value_parser = waiting)]
    max_waiting_conn: usize,
    /// Maximum requests waiting for one key
    #[arg(long, value_name = "N", default_value_t = WaitLimits::PER_KEY, value_parser = waiting)]
    max_waiting_key: usize,
    /// RESP idle timeout [default: none]
    #[arg(long, value_name = "SPAN", value_parser = idle_timeout)]
    resp_idle: Option<Duration>,
}

impl ListenerArgs {
    pub(super) fn without_token(&self) -> Vec<ListenerKind> {
        self.no_token.clone()
    }

    pub(super) fn options(&self) -> listener::ListenerOptions {
        let files = self.tls_cert.clone().zip(self.tls_key.clone());
        let client_ca = self.tls_client_ca.clone();
        let allowed = open_files::max_connections();
        if allowed < self.max_connections {
            let wanted = self.max_connections;
            warn!(
                wanted,
                allowed, "connection limit lowered; raise the open file limit (ulimit -n)"
            );
        }
        listener::ListenerOptions {
            tls: TlsSources {
                all: files.map(|(cert, key)| TlsFiles { cert, key, client_ca }),
                http: self.http_tls.clone(),
                resp: self.resp_tls.clone(),
                grpc: self.grpc_tls.clone(),
            },
            max_connections: self.max_connections.min(allowed),
            waits: WaitLimits {
                per_key: self.max_waiting_key,
                per_connection: self.max_waiting_conn,
                total: self.max_waiting,
            },
            deadlines: Timeouts { resp_idle: self.resp_idle, ..Timeouts::default() },
        }
    }
}

fn connections(text: &str) -> Result<usize, &'static str> {
    let number = text.parse().ok().filter(|number| (1..=1_000_000).contains(number));
    number.ok_or("expected a number from 1 to 1000000")
}

fn waiting(text: &str) -> Result<usize, &'static str> {
    let number = text.parse().ok().filter(|number| (1..=100_000).contains(number));
    number.ok_or("expected a number from 1 to 100000")
}

fn idle_timeout(text: &str) -> Result<Duration, &'static str> {
    let span = text.parse::<Span>().ok().and_then(Span::length).map(Duration::from);
    span.filter(|span| *span >= Duration::from_secs(1))
        .ok_or("expected a duration of at least 1s, for example 5min")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_can_be_short_and_listeners_off() {
        let cases = [
            ("127.0.0.1:8080", Some("127.0.0.1:8080")),
            ("[::1]:8080", Some("[::1]:8080")),
            ("localhost:8080", Some("127.0.0.1:8080")),
            (":8080", Some("0.0.0.0:8080")),
            ("off", None),
        ];
        for (text, wanted) in cases {
            let wanted = ListenAddress(wanted.map(|address| address.parse().unwrap()));
            assert_eq!(listen_address(text), Ok(wanted), "{text}");
        }
        for text in ["", "8080", ":", ":x", "localhost", "example.org:80", "OFF", ":65536"] {
            assert!(listen_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tls_of_a_listener_is_off_or_two_or_three_files() {
        assert_eq!(listener_tls("off"), Ok(ListenerTls::Off));
        let files = |client_ca: Option<&str>| TlsFiles {
            cert: "a".into(),
            key: "b".into(),
            client_ca: client_ca.map(PathBuf::from),
        };
        assert_eq!(listener_tls("a,b"), Ok(ListenerTls::Files(files(None))));
        assert_eq!(listener_tls("a,b,c"), Ok(ListenerTls::Files(files(Some("c")))));
        for text in ["", "a", "a,b,c,d"] {
            assert!(listener_tls(text).is_err(), "{text}");
        }
    }
}
