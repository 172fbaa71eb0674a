//! `tidegate ratelimit`: the server with the environment of envoyproxy/ratelimit.

use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::json;
use testkit::certificates::TestCa;
use testkit::control_plane::{ControlPlane, domain};
use testkit::listening_process::ListeningProcess;
use testkit::real_envoy::{EnvoyFailureMode, EnvoyProcess, envoy_path};
use testkit::redis::RedisServer;
use testkit::server::{TempFolder, tidegate_path, wait_until};
use tidegate_server::internal::transport::envoy::proto::ratelimit::config::ratelimit::v3::RateLimitUnit;

/// A program with the name that Envoy Gateway starts.
fn ratelimit(folder: &TempFolder) -> Command {
    let program = folder.path("ratelimit");
    let _ = symlink(tidegate_path(), &program);
    Command::new(program)
}

fn one_hit(key: &str) -> String {
    let entries = json!([{ "key": key, "value": "ann" }]);
    json!({ "domain": "edge", "descriptors": [{ "entries": entries }] }).to_string()
}

/// The environment of Envoy Gateway's Deployment, with other ports and files.
fn envoy_gateway(ca: &TestCa, control_plane: &ControlPlane, redis: &str) -> Vec<(String, String)> {
    let own = ca.issue("127.0.0.1");
    let xds = format!("localhost:{}", control_plane.address.port());
    let ca = ca.ca();
    [
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &xds),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &own.cert),
        ("GRPC_SERVER_TLS_KEY", &own.key),
        ("GRPC_SERVER_TLS_CA_CERT", &ca),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &own.cert),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &own.key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &ca),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", redis.trim_start_matches("redis://").trim_end_matches('/')),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", ":0"),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
        // Not of the Deployment: free ports, and a log that can be read.
        ("PORT", "0"),
        ("GRPC_PORT", "0"),
        ("LOG_FORMAT", "json"),
        ("REDIS_TIMEOUT", "5s"),
    ]
    .map(|(name, value)| (name.to_string(), value.to_string()))
    .to_vec()
}

#[test]
fn with_the_environment_of_envoy_gateway_it_decides_and_has_health_and_metrics() {
    let (ca, redis, folder) = (TestCa::new(), RedisServer::start(), TempFolder::new());
    let control_plane = ControlPlane::start_with_tls(SocketAddr::from(([127, 0, 0, 1], 0)), &ca);
    let variables = envoy_gateway(&ca, &control_plane, &redis.url());
    let server = ListeningProcess::start(ratelimit(&folder).envs(variables));

    // Before the first configuration it is alive, and decides nothing.
    let health = server.request("http", "GET", "/healthcheck", "");
    assert_eq!((health.status, &*health.body), (200, "OK"));
    assert_eq!(server.request("http", "POST", "/json", &one_hit("user")).status, 503);
    let health = server.request("http", "GET", "/healthz", "").json();
    assert!(health["reasons"].to_string().contains("no valid configuration yet"), "{health}");
    control_plane.set("1", &[domain("edge", &[("user", RateLimitUnit::Year, 2)])]);
    let node = control_plane.expect_accepted("1").node.unwrap();
    assert_eq!(node.id, "envoy-ratelimit");

    if let Some(envoy) = envoy_path() {
        let (client, grpc) = (ca.issue("client"), server.address("grpc").unwrap());
        let deny = EnvoyFailureMode::Deny;
        let envoy = EnvoyProcess::start_with(&envoy, &[grpc], deny, Some((&ca, &client)));
        assert_eq!(envoy.statuses("/user", "ann", 3), [200, 200, 429], "{}", server.log());
    } else {
        let statuses =
            [(); 3].map(|()| server.request("http", "POST", "/json", &one_hit("user")).status);
        assert_eq!(statuses, [200, 200, 429]);
    }
    assert_eq!(server.request("http", "GET", "/v1/rules", "").status, 404, "no API");
    assert_eq!(server.address("resp"), None);
    let metrics = server.request("metrics", "GET", "/metrics", "");
    let over = r#"ratelimit_service_rate_limit_over_limit{domain="edge",key1="user"} 1"#;
    let total = r#"ratelimit_service_rate_limit_total_hits{domain="edge",key1="user"} 3"#;
    for line in [over, total] {
        assert!(metrics.body.lines().any(|one| one == line), "{}", metrics.body);
    }
    let log = server.log();
    for name in ["GRPC_SERVER_TLS_CA_CERT", "PROMETHEUS_MAPPER_YAML", "RUNTIME_WATCH_ROOT"] {
        assert!(log.contains(&format!("{name} has no effect")), "{name}: {log}");
    }
    assert!(!log.contains("USE_STATSD"), "{log}");
}

#[test]
fn files_are_found_by_the_runtime_variables_and_reloaded() {
    let folder = TempFolder::new();
    std::fs::create_dir_all(folder.path("data/sub/config")).unwrap();
    let file = |limit: u32| {
        let limit = format!("{{ unit: year, requests_per_unit: {limit} }}");
        folder.write(
            "data/sub/config/edge.yaml",
            &format!("domain: edge\ndescriptors: [{{ key: user, rate_limit: {limit} }}]\n"),
        );
    };
    file(1);
    let mut command = Command::new(tidegate_path());
    command.arg("ratelimit").env("RUNTIME_ROOT", folder.path("data"));
    command.envs([("RUNTIME_SUBDIRECTORY", "sub"), ("BACKEND_TYPE", "memory"), ("PORT", "0")]);
    command.envs([("GRPC_PORT", "0"), ("LOG_LEVEL", "INFO"), ("LOG_FORMAT", "json")]);
    let server = ListeningProcess::start(&mut command);
    let status = || server.request("http", "POST", "/json", &one_hit("user")).status;
    assert_eq!([status(), status()], [200, 429]);
    file(2);
    let is_reloaded = || (status() == 200).then_some(());
    assert!(wait_until(is_reloaded).is_some(), "{}", server.log());
}

#[test]
fn a_variable_that_cannot_be_honoured_stops_the_start() {
    for (name, value) in [("GRPC_UDS", "/tmp/x.sock"), ("BACKEND_TYPE", "memcache"), ("PORT", "x")]
    {
        let output =
            Command::new(tidegate_path()).arg("ratelimit").env(name, value).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{name}: {error}");
        assert!(error.starts_with(&format!("error: {name}")), "{error}");
    }
}
