//! Real Envoys that limit by themselves, with quotas of a rate limit quota service, and an upstream
//! that records when each request was admitted.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::server::{RawHttpConnection, TempFolder, pause, wait_until};

/// An upstream that replies 200, and records when Envoy received each request.
pub struct QuotaUpstream {
    address: SocketAddr,
    admitted: Arc<Mutex<Vec<u64>>>,
}

impl QuotaUpstream {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let admitted = Arc::<Mutex<Vec<u64>>>::default();
        let record = admitted.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let record = record.clone();
                std::thread::spawn(move || reply(stream, &record));
            }
        });
        Self { address, admitted }
    }

    /// Instants of all admitted requests, in microseconds since the epoch, in order.
    pub fn admitted(&self) -> Vec<u64> {
        let mut all = self.admitted.lock().unwrap().clone();
        all.sort_unstable();
        all
    }
}

fn reply(stream: TcpStream, record: &Mutex<Vec<u64>>) {
    let Ok(mut out) = stream.try_clone() else { return };
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if let Some(start) = line.strip_prefix("x-start: ") {
            let micros = start.replace('.', "").parse().expect("seconds with six decimals");
            record.lock().unwrap().push(micros);
        }
        if line.is_empty()
            && out.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_err()
        {
            return;
        }
    }
}

/// An Envoy that can be killed, frozen and started again. It is killed on drop.
pub struct QuotaEnvoy {
    program: PathBuf,
    folder: TempFolder,
    address: SocketAddr,
    child: Child,
}

impl QuotaEnvoy {
    /// Starts an Envoy with the bucket `name: all` in the domain `edge`, which denies without an
    /// assignment.
    pub fn start(program: &Path, quotas: SocketAddr, upstream: &QuotaUpstream) -> Self {
        // Another process may take the port before Envoy does.
        for _ in 0..10 {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let folder = TempFolder::new();
            folder.write("envoy.yaml", &bootstrap(address, upstream.address, quotas));
            let child = spawn(program, &folder);
            let mut envoy = Self { program: program.into(), folder, address, child };
            if envoy.is_up() {
                return envoy;
            }
        }
        panic!("Envoy does not start");
    }

    fn is_up(&mut self) -> bool {
        let up = wait_until(|| {
            let ended = self.child.try_wait().unwrap().is_some();
            let open = TcpStream::connect(self.address).is_ok();
            (ended || open).then_some(open && !ended)
        });
        up == Some(true)
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again after [`kill`](Self::kill).
    pub fn start_again(&mut self) {
        self.child = spawn(&self.program, &self.folder);
        let log = self.folder.path("log");
        assert!(self.is_up(), "{}", fs::read_to_string(log).unwrap_or_default());
    }

    pub fn freeze(&self) {
        self.signal("STOP");
    }

    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(status.expect("kill runs").success());
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for QuotaEnvoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends requests to `address` one after the other, with `gap` between them, until `stop`.
/// Connections that end are opened again.
pub fn send_until(stop: &AtomicBool, address: SocketAddr, gap: Duration) {
    while !stop.load(Ordering::Relaxed) {
        if TcpStream::connect(address).is_err() {
            pause(gap);
            continue;
        }
        let mut client = RawHttpConnection::connect(address);
        while !stop.load(Ordering::Relaxed) {
            let sent = client.try_write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").is_ok();
            if !sent || client.try_receive().is_none() {
                break;
            }
            pause(gap);
        }
    }
}

fn spawn(program: &Path, folder: &TempFolder) -> Child {
    let log = fs::File::create(folder.path("log")).unwrap();
    Command::new(program)
        .arg("--config-path")
        .arg(folder.path("envoy.yaml"))
        .args(["--use-dynamic-base-id", "--concurrency", "2", "--log-level", "error"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("Envoy starts")
}

fn bootstrap(address: SocketAddr, upstream: SocketAddr, quotas: SocketAddr) -> String {
    let socket = |address: SocketAddr| {
        let (ip, port) = (address.ip(), address.port());
        format!("{{ socket_address: {{ address: {ip}, port_value: {port} }} }}")
    };
    let endpoint = |address| {
        let socket = socket(address);
        format!("[{{ lb_endpoints: [{{ endpoint: {{ address: {socket} }} }}] }}]")
    };
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
                route_config:
                  request_headers_to_add:
                    - header: {{ key: x-start, value: "%START_TIME(%s.%6f)%" }}
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes: [{{ match: {{ prefix: / }}, route: {{ cluster: upstream }} }}]
                http_filters:
                  - name: envoy.filters.http.rate_limit_quota
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig
                      rlqs_server: {{ envoy_grpc: {{ cluster_name: tidegate }} }}
                      domain: edge
                      bucket_matchers:
                        on_no_match:
                          action:
                            name: bucket
                            typed_config:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings
                              bucket_id_builder: {{ bucket_id_builder: {{ name: {{ string_value: all }} }} }}
                              reporting_interval: 5s
                              no_assignment_behavior: {{ fallback_rate_limit: {{ blanket_rule: DENY_ALL }} }}
                              expired_assignment_behavior:
                                fallback_rate_limit: {{ blanket_rule: DENY_ALL }}
                                expired_assignment_behavior_timeout: 300s
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: upstream
      load_assignment: {{ cluster_name: upstream, endpoints: {upstream} }}
    - name: tidegate
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{ http2_protocol_options: {{}} }}
      load_assignment: {{ cluster_name: tidegate, endpoints: {quotas} }}
"#,
        listen = socket(address),
        upstream = endpoint(upstream),
        quotas = endpoint(quotas),
    )
}
