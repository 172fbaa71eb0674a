//! Bounds of traffic, for its checks and for error messages.

use tidegate_core::Micros;

/// See [`Traffic::MAX_REQUESTS`](super::Traffic::MAX_REQUESTS).
pub(super) const MAX_REQUESTS: u64 = 10_000_000;

/// See [`Traffic::MAX_KEYS`](super::Traffic::MAX_KEYS).
pub(super) const MAX_KEYS: u32 = 100_000;

/// See [`Traffic::MAX_SPAN`](super::Traffic::MAX_SPAN).
pub(super) const MAX_SPAN: Micros = Micros::from_secs(200 * 86_400);

/// See [`Traffic::MAX_PARTS`](super::Traffic::MAX_PARTS).
pub(super) const MAX_PARTS: usize = 16;
