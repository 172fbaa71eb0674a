//! The environment variables of envoyproxy/ratelimit, and what each of them does here.

use std::collections::BTreeMap;

/// What a variable does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum VariableEffect {
    /// `RatelimitSettings` reads it.
    Used,
    /// It changes no decision: a value other than the default is logged.
    Ignored,
    /// It would change decisions or access: a value other than the default is refused.
    Refused,
}

/// A variable, its default in envoyproxy/ratelimit, its effect, and what is so instead.
pub(super) type Variable = (&'static str, &'static str, VariableEffect, &'static str);

use VariableEffect::{Ignored, Refused, Used};

/// All variables, in the order of the documentation.
pub(super) const VARIABLES: &[Variable] = &[
    ("HOST", "0.0.0.0", Used, "HTTP listener"),
    ("PORT", "8080", Used, "HTTP listener: `/json`, `/healthcheck`, `/healthz`, `/readyz`"),
    ("GRPC_HOST", "0.0.0.0", Used, "gRPC listener"),
    ("GRPC_PORT", "8081", Used, "gRPC listener"),
    ("GRPC_UDS", "", Refused, "unix sockets are not supported"),
    ("GRPC_SERVER_USE_TLS", "false", Used, "TLS of the gRPC listener alone"),
    ("GRPC_SERVER_TLS_CERT", "", Used, "read again when it changes"),
    ("GRPC_SERVER_TLS_KEY", "", Used, "read again when it changes"),
    ("GRPC_CLIENT_TLS_CACERT", "", Used, "CA for client certificates; enables mutual TLS"),
    ("GRPC_CLIENT_TLS_SAN", "", Refused, "names of client certificates are not checked"),
    (
        "GRPC_SERVER_TLS_CA_CERT",
        "",
        Ignored,
        "Envoy Gateway sets it; envoyproxy/ratelimit does not read it either",
    ),
    ("GRPC_MAX_CONNECTION_AGE", "24h", Ignored, "connections have no maximum age"),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", "1h", Ignored, "connections have no maximum age"),
    ("DEBUG_HOST", "0.0.0.0", Ignored, "there is no debug listener"),
    ("DEBUG_PORT", "6070", Ignored, "there is no debug listener"),
    ("LOG_LEVEL", "WARN", Used, "level of the log"),
    ("LOG_FORMAT", "text", Used, "`text` or `json`"),
    ("CONFIG_TYPE", "FILE", Used, "`FILE` or `GRPC_XDS_SOTW`"),
    (
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        "false",
        Used,
        "with xDS: start before the first configuration; `UNAVAILABLE` until then",
    ),
    (
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        "false",
        Used,
        "with xDS: not ready before the first configuration",
    ),
    (
        "CONFIG_GRPC_XDS_SERVER_URL",
        "localhost:18000",
        Used,
        "control plane; `https://` turns TLS on",
    ),
    ("CONFIG_GRPC_XDS_NODE_ID", "default", Used, "node id"),
    ("CONFIG_GRPC_XDS_NODE_METADATA", "", Used, "`key=value` pairs"),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", Used, "`name:value` pairs"),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", Used, "TLS to the control plane"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", Used, "read again for every connection"),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", Used, "read again for every connection"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", Used, "empty: CAs of the system"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", Used, "name in the control plane's certificate"),
    (
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
        "3s",
        Ignored,
        "`XDS_CLIENT_BACKOFF_*` applies to all attempts",
    ),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", Used, "0.5 s if it is not set; at least 0.1 s"),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", Used, "30 s if it is not set"),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5", Ignored, "a pause doubles, with jitter of a half"),
    ("XDS_CLIENT_BACKOFF_JITTER", "true", Ignored, "there is always jitter"),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", Ignored, "16 MiB"),
    ("RUNTIME_ROOT", "/srv/runtime_data/current", Used, "first part of the directory of files"),
    ("RUNTIME_SUBDIRECTORY", "", Used, "second part"),
    ("RUNTIME_APPDIRECTORY", "config", Used, "third part"),
    ("RUNTIME_WATCH_ROOT", "true", Ignored, "files are always watched"),
    ("RUNTIME_IGNOREDOTFILES", "false", Ignored, "files that begin with a dot are always ignored"),
    ("MERGE_DOMAIN_CONFIG", "false", Used, "merges files or resources of one domain"),
    ("BACKEND_TYPE", "redis", Used, "`redis`, or `memory` for one server; `memcache` is refused"),
    ("REDIS_TYPE", "SINGLE", Used, "`SINGLE`, `SENTINEL` or `CLUSTER`"),
    ("REDIS_SOCKET_TYPE", "unix", Used, "`tcp` or `unix`"),
    (
        "REDIS_URL",
        "/var/run/nutcracker/ratelimit.sock",
        Used,
        "host and port, socket, `master,sentinel,..`, list of nodes, or a complete URL alone",
    ),
    ("REDIS_AUTH", "", Used, "`password` or `user:password`"),
    ("REDIS_SENTINEL_AUTH", "", Used, "the same, of the sentinels"),
    ("REDIS_TLS", "false", Used, "TLS to Redis"),
    ("REDIS_TLS_CACERT", "", Used, "empty: CAs of the system"),
    ("REDIS_TLS_CLIENT_CERT", "", Used, "client certificate"),
    ("REDIS_TLS_CLIENT_KEY", "", Used, "its key"),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", Refused, "certificates are always verified"),
    (
        "REDIS_TIMEOUT",
        "10s",
        Used,
        "timeout of a decision in Redis; 100 ms if it is not set, 60 s if it is 0",
    ),
    (
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        "false",
        Used,
        "health fails while Redis does not decide",
    ),
    ("REDIS_POOL_SIZE", "10", Ignored, "one connection, pipelined"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT", Ignored, "one connection, pipelined"),
    ("REDIS_PIPELINE_WINDOW", "0", Ignored, "commands are batched as they come"),
    ("REDIS_PIPELINE_LIMIT", "0", Ignored, "commands are batched as they come"),
    ("REDIS_PERSECOND", "false", Ignored, "all limits are counted in `REDIS_URL`"),
    ("REDIS_PERSECOND_TYPE", "SINGLE", Ignored, "see `REDIS_PERSECOND`"),
    ("REDIS_PERSECOND_SOCKET_TYPE", "unix", Ignored, "see `REDIS_PERSECOND`"),
    (
        "REDIS_PERSECOND_URL",
        "/var/run/nutcracker/ratelimitpersecond.sock",
        Ignored,
        "see `REDIS_PERSECOND`",
    ),
    ("REDIS_PERSECOND_AUTH", "", Ignored, "see `REDIS_PERSECOND`"),
    ("REDIS_PERSECOND_SENTINEL_AUTH", "", Ignored, "see `REDIS_PERSECOND`"),
    ("REDIS_PERSECOND_TLS", "false", Ignored, "see `REDIS_PERSECOND`"),
    ("REDIS_PERSECOND_TIMEOUT", "10s", Ignored, "see `REDIS_PERSECOND`"),
    ("REDIS_PERSECOND_POOL_SIZE", "10", Ignored, "see `REDIS_PERSECOND`"),
    ("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "WAIT", Ignored, "see `REDIS_PERSECOND`"),
    ("REDIS_PERSECOND_PIPELINE_WINDOW", "0", Ignored, "see `REDIS_PERSECOND`"),
    ("REDIS_PERSECOND_PIPELINE_LIMIT", "0", Ignored, "see `REDIS_PERSECOND`"),
    ("MEMCACHE_HOST_PORT", "", Ignored, "see `BACKEND_TYPE`"),
    ("MEMCACHE_MAX_IDLE_CONNS", "2", Ignored, "see `BACKEND_TYPE`"),
    ("MEMCACHE_SRV", "", Ignored, "see `BACKEND_TYPE`"),
    ("MEMCACHE_SRV_REFRESH", "0", Ignored, "see `BACKEND_TYPE`"),
    ("MEMCACHE_TLS", "false", Ignored, "see `BACKEND_TYPE`"),
    ("MEMCACHE_TLS_CLIENT_CERT", "", Ignored, "see `BACKEND_TYPE`"),
    ("MEMCACHE_TLS_CLIENT_KEY", "", Ignored, "see `BACKEND_TYPE`"),
    ("MEMCACHE_TLS_CACERT", "", Ignored, "see `BACKEND_TYPE`"),
    ("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false", Ignored, "see `BACKEND_TYPE`"),
    ("CACHE_KEY_PREFIX", "", Used, "prefix of the keys in Redis; `tg` if it is empty"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "0", Ignored, "denials are cached for up to a second"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "300", Ignored, "keys expire when they are no longer needed"),
    (
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        "false",
        Ignored,
        "a denied request is never charged",
    ),
    ("SHADOW_MODE", "false", Used, "evaluates and counts, never denies"),
    ("QUOTA_MODE", "false", Refused, "set `quota_mode` on descriptors"),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "false", Used, "headers of responses"),
    ("LIMIT_LIMIT_HEADER", "RateLimit-Limit", Ignored, "the name is fixed"),
    ("LIMIT_REMAINING_HEADER", "RateLimit-Remaining", Ignored, "the name is fixed"),
    ("LIMIT_RESET_HEADER", "RateLimit-Reset", Ignored, "the name is fixed"),
    ("RESPONSE_DYNAMIC_METADATA", "false", Ignored, "`metadata` of descriptors is always returned"),
    ("NEAR_LIMIT_RATIO", "0.8", Ignored, "metrics count as near from 80 %"),
    (
        "USE_PROMETHEUS",
        "false",
        Used,
        "metrics listener, under the names of envoyproxy/ratelimit too",
    ),
    ("PROMETHEUS_ADDR", ":9090", Used, "metrics listener"),
    ("PROMETHEUS_PATH", "/metrics", Ignored, "the path is `/metrics`"),
    ("PROMETHEUS_MAPPER_YAML", "", Ignored, "names are those of the default mapping"),
    ("DISABLE_STATS", "false", Used, "no metrics under the names of envoyproxy/ratelimit"),
    ("USE_STATSD", "true", Ignored, "there is no statsd; use `USE_PROMETHEUS`"),
    ("USE_DOG_STATSD", "false", Ignored, "there is no statsd; use `USE_PROMETHEUS`"),
    ("USE_DOG_STATSD_MOGRIFIERS", "", Ignored, "there is no statsd"),
    ("STATSD_HOST", "localhost", Ignored, "there is no statsd"),
    ("STATSD_PORT", "8125", Ignored, "there is no statsd"),
    ("STATS_FLUSH_INTERVAL", "10s", Ignored, "there is no statsd"),
    ("EXTRA_TAGS", "", Ignored, "metrics have no extra labels"),
    ("TRACING_ENABLED", "false", Used, "spans to `OTEL_EXPORTER_OTLP_ENDPOINT`, over HTTP"),
    ("TRACING_SERVICE_NAME", "RateLimit", Used, "service name of spans"),
    ("TRACING_SAMPLING_RATE", "1", Used, "sampling ratio"),
    ("TRACING_EXPORTER_PROTOCOL", "http", Ignored, "spans are sent over HTTP"),
    ("TRACING_SERVICE_NAMESPACE", "", Ignored, "spans have the service name alone"),
    ("TRACING_SERVICE_INSTANCE_ID", "", Ignored, "spans have the service name alone"),
];

/// The variables of the process. One of [`VARIABLES`] that is not UTF-8 is refused; any other is
/// not read.
pub(super) fn from_environment() -> Result<BTreeMap<String, String>, String> {
    let mut given = BTreeMap::new();
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => drop(given.insert(name, value)),
            Err(_) if VARIABLES.iter().any(|(known, ..)| *known == name) => {
                return Err(format!("{name} is not UTF-8"));
            }
            Err(_) => {}
        }
    }
    Ok(given)
}

/// One message for each variable that is set and has no effect.
pub(super) fn without_effect(given: &BTreeMap<String, String>) -> Vec<String> {
    let message = |(name, _, _, instead): &Variable| {
        format!("{name} has no effect: {}", instead.replace('`', ""))
    };
    set_otherwise(given, Ignored).map(message).collect()
}

/// The error of the first variable that is set and cannot be honoured.
pub(super) fn refused(given: &BTreeMap<String, String>) -> Result<(), String> {
    match set_otherwise(given, Refused).next() {
        None => Ok(()),
        Some((name, default, _, instead)) => Err(format!(
            "{name} is not supported: {}; unset it, or set it to {default:?}",
            instead.replace('`', "")
        )),
    }
}

/// The variables of this effect whose value is not the default.
fn set_otherwise(
    given: &BTreeMap<String, String>,
    effect: VariableEffect,
) -> impl Iterator<Item = &'static Variable> {
    VARIABLES.iter().filter(move |(name, default, own, _)| {
        let value = given.get(*name).map(|value| value.trim());
        // The one default that is not what happens here.
        let usual = if *name == "USE_STATSD" { "false" } else { default };
        let is_other = |value: &str| !value.is_empty() && !value.eq_ignore_ascii_case(usual);
        *own == effect && value.is_some_and(is_other)
    })
}
