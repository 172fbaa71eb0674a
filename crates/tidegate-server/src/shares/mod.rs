//! Shares of one limit for callers that decide on their own, such as Envoy with its quota service.
//! Imports: nothing.
//!
//! A holder is lent a token bucket of its own: a burst and a rate, for a time. What is lent and
//! what is left in the central bucket never exceed the limit together, so all holders and all
//! callers of the central bucket admit at most `burst + rate * t` in any interval. The code has no
//! clock: instants are arguments, in microseconds of a clock that never steps.

pub(crate) mod allocator;
mod demand;
mod fairness;
pub(crate) mod ledger;
#[cfg(test)]
mod tests;
