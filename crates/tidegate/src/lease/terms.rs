//! The terms on which permits are borrowed.

use tidegate_core::Micros;

/// After so long the store charges what it was not told about. Short: it is what a crash costs others.
pub(super) const TTL: Micros = Micros::from_secs(2);

/// So long, counted from before it was asked for, a loan is spent. The rest of its time is for telling
/// the store, and for clocks that do not run alike.
pub(super) const SPENT_WITHIN: Micros = Micros::from_millis(1_500);

/// What nobody spends from for so long is given back.
pub(super) const IDLE: Micros = Micros::from_millis(250);

/// How often that is looked for.
pub(super) const TIDY_EVERY: Micros = Micros::from_millis(100);

/// A loan of a size of our own choosing is what is spent in so long.
pub(super) const MOMENT: Micros = Micros::from_millis(250);

/// No process has more for a key than one of so many parts of what remains: near the limit, nothing is
/// borrowed.
pub(super) const PARTS_OF_THE_REST: u64 = 4;

/// Fewer permits are not worth the two questions that a loan costs.
pub(super) const LEAST: u64 = 8;

/// A loan of a given size is worth them if so many permits are spent in a moment: it lasts for several.
pub(super) const LEAST_IN_A_MOMENT: u64 = 2;

/// For so long nothing is borrowed after a denial.
pub(super) const STRICT_AFTER_DENIAL: Micros = Micros::from_millis(100);

/// For so long nothing is borrowed from a store that did not answer.
pub(super) const STRICT_AFTER_SILENCE: Micros = Micros::from_secs(1);

/// The pause before the store is told again what it did not hear; twice as long each time.
pub(super) const TELL_AGAIN_AFTER: Micros = Micros::from_millis(50);
