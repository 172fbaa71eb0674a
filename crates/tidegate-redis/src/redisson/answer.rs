//! What a script answers.

use tidegate::{Micros, Outcome};

use super::error::Error;
use crate::client::Taken;
use crate::reply::unreadable;

/// What it says of so many permits.
pub(super) fn taken(permits: u32, answer: &[i64]) -> Result<Taken, Error> {
    let outcome = match first(answer)? {
        1 => Outcome::Allow,
        0 => Outcome::RetryAfter(Micros::new(natural(answer, 2)?)),
        3 => return Err(Error::AboveRate { permits, rate: natural(answer, 1)? }),
        _ => return Err(unreadable(true).into()),
    };
    Ok(Taken { outcome, remaining: natural(answer, 1)? })
}

/// The word with which every answer begins.
pub(super) fn first(answer: &[i64]) -> Result<i64, Error> {
    match answer.first() {
        Some(2) => Err(Error::NotInitialized),
        Some(first) => Ok(*first),
        None => Err(unreadable(true).into()),
    }
}

/// What comes with it at `place`, if it is that of a limiter that there is.
pub(super) fn natural(answer: &[i64], place: usize) -> Result<u64, Error> {
    first(answer)?;
    let number = answer.get(place).and_then(|number| u64::try_from(*number).ok());
    number.ok_or_else(|| unreadable(true).into())
}
