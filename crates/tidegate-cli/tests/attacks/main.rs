//! Attacks on a real server process, while other clients are served and measured.
//!
//! - `slowloris`: thousands of sockets that never finish. `floods`: more requests than the server
//!   can serve. `http2`: floods of frames that no client writes, made in `http2_frames`.
//!   `size_caps`: too long, too deep, too many.
//! - `injection`: bytes that try to become lines, headers, labels and keys. `secrets`: no output
//!   contains one. `envoy_fuzz`: mutated messages. `fuzzed_connections`: mutated requests over
//!   sockets.
//! - `kill`: SIGKILL, many times. `graceful_stop`: SIGTERM under load.
//! - `monitor`: memory and latency of the attacked process.

#![expect(clippy::unwrap_used, reason = "a test")]

mod envoy_fuzz;
mod floods;
mod fuzzed_connections;
mod graceful_stop;
mod http2;
mod http2_frames;
mod injection;
mod kill;
mod monitor;
mod secrets;
mod size_caps;
mod slowloris;
