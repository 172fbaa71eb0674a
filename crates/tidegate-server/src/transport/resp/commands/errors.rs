//! Error texts of commands.

use std::borrow::Cow;
use std::fmt::Display;

use tidegate::{EngineError, MemoryFull, MemoryKind, Refusal};

use super::table::CommandSpec;
use crate::check::CheckError;
use crate::text::escape::TruncatedText;

/// The text of an error. Words of the caller in it are escaped and cut to [`MAX_QUOTED`].
pub(crate) type ErrorText = Cow<'static, str>;

/// Bytes of a message that quotes the caller.
const MAX_QUOTED: usize = 256;

pub(crate) const UNKNOWN: &str = "ERR unknown command; COMMAND LIST shows the commands of tidegate";
pub(crate) const ARITY: &str = "ERR wrong number of arguments";
pub(crate) const SYNTAX: &str = "ERR syntax error";
pub(crate) const NOT_AN_INTEGER: &str = "ERR value is not a whole number from 0 to 2^53";
pub(crate) const NO_AUTH: &str = "NOAUTH authentication required; send AUTH with the token";
pub(crate) const NO_ADMIN: &str = "NOAUTH admin token required; send it with AUTH";
pub(crate) const ADMIN_OFF: &str =
    "NOAUTH admin token required, and the server has none; set TIDEGATE_ADMIN_TOKEN";

pub(crate) const UNQUEUEABLE: &str = "ERR not allowed inside a transaction; send it before MULTI";
pub(crate) const TRANSACTION_FULL: &str =
    "ERR transaction too long; at most 1024 commands and 128 KiB";

/// Adds how the command is written to errors about its arguments.
pub(crate) fn with_usage(error: ErrorText, command: &CommandSpec) -> ErrorText {
    match [ARITY, SYNTAX, NOT_AN_INTEGER].contains(&&*error) {
        true => format!("{error}; usage: {}", command.usage()).into(),
        false => error,
    }
}

/// A message that quotes the caller.
fn quoting(prefix: &str, message: &impl Display) -> ErrorText {
    let mut text = prefix.to_owned();
    TruncatedText::new(&mut text, MAX_QUOTED).push_escaped(message.to_string().as_bytes());
    text.into()
}

/// The reply to a failed check.
pub(crate) fn error_text(error: CheckError) -> ErrorText {
    let text = match error {
        CheckError::Store(error @ EngineError::Unavailable(_)) => match error.memory_full() {
            Some(full) => memory_full_text(full),
            None => "NOANSWER store unavailable; nothing was charged, retry later",
        },
        CheckError::Store(_) => {
            "NOANSWER no reply from the store; the request may have been charged: retry with an ID"
        }
        CheckError::Limit(error) => return quoting("ERR invalid limit: ", &error),
        CheckError::Throttle => "ERR invalid limit; count and period must be above 0 and in range",
        CheckError::MissingKey => "ERR missing key: this rule counts per key",
        CheckError::MissingModel(_) => return quoting("ERR model ", &error),
        CheckError::UnknownModel(_) => return quoting("ERR ", &error),
        CheckError::AdhocDisabled => {
            "ERR ad-hoc limits are disabled (adhoc: false); use TG.CHECK with a rule"
        }
        CheckError::Refused(refusal) => return refusal_text(&refusal),
    };
    text.into()
}

/// Whether the error is that the server could not decide.
pub(crate) fn has_no_decision(error: &str) -> bool {
    ["NOANSWER ", "BUSY "].iter().any(|prefix| error.starts_with(prefix))
}

/// The reply to a request that found no room in memory.
fn memory_full_text(MemoryFull(kind): MemoryFull) -> &'static str {
    match kind {
        MemoryKind::State => "NOANSWER memory is full (state); nothing was charged, retry later",
        MemoryKind::Overflow => {
            "NOANSWER memory is full (overflow); nothing was charged, retry later"
        }
        MemoryKind::Adhoc => "NOANSWER memory is full (adhoc); nothing was charged, retry later",
        MemoryKind::Ids => {
            "BUSY ids: memory is full; nothing was charged, retry later or without an ID"
        }
        MemoryKind::Reservations => {
            "NOANSWER memory is full (reservations); nothing was reserved, retry later"
        }
    }
}

/// The reply to an invalid request.
pub(crate) fn refusal_text(refusal: &Refusal) -> ErrorText {
    let text = match refusal {
        Refusal::UnknownRule { .. } => return quoting("NORULE ", refusal),
        Refusal::UnknownPlan(_) => return quoting("ERR ", refusal),
        Refusal::ChargeCount(_) => "ERR too many limits in one call; split it",
        Refusal::KeyTooLong => "ERR the key is too long; at most 1024 bytes, or send a hash",
        Refusal::Cost(_) => "ERR the cost is too large; use at most 4294967296",
        Refusal::IdLength(_) => "ERR an ID has 1 to 64 bytes",
        Refusal::IdReused => "ERR the ID was used for another request; use a new one",
        Refusal::UnknownHold => "ERR no such reservation, or its record was forgotten",
        Refusal::AlreadySettled => "ERR the reservation was settled differently",
        Refusal::HoldExpired => "ERR the reservation has expired; reserve anew",
        Refusal::MinCost => "ERR MIN needs one total of all rules, and is from 1 to that total",
        Refusal::QueueExtended(_) => "ERR this rule is a queue: it cannot be extended",
        Refusal::DifferentCosts(_) => {
            "ERR the reservation holds rules with different costs; use TG.COMMIT id COSTS .."
        }
        Refusal::NotHeld(_) => "ERR the reservation holds no permits of this rule and key",
        Refusal::CostOfSeveral(_) => "ERR two costs of one rule and key; name each once",
        Refusal::NothingToHold => {
            "ERR nothing to reserve: the rules are charged when they are reserved; use TG.CHECK"
        }
        Refusal::EmptyHold => "ERR cannot reserve a cost of 0",
        Refusal::HoldLength => "ERR TTL out of range; 1 ms to 1 h, or the lease of the limit",
        Refusal::ConcurrencyNeedsHold => {
            "ERR not supported by concurrency limits; use TG.RESERVE and TG.CANCEL"
        }
        Refusal::UnknownZone(_) => "ERR unknown time zone; use an IANA name like Europe/Berlin",
        _ => "ERR invalid request",
    };
    text.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn noanswer_says_whether_the_request_may_have_been_charged() {
        let cause = || Arc::new(std::fmt::Error);
        for (error, expected) in [
            (EngineError::Unavailable(cause()), "nothing was charged"),
            (EngineError::Ambiguous(cause()), "may have been charged"),
        ] {
            let text = error_text(CheckError::Store(error));
            assert!(text.starts_with("NOANSWER ") && text.contains(expected), "{text}");
        }
    }

    #[test]
    fn both_prefixes_say_that_there_is_no_decision() {
        let ids = error_text(EngineError::unavailable(MemoryFull(MemoryKind::Ids)).into());
        let store = error_text(EngineError::Unavailable(Arc::new(std::fmt::Error)).into());
        let other = error_text(CheckError::MissingKey);
        assert_eq!([ids, store, other].map(|text| has_no_decision(&text)), [true, true, false]);
    }

    #[test]
    fn full_memory_is_not_reported_as_an_unavailable_store() {
        for kind in MemoryKind::ALL {
            let error = EngineError::unavailable(MemoryFull(kind));
            let text = error_text(CheckError::Store(error));
            let expected = match kind {
                MemoryKind::Ids => "BUSY ids: memory is full; nothing was".to_owned(),
                _ => format!("NOANSWER memory is full ({}); nothing was", kind.name()),
            };
            assert!(text.starts_with(&expected), "{text}");
        }
    }
}
