//! Tests of the policy file and of envoyproxy/ratelimit's configuration.

mod config;
mod config_errors;
mod config_fuzz;
mod envoy_config;
mod envoy_config_fuzz;
mod envoy_lookup;
mod reference;
