//! Durations and sizes of loans.

use tidegate_core::Micros;

/// After this time the store charges a loan that was not settled. Short: it is what a crash costs
/// other processes.
pub(crate) const TTL: Micros = Micros::from_secs(2);

/// A loan is spent for this long, counted from before it was requested. The rest of its time is for
/// settling it, and for clocks that run at different speeds.
pub(crate) const SPEND_WINDOW: Micros = Micros::from_millis(1_500);

/// Loans of a key without requests for this long are given back.
pub(crate) const IDLE_AFTER: Micros = Micros::from_millis(250);

/// How often idle loans are searched for.
pub(crate) const SWEEP_INTERVAL: Micros = Micros::from_millis(100);

/// An automatic loan is what the key spends in this time.
pub(crate) const DEMAND_WINDOW: Micros = Micros::from_millis(250);

/// A process holds at most one part in this many of what remains for a key: near the limit, nothing
/// is borrowed.
pub(crate) const MAX_SHARE_OF_REMAINING: u64 = 4;

/// What a loan and its settlement cost the store, in checks that are sent in batches: measured on
/// Redis, where a loan is two calls of the general script and a check is one entry of a short one.
/// A loan of automatic size pays for as many checks at least.
pub(crate) const LOAN_COST: u64 = 32;

/// Smallest loan of a configured size, unless that is smaller.
pub(crate) const MIN_LOAN: u64 = 8;

/// After a loan that did not save its cost, the next one of this key needs twice the demand, at
/// most this often.
pub(crate) const MAX_BACKOFF: u32 = 6;

/// A loan of a configured size needs at least this demand per window.
pub(crate) const MIN_DEMAND: u64 = 2;

/// Nothing is borrowed for this long after a denial.
pub(crate) const STRICT_AFTER_DENIAL: Micros = Micros::from_millis(100);

/// Nothing is borrowed for this long from a store that did not reply.
pub(crate) const STRICT_AFTER_NO_REPLY: Micros = Micros::from_secs(1);

/// Pause before the first retry of a settlement; doubled each time.
pub(crate) const SETTLE_RETRY_PAUSE: Micros = Micros::from_millis(50);
