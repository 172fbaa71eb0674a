//! The server, from all sides. One program is built faster than thirty.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../support/browser.rs"]
mod browser;
#[path = "../../../tidegate-redis/tests/support/certificates.rs"]
mod certificates;
#[path = "../support/envoy.rs"]
mod envoy;
#[path = "../support/in_process.rs"]
mod in_process;
#[path = "../support/inside.rs"]
mod inside;
#[path = "../support/late.rs"]
mod late;
#[allow(unreachable_pub, reason = "shared by the test programs")]
#[path = "../support/life.rs"]
mod life;
#[allow(unreachable_pub, reason = "shared by the test programs")]
#[path = "../support/proxy.rs"]
mod proxy;
#[path = "../support/real_envoy.rs"]
mod real_envoy;
#[path = "../support/resp.rs"]
mod resp;
#[allow(unreachable_pub, reason = "shared by the test programs")]
#[path = "../support/schema.rs"]
mod schema;
#[path = "../support/screen.rs"]
mod screen;
#[path = "../support/secure.rs"]
mod secure;
#[allow(unreachable_pub, reason = "shared with other tests")]
#[path = "../support/mod.rs"]
mod support;
#[allow(unreachable_pub, reason = "shared by the test programs")]
#[path = "../support/wire.rs"]
mod wire;

mod bench;
mod cli;
mod config;
mod config_errors;
mod config_fuzz;
mod console;
mod console_browser;
mod console_keys;
mod console_playground;
mod doors;
mod envoy_config;
mod envoy_config_fuzz;
mod envoy_grpc;
mod envoy_json;
mod envoy_lookup;
mod envoy_real;
mod envoy_semantics;
mod envoy_store;
mod envoy_wire;
mod forward_auth;
mod http;
mod http_admin;
mod http_bad_input;
mod http_reservations;
mod lifetime;
mod live;
mod openapi;
mod outage;
mod redis_cell;
mod reload;
mod replay;
mod resp_bad_input;
mod resp_clients;
mod resp_commands;
mod resp_deadline;
mod resp_drain;
mod service;
mod simulate;
mod stores;
mod tls;
mod top;

use life::redis_server;
