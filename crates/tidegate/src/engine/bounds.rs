//! Bounds that both error messages and the types they are about refer to.

use tidegate_core::Micros;

/// See [`Call::MAX_CHARGES`](crate::Call::MAX_CHARGES).
pub(super) const MAX_CHARGES: usize = 64;

/// See [`IdempotencyKey::MAX_LEN`](crate::IdempotencyKey::MAX_LEN).
pub(super) const MAX_ID_LEN: usize = 64;

/// See [`IdempotencyKey::TTL`](crate::IdempotencyKey::TTL).
pub(super) const ID_TTL: Micros = Micros::from_secs(3_600);

/// See [`Policy::MAX_RULES`](crate::Policy::MAX_RULES).
pub(crate) const MAX_RULES: usize = 10_000;

/// See [`PolicyRule::MAX_ENTRIES`](crate::PolicyRule::MAX_ENTRIES).
pub(crate) const MAX_LIST_ENTRIES: usize = 10_000;

/// See [`PlanDraft::MAX_PLANS`](crate::policy::PlanDraft::MAX_PLANS).
pub(crate) const MAX_PLANS: usize = 64;
