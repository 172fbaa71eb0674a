//! Upstreams for tests of the outbound layer. Imports: nothing.

mod scripted;
mod server;

pub use scripted::{ScriptedUpstream, UpstreamReply, response};
pub use server::{UpstreamServer, too_many_requests};
