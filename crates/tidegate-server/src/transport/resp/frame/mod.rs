//! Incremental RESP request parser with size caps. Imports: nothing.
//!
//! A request is a flat array of bulk strings, as clients send it, or a line of words, as people
//! type it. The parser keeps its position in a partial request, so that a slow client does not
//! make it parse from the beginning with every byte. It refuses a length above the cap when the
//! length arrives: before it waits for the bytes, and before memory is reserved for them.
//!
//! # HTTP
//!
//! A browser can be made to send a request with an attacker's body to any port. So a line closes
//! the connection without a reply ([`ProtocolError::Http`]) if
//!
//! - its first word is `POST`, `HEAD`, `PUT`, `OPTIONS`, `DELETE`, `PATCH`, `CONNECT` or `TRACE`,
//!   or it begins with `Host:` or `GET /`, in any case, even before the end of the line;
//! - or it ends with a version of HTTP, as in `GET key HTTP/1.1` or `PRI * HTTP/2.0`.
//!
//! `GET key` is a command like any other. So is an array whose first element is `POST`: no browser
//! begins with an array.

mod error;
mod header;
mod inline;
mod parser;
#[cfg(test)]
mod tests;

pub use self::error::ProtocolError;
pub use self::parser::{Caps, Command, Parser};
