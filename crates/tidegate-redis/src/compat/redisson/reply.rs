//! Parses the replies of the scripts.

use tidegate::{Micros, Outcome};

use super::error::Error;
use crate::compat::client::AcquireDecision;
use crate::protocol::reply::malformed_reply;

/// The decision on `permits` in a reply of `take.lua`.
pub(crate) fn decision(permits: u32, reply: &[i64]) -> Result<AcquireDecision, Error> {
    let outcome = match status(reply)? {
        1 => Outcome::Allow,
        0 => Outcome::RetryAfter(Micros::new(u64_at(reply, 2)?)),
        3 => return Err(Error::AboveRate { permits, rate: u64_at(reply, 1)? }),
        _ => return Err(malformed_reply(true).into()),
    };
    Ok(AcquireDecision { outcome, remaining: u64_at(reply, 1)? })
}

/// The status with which every reply begins.
pub(crate) fn status(reply: &[i64]) -> Result<i64, Error> {
    match reply.first() {
        Some(2) => Err(Error::NotInitialized),
        Some(status) => Ok(*status),
        None => Err(malformed_reply(true).into()),
    }
}

/// The number at `index` in the reply of an initialized limiter.
pub(crate) fn u64_at(reply: &[i64], index: usize) -> Result<u64, Error> {
    status(reply)?;
    let number = reply.get(index).and_then(|number| u64::try_from(*number).ok());
    number.ok_or_else(|| malformed_reply(true).into())
}
