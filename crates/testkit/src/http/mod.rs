//! HTTP services, handlers and bodies for tests of the inbound layer. Imports: nothing.

mod handlers;
mod server;

pub use handlers::{BlockingHandler, BodySender, ChannelBody, TakeOnceBody, send_text};
pub use server::{
    HttpReply, TestServer, limiter, memory, read_until, rule, used_and_held, wait_until,
};
