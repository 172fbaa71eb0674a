//! What a server prints for people when it starts.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use tidegate_server::{ListenerKind, Server};

use crate::output::print_error;

/// A few lines on standard error.
pub(super) fn print(server: &Server, config: Option<&Path>) {
    print_error(text(server, config));
}

fn text(server: &Server, config: Option<&Path>) -> String {
    let mut text = format!("tidegate {}\n", env!("CARGO_PKG_VERSION"));
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<10}{value}");
    };
    line("policy", policy(server, config));
    line("listeners", listeners(server));
    if let Some(http) = server.http_address() {
        line("console", format!("{}/", url(server, http)));
    }
    line("store", store(server));
    line("tokens", tokens(server));
    text.trim_end().to_owned()
}

fn policy(server: &Server, config: Option<&Path>) -> String {
    let rules = server.service().active().policy.rules().len();
    let rules = if rules == 1 { "1 rule".into() } else { format!("{rules} rules") };
    let domains = server.envoy_domains().map(|domains| format!(", Envoy domains: {domains}"));
    let file = match (config, &domains) {
        (Some(file), _) => file.display().to_string(),
        (None, Some(_)) => "no --config".into(),
        (None, None) => "built-in sample; tidegate init writes one of your own".into(),
    };
    format!("{file} ({rules}{})", domains.unwrap_or_default())
}

/// Each listener by protocol, with its address.
fn listeners(server: &Server) -> String {
    let shown = |name: &str, kind: Option<ListenerKind>, address: Option<SocketAddr>| {
        let tls = kind.is_some_and(|kind| server.has_tls(kind));
        Some(format!("{name} {}{}", address?, if tls { " (TLS)" } else { "" }))
    };
    let all = [
        shown("HTTP", Some(ListenerKind::Http), server.http_address()),
        shown("RESP", Some(ListenerKind::Resp), server.resp_address()),
        shown("gRPC", Some(ListenerKind::Grpc), server.grpc_address()),
        shown("health", None, server.health_address()),
        shown("metrics", None, server.metrics_address()),
    ];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The store, and whether it answers.
fn store(server: &Server) -> String {
    let health = server.service().health();
    let store = server.store().to_string();
    if store == "memory" {
        return "memory of this process; usage is lost when it stops".into();
    }
    match health.error {
        _ if health.up => format!("{store}, responding"),
        Some(error) => format!("{store}, NOT RESPONDING: {error}; on_store_failure applies"),
        None => format!("{store}, NOT RESPONDING yet; on_store_failure applies"),
    }
}

fn tokens(server: &Server) -> String {
    let checks = match server.needs_token() {
        true => "checks need TIDEGATE_TOKEN",
        false => "checks need none (TIDEGATE_TOKEN is not set)",
    };
    let changes = match server.has_admin_token() {
        true => "changes need TIDEGATE_ADMIN_TOKEN",
        false => "changes are off (TIDEGATE_ADMIN_TOKEN is not set)",
    };
    format!("{checks}; {changes}")
}

fn url(server: &Server, http: SocketAddr) -> String {
    let scheme = if server.has_tls(ListenerKind::Http) { "https" } else { "http" };
    format!("{scheme}://{}", reachable(http))
}

/// An unspecified address (0.0.0.0) can be listened on, but not connected to.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    address
}

/// Commands to try with the sample policy; none if a listener that they use is off.
pub(super) fn examples(server: &Server) -> Option<String> {
    let (http, port) = (server.http_address()?, server.resp_address()?.port());
    let (http, store, needs_token) = (url(server, http), server.store(), server.needs_token());
    let tls = if server.has_tls(ListenerKind::Resp) { " --tls" } else { "" };
    let header = if needs_token { " -H \"X-Tidegate-Token: $TIDEGATE_TOKEN\"" } else { "" };
    let auth = if needs_token { " -a \"$TIDEGATE_TOKEN\"" } else { "" };
    Some(format!(
        "No --config given: using the sample policy with rules login, api and budget. Store: {store}.
Try:

  curl -i {http}/v1/check{header} --json '{{\"rule\":\"login\",\"key\":\"1.2.3.4\"}}'
  curl -i {http}/v1/check{header} --json '{{\"limit\":\"5/min\",\"key\":\"me\"}}'
  curl -i {http}/v1/authorize{header} -H 'X-Forwarded-Uri: /api/x' -H 'X-Api-Key: k1'
  redis-cli -p {port}{tls}{auth} TG.CHECK login 1.2.3.4
  redis-cli -p {port}{tls}{auth} CL.THROTTLE user123 15 30 60 1
  curl {http}/v1/rules{header}
  curl {http}/metrics

or open {http}/ in a browser.
"
    ))
}
