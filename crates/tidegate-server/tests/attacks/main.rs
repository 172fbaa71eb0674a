//! Attempts to break the server, from outside: a real process, watched by others who are served at the same time.
//!
//! - `slow`: a thousand sockets that never finish. `floods`: more than anybody can take. `http2`: the same in frames
//!   that no client writes, made in `frames`. `caps`: too long, too deep, too many.
//! - `inject`: bytes that try to be lines, headers, labels and keys. `secrets`: whatever is said, none is in it.
//!   `noise`: mutated messages.
//! - `killed`: the end without warning, a hundred times. `drained`: the end with one.
//! - `witness`: what is measured, and who measures it.
#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "../../../tidegate-redis/tests/support/certificates.rs"]
mod certificates;
#[path = "../../../tidegate/tests/support/checker.rs"]
mod checker;
#[path = "../support/envoy.rs"]
mod envoy;
#[path = "../support/life.rs"]
mod life;
#[path = "../support/resp.rs"]
mod resp;
#[path = "../support/secure.rs"]
mod secure;
#[path = "../support/mod.rs"]
#[allow(unreachable_pub, reason = "shared by the test programs")]
mod support;
#[path = "../support/wire.rs"]
#[allow(unreachable_pub, reason = "shared by the test programs")]
mod wire;

mod caps;
mod drained;
mod floods;
mod frames;
mod http2;
mod inject;
mod killed;
mod noise;
mod secrets;
mod slow;
mod witness;
