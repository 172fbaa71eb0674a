//! What the environment variables of envoyproxy/ratelimit mean for the server.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tidegate::policy::Enforcement;
use tidegate_config::TlsFiles;
use tidegate_config::envoy::{DuplicateDomain, EnvoyWindows};
use tidegate_server::internal::observe::logging::LogFormat;
use tidegate_server::internal::observe::otlp::OtlpOptions;
use tidegate_server::internal::observe::otlp::collector::Collector;
use tidegate_server::internal::policy::{EnvoyOrigin, EnvoySource, PolicySource};
use tidegate_server::internal::transport::envoy::settings::{EnvoySettings, ResponseHeaders};
use tidegate_server::{
    AuthTokens, EnvoyOptions, Exposure, HttpRoutes, ListenerOptions, ListenerTls, ReadyWhen,
    ServerOptions, Store, TlsSources, XdsAddress, XdsBackoff, XdsHeader, XdsOptions, XdsStart,
    XdsTls,
};

use super::go_values;
use super::redis_url::RedisVariables;
use super::variables::{self, VARIABLES};

/// The server that the variables describe.
#[derive(Debug)]
pub(super) struct RatelimitSettings {
    pub(super) server: ServerOptions,
    pub(super) log_format: LogFormat,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub(super) log_level: &'static str,
    /// What is likely not meant.
    pub(super) warnings: Vec<String>,
}

impl RatelimitSettings {
    /// Reads the variables; an error names the one that is wrong.
    pub(super) fn read(given: &BTreeMap<String, String>) -> Result<Self, String> {
        variables::refused(given)?;
        let values = Values(given);
        let mut warnings = Vec::new();
        let server = ServerOptions {
            source: PolicySource::Inline(values.policy()?),
            store: Some(values.store()?),
            memory: None,
            http: Some(values.address("HOST", "PORT")?),
            http_routes: HttpRoutes::Ratelimit,
            resp: None,
            grpc: Some(values.address("GRPC_HOST", "GRPC_PORT")?),
            health: None,
            metrics: values.metrics()?,
            envoy: values.envoy()?,
            listeners: ListenerOptions { tls: values.tls()?, ..ListenerOptions::default() },
            tokens: AuthTokens::default(),
            without_token: Vec::new(),
            exposure: Exposure::Insecure,
            traces: values.traces(&mut warnings)?,
            console_hosts: Vec::new(),
            runtime_file: None,
            ready_when: match values.boolean("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION")? {
                true => ReadyWhen::Store,
                false => ReadyWhen::Always,
            },
        };
        let log_format = match values.text("LOG_FORMAT").to_ascii_lowercase().as_str() {
            "json" => LogFormat::Json,
            "text" => LogFormat::Text,
            _ => return Err("LOG_FORMAT: expected text or json".into()),
        };
        Ok(Self { server, log_format, log_level: values.log_level()?, warnings })
    }
}

/// The variables with their defaults. A variable that is empty is not set.
struct Values<'v>(&'v BTreeMap<String, String>);

impl<'v> Values<'v> {
    fn given(&self, name: &str) -> Option<&'v str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The value, or its default.
    fn text(&self, name: &str) -> &'v str {
        let known = VARIABLES.iter().find(|(known, ..)| *known == name);
        self.given(name).unwrap_or(known.map_or("", |(_, default, ..)| default))
    }

    fn parsed<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, &'static str>,
    ) -> Result<T, String> {
        parse(self.text(name)).map_err(|error| format!("{name}: {error}"))
    }

    fn boolean(&self, name: &str) -> Result<bool, String> {
        self.parsed(name, go_values::boolean)
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        self.given(name).map(PathBuf::from)
    }

    /// Certificate and key, or neither.
    fn both(&self, cert: &str, key: &str) -> Result<Option<(PathBuf, PathBuf)>, String> {
        match (self.file(cert), self.file(key)) {
            (Some(_), None) => Err(format!("{cert} needs {key}")),
            (None, Some(_)) => Err(format!("{key} needs {cert}")),
            (cert, key) => Ok(cert.zip(key)),
        }
    }

    fn address(&self, host: &str, port: &str) -> Result<SocketAddr, String> {
        let ip = self.parsed(host, host_address)?;
        let port = self.parsed(port, |text| text.parse::<u16>().map_err(|_| "expected a port"))?;
        Ok(SocketAddr::from((ip, port)))
    }

    fn metrics(&self) -> Result<Option<SocketAddr>, String> {
        if !self.boolean("USE_PROMETHEUS")? {
            return Ok(None);
        }
        let address = self.parsed("PROMETHEUS_ADDR", |text| {
            let (host, port) = text.rsplit_once(':').ok_or("expected host:port or :port")?;
            let ip = host_address(host.trim_matches(['[', ']']))?;
            let port: u16 = port.parse().map_err(|_| "expected host:port or :port")?;
            Ok(SocketAddr::from((ip, port)))
        });
        address.map(Some)
    }

    fn tls(&self) -> Result<TlsSources, String> {
        // The health check of Envoy Gateway is plaintext.
        let plain = || Some(ListenerTls::Off);
        let mut sources = TlsSources { http: plain(), resp: plain(), grpc: plain(), all: None };
        if self.boolean("GRPC_SERVER_USE_TLS")? {
            let needed =
                |name: &str| self.file(name).ok_or(format!("GRPC_SERVER_USE_TLS needs {name}"));
            let (cert, key) = (needed("GRPC_SERVER_TLS_CERT")?, needed("GRPC_SERVER_TLS_KEY")?);
            let client_ca = self.file("GRPC_CLIENT_TLS_CACERT");
            sources.grpc = Some(ListenerTls::Files(TlsFiles { cert, key, client_ca }));
        }
        Ok(sources)
    }

    fn store(&self) -> Result<Store, String> {
        match self.text("BACKEND_TYPE").to_ascii_lowercase().as_str() {
            "memory" => return Ok(Store::MEMORY),
            "redis" => {}
            _ => return Err("BACKEND_TYPE: expected redis or memory".into()),
        }
        let redis = RedisVariables {
            socket: self.text("REDIS_SOCKET_TYPE"),
            kind: self.text("REDIS_TYPE"),
            url: self.text("REDIS_URL"),
            auth: self.text("REDIS_AUTH"),
            sentinel_auth: self.text("REDIS_SENTINEL_AUTH"),
            tls: self.boolean("REDIS_TLS")?,
            ca: self.text("REDIS_TLS_CACERT"),
            cert: self.text("REDIS_TLS_CLIENT_CERT"),
            key: self.text("REDIS_TLS_CLIENT_KEY"),
        };
        redis.store_url()?.parse().map_err(|error| format!("REDIS_URL: {error}"))
    }

    /// A policy without rules: all limits are those of Envoy's domains.
    fn policy(&self) -> Result<String, String> {
        let mut policy = "rules: []\n".to_string();
        if let Some(prefix) = self.given("CACHE_KEY_PREFIX") {
            policy += &format!("namespace: {}\n", serde_json::Value::from(prefix));
        }
        if self.given("REDIS_TIMEOUT").is_some() {
            let timeout = self.parsed("REDIS_TIMEOUT", go_values::duration)?;
            let (min, max) = (Duration::from_millis(1), Duration::from_secs(60));
            // As in Go, 0 is no timeout.
            let timeout = if timeout.is_zero() { max } else { timeout.clamp(min, max) };
            policy += &format!("store_deadline: {}ms\n", timeout.as_millis());
        }
        Ok(policy)
    }

    fn envoy(&self) -> Result<EnvoyOptions, String> {
        let xds = match self.text("CONFIG_TYPE").to_ascii_uppercase().as_str() {
            "FILE" => None,
            "GRPC_XDS_SOTW" => Some(self.xds()?),
            _ => return Err("CONFIG_TYPE: expected FILE or GRPC_XDS_SOTW".into()),
        };
        let origin = match xds {
            Some(_) => EnvoyOrigin::ControlPlane,
            None => {
                let root = PathBuf::from(self.text("RUNTIME_ROOT"));
                let folder = root.join(self.text("RUNTIME_SUBDIRECTORY"));
                EnvoyOrigin::Folder(folder.join(self.text("RUNTIME_APPDIRECTORY")))
            }
        };
        let same_domain = match self.boolean("MERGE_DOMAIN_CONFIG")? {
            true => DuplicateDomain::Merge,
            false => DuplicateDomain::Refuse,
        };
        let windows = EnvoyWindows::Fixed;
        Ok(EnvoyOptions {
            source: Some(EnvoySource { origin, same_domain, windows }),
            xds,
            settings: EnvoySettings {
                headers: match self.boolean("LIMIT_RESPONSE_HEADERS_ENABLED")? {
                    true => ResponseHeaders::Envoy,
                    false => ResponseHeaders::Off,
                },
                enforcement: match self.boolean("SHADOW_MODE")? {
                    true => Enforcement::Shadow,
                    false => Enforcement::Enforce,
                },
            },
            stats: self.boolean("USE_PROMETHEUS")? && !self.boolean("DISABLE_STATS")?,
        })
    }

    fn xds(&self) -> Result<XdsOptions, String> {
        let address = self.text("CONFIG_GRPC_XDS_SERVER_URL");
        let address: XdsAddress =
            address.parse().map_err(|error| format!("CONFIG_GRPC_XDS_SERVER_URL: {error}"))?;
        let has_tls = self.boolean("CONFIG_GRPC_XDS_SERVER_USE_TLS")? || address.is_https();
        let tls = XdsTls {
            ca: self.file("CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
            identity: self
                .both("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY")?,
            server_name: self.given("CONFIG_GRPC_XDS_SERVER_TLS_SAN").map(String::from),
        };
        let mut backoff = XdsBackoff::default();
        if self.given("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL").is_some() {
            backoff.first =
                self.parsed("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", go_values::duration)?;
        }
        if self.given("XDS_CLIENT_BACKOFF_MAX_INTERVAL").is_some() {
            backoff.max = self.parsed("XDS_CLIENT_BACKOFF_MAX_INTERVAL", go_values::duration)?;
        }
        let starts_without = self.boolean("FORCE_START_WITHOUT_INITIAL_CONFIG")?;
        let needs_limits = self.boolean("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED")?;
        Ok(XdsOptions {
            address,
            node_id: self.text("CONFIG_GRPC_XDS_NODE_ID").into(),
            metadata: self
                .parsed("CONFIG_GRPC_XDS_NODE_METADATA", |text| go_values::pairs(text, '='))?,
            headers: self.parsed("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", xds_headers)?,
            tls: has_tls.then_some(tls),
            start: match (starts_without, needs_limits) {
                (false, _) => XdsStart::Wait,
                (true, true) => XdsStart::NotReady,
                (true, false) => XdsStart::Ready,
            },
            backoff,
        })
    }

    /// Tracing is no reason not to start: an unusable collector is a warning.
    fn traces(&self, warnings: &mut Vec<String>) -> Result<Option<OtlpOptions>, String> {
        if !self.boolean("TRACING_ENABLED")? {
            return Ok(None);
        }
        let url = self.given(Collector::VARIABLE).unwrap_or(Collector::DEFAULT);
        let collector: Collector = match url.parse() {
            Ok(collector) => collector,
            Err(error) => {
                warnings.push(format!("no spans are sent: {}: {error}", Collector::VARIABLE));
                return Ok(None);
            }
        };
        let sampling = self.text("TRACING_SAMPLING_RATE");
        let sampling =
            sampling.parse().map_err(|error| format!("TRACING_SAMPLING_RATE: {error}"))?;
        let service_name = self.text("TRACING_SERVICE_NAME").into();
        Ok(Some(OtlpOptions { collector, sampling, service_name }))
    }

    fn log_level(&self) -> Result<&'static str, String> {
        match self.text("LOG_LEVEL").to_ascii_lowercase().as_str() {
            "panic" | "fatal" | "error" => Ok("error"),
            "warn" | "warning" => Ok("warn"),
            "info" => Ok("info"),
            "debug" => Ok("debug"),
            "trace" => Ok("trace"),
            _ => Err("LOG_LEVEL: expected error, warn, info, debug or trace".into()),
        }
    }
}

fn xds_headers(text: &str) -> Result<Vec<XdsHeader>, &'static str> {
    let pairs = go_values::pairs(text, ':')?;
    let headers = pairs.iter().map(|(name, value)| XdsHeader::new(name, value));
    let headers: Option<Vec<_>> = headers.collect();
    headers.ok_or("expected names and values that gRPC allows, for example x-token:abc")
}

fn host_address(text: &str) -> Result<IpAddr, &'static str> {
    match text {
        "" => Ok(Ipv4Addr::UNSPECIFIED.into()),
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        _ => text.parse().map_err(|_| "expected an IP address or localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::variables::VariableEffect;
    use super::*;

    /// The table of the documentation.
    const PAGE: &str = include_str!("../../../../../docs/use/ratelimit.md");

    fn environment(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    fn read(pairs: &[(&str, &str)]) -> Result<String, String> {
        RatelimitSettings::read(&environment(pairs)).map(|settings| format!("{settings:?}"))
    }

    #[test]
    fn the_page_has_a_row_for_every_variable_with_its_default_and_effect() {
        let rows: Vec<&str> = PAGE.lines().filter(|line| line.starts_with("| `")).collect();
        for (name, default, effect, instead) in VARIABLES {
            let effect = match effect {
                VariableEffect::Used => "",
                VariableEffect::Ignored => "no effect: ",
                VariableEffect::Refused => "refused: ",
            };
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            let row = format!("| `{name}` | {default} | {effect}{instead} |");
            assert!(rows.contains(&&*row), "docs/use/ratelimit.md lacks this row:\n{row}");
        }
    }

    type VariablePairs = &'static [(&'static str, &'static str)];

    /// A variable, a value that is not its default, and others with which it has an effect.
    const CASES: &[(&str, &str, VariablePairs)] = &[
        ("HOST", "127.0.0.1", &[]),
        ("PORT", "18080", &[]),
        ("GRPC_HOST", "localhost", &[]),
        ("GRPC_PORT", "18081", &[]),
        ("GRPC_SERVER_USE_TLS", "true", GRPC_FILES),
        ("GRPC_SERVER_TLS_CERT", "/other.crt", GRPC_TLS),
        ("GRPC_SERVER_TLS_KEY", "/other.key", GRPC_TLS),
        ("GRPC_CLIENT_TLS_CACERT", "/ca.crt", GRPC_TLS),
        ("LOG_LEVEL", "debug", &[]),
        ("LOG_FORMAT", "json", &[]),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW", &[]),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true", XDS),
        (
            "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
            "true",
            &[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")],
        ),
        ("CONFIG_GRPC_XDS_SERVER_URL", "envoy-gateway:18001", XDS),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit", XDS),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "a=1,b=2", XDS),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-a:1", XDS),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true", XDS),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/other.crt", XDS_TLS),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/other.key", XDS_TLS),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/ca.crt", XDS_TLS),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway", XDS_TLS),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "1s", XDS),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "5s", XDS),
        ("RUNTIME_ROOT", "/data", &[]),
        ("RUNTIME_SUBDIRECTORY", "ratelimit", &[]),
        ("RUNTIME_APPDIRECTORY", "limits", &[]),
        ("MERGE_DOMAIN_CONFIG", "true", &[]),
        ("BACKEND_TYPE", "memory", &[]),
        ("REDIS_TYPE", "CLUSTER", REDIS),
        ("REDIS_SOCKET_TYPE", "tcp", &[("REDIS_URL", "redis:6379")]),
        ("REDIS_URL", "other:6379", REDIS),
        ("REDIS_AUTH", "user:password", REDIS),
        (
            "REDIS_SENTINEL_AUTH",
            "user:password",
            &[
                ("REDIS_SOCKET_TYPE", "tcp"),
                ("REDIS_TYPE", "SENTINEL"),
                ("REDIS_URL", "mymaster,a:1,b:2"),
            ],
        ),
        ("REDIS_TLS", "true", REDIS),
        ("REDIS_TLS_CACERT", "/ca.crt", REDIS_TLS),
        ("REDIS_TLS_CLIENT_CERT", "/other.crt", REDIS_TLS),
        ("REDIS_TLS_CLIENT_KEY", "/other.key", REDIS_TLS),
        ("REDIS_TIMEOUT", "250ms", &[]),
        ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true", &[]),
        ("CACHE_KEY_PREFIX", "edge", &[]),
        ("SHADOW_MODE", "true", &[]),
        ("LIMIT_RESPONSE_HEADERS_ENABLED", "true", &[]),
        ("USE_PROMETHEUS", "true", &[]),
        ("PROMETHEUS_ADDR", ":19001", &[("USE_PROMETHEUS", "true")]),
        ("DISABLE_STATS", "true", &[("USE_PROMETHEUS", "true")]),
        ("TRACING_ENABLED", "true", &[]),
        ("TRACING_SERVICE_NAME", "envoy-ratelimit", &[("TRACING_ENABLED", "true")]),
        ("TRACING_SAMPLING_RATE", "0.1", &[("TRACING_ENABLED", "true")]),
    ];
    const XDS: VariablePairs = &[("CONFIG_TYPE", "GRPC_XDS_SOTW")];
    const XDS_TLS: VariablePairs = &[
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/tls.key"),
    ];
    const GRPC_FILES: VariablePairs =
        &[("GRPC_SERVER_TLS_CERT", "/tls.crt"), ("GRPC_SERVER_TLS_KEY", "/tls.key")];
    const GRPC_TLS: VariablePairs = &[
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "/tls.key"),
    ];
    const REDIS: VariablePairs = &[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "redis:6379")];
    const REDIS_TLS: VariablePairs = &[
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", "redis:6379"),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CLIENT_CERT", "/tls.crt"),
        ("REDIS_TLS_CLIENT_KEY", "/tls.key"),
    ];

    #[test]
    fn every_variable_that_is_used_changes_the_server() {
        for (name, value, base) in CASES {
            let before = read(base);
            let with: Vec<_> = base.iter().copied().filter(|(other, _)| other != name).collect();
            let after = read(&[&with[..], &[(name, value)]].concat()).unwrap();
            assert_ne!(before, Ok(after), "{name} changes nothing");
        }
        for (name, _, effect, _) in VARIABLES {
            let is_covered = CASES.iter().any(|(covered, ..)| covered == name);
            assert_eq!(is_covered, *effect == VariableEffect::Used, "{name}");
        }
    }

    #[test]
    fn variables_without_effect_are_named_and_change_nothing() {
        let plain = read(&[]).unwrap();
        for (name, default, effect, _) in VARIABLES {
            if *effect != VariableEffect::Ignored {
                continue;
            }
            let other = if *default == "7" { "8" } else { "7" };
            let given = environment(&[(name, other)]);
            assert_eq!(read(&[(name, other)]).unwrap(), plain, "{name}");
            let messages = variables::without_effect(&given);
            assert!(messages.len() == 1 && messages[0].starts_with(name), "{messages:?}");
            let usual = if *name == "USE_STATSD" { "false" } else { default };
            let same = environment(&[(name, usual)]);
            assert!(variables::without_effect(&same).is_empty(), "{name}: the default is no news");
        }
    }

    #[test]
    fn variables_that_would_change_decisions_are_refused_by_name() {
        for (name, default, effect, _) in VARIABLES {
            if *effect == VariableEffect::Refused {
                let error = read(&[(name, "true")]).unwrap_err();
                assert!(error.starts_with(name), "{error}");
                assert!(read(&[(name, default)]).is_ok(), "{name}");
            }
        }
        for (name, value) in [
            ("BACKEND_TYPE", "memcache"),
            ("CONFIG_TYPE", "other"),
            ("PORT", "x"),
            ("HOST", "example.org"),
            ("SHADOW_MODE", "maybe"),
            ("REDIS_TYPE", "other"),
            ("REDIS_TIMEOUT", "soon"),
            ("LOG_LEVEL", "loud"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn half_of_a_setting_is_refused_by_name() {
        const HEADERS: &str = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
        let redis = |url| ("REDIS_URL", url);
        for (given, wanted) in [
            ([("REDIS_TYPE", "CLUSTER"), redis("redis://seed:1")], "REDIS_TYPE"),
            ([("REDIS_SENTINEL_AUTH", "p"), redis("redis://a:1")], "REDIS_SENTINEL_AUTH"),
            ([("REDIS_TLS_CACERT", "/ca"), redis("rediss://a:1")], "REDIS_TLS_CACERT"),
            ([("REDIS_TLS_CLIENT_CERT", "/c"), redis("rediss://a:1")], "REDIS_TLS_CLIENT_CERT"),
            ([("REDIS_TLS_CLIENT_KEY", "/k"), redis("rediss://a:1")], "REDIS_TLS_CLIENT_KEY"),
            ([XDS[0], ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/c")], "_TLS_CERT needs"),
            ([XDS[0], ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/k")], "_TLS_KEY needs"),
            ([XDS[0], (HEADERS, "a b:1")], HEADERS),
            ([XDS[0], (HEADERS, "a:1,:2")], HEADERS),
            ([XDS[0], (HEADERS, "a-bin:1")], HEADERS),
        ] {
            let error = read(&given).unwrap_err();
            assert!(error.contains(wanted), "{given:?}: {error}");
        }
        let one = ("REDIS_SOCKET_TYPE", "tcp");
        for half in ["REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY"] {
            let given = [one, redis("redis:6379"), ("REDIS_TLS", "true"), (half, "/f")];
            assert!(read(&given).is_err(), "{half}");
        }
    }

    #[test]
    fn https_is_tls_and_no_timeout_is_the_longest() {
        let server =
            |pairs: &[(&str, &str)]| RatelimitSettings::read(&environment(pairs)).unwrap().server;
        let url = |url| server(&[XDS[0], ("CONFIG_GRPC_XDS_SERVER_URL", url)]).envoy.xds.unwrap();
        assert!(url("https://xds:443").tls.is_some());
        assert!(url("xds:443").tls.is_none());
        for (given, wanted) in [("0", "60000ms"), ("0s", "60000ms"), ("2s", "2000ms")] {
            let PolicySource::Inline(policy) = server(&[("REDIS_TIMEOUT", given)]).source else {
                panic!("the policy is not inline");
            };
            assert!(policy.contains(&format!("store_deadline: {wanted}\n")), "{given}: {policy}");
        }
        let headers = [XDS[0], ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a:1, b: 2")];
        let wanted = [("a", "1"), ("b", "2")].map(|(name, value)| XdsHeader::new(name, value));
        assert_eq!(server(&headers).envoy.xds.unwrap().headers, wanted.map(Option::unwrap));
    }

    #[test]
    fn a_collector_that_cannot_be_used_is_a_warning() {
        let given = [("TRACING_ENABLED", "true"), (Collector::VARIABLE, "https://otel:4318")];
        let settings = RatelimitSettings::read(&environment(&given)).unwrap();
        assert!(settings.server.traces.is_none());
        assert_eq!(settings.warnings.len(), 1);
    }
}
