//! The Tidegate server.
//!
//! # Layout
//!
//! - [`cli`]: the command line.
//! - [`server`]: its doors, its life and its end. [`drain`]: the end.
//! - [`doors`]: how clients come in, with TLS and how many. [`http`] and [`resp`]: what is spoken there. [`envoy`]: what Envoy asks, over gRPC and JSON, and its files. [`tokens`]: who
//!   may ask.
//! - [`console`]: pages for people, at the door of HTTP.
//! - [`service`]: what every door asks. [`explain`]: the same in sentences.
//! - [`config`]: the policy file. [`policies`]: where the policy comes from, and rules set while
//!   running. [`active`]: what is in force. [`changes`]: what another reading has changed. [`watch`]: reading it again. [`store`]: where counts are
//!   kept.
//! - `unfinished`: how much is kept of requests that are not all there yet.
//! - [`replay`]: access logs through candidate policies. [`plot`]: pictures of simulations. [`mod@bench`]: how fast a target answers.
//! - [`metrics`], [`hottest`], [`live`], [`logs`], [`trace`]: what can be seen from outside. [`supervisor`]: what systemd is told.

pub mod active;
pub mod bench;
pub mod changes;
pub mod cli;
pub mod config;
pub mod console;
pub mod doors;
pub mod drain;
pub mod envoy;
pub mod explain;
pub mod hottest;
pub mod http;
pub mod live;
pub mod logs;
pub mod metrics;
pub mod plot;
pub mod policies;
pub mod replay;
pub mod resp;
pub mod server;
pub mod service;
pub mod store;
pub mod supervisor;
pub mod tokens;
pub mod trace;
mod unfinished;
pub mod watch;
