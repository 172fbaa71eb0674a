//! Writes a state back: in place as long as the TTL of the key lasts, as `lean.lua` does.

use tidegate_core::{Holds, State};

use crate::call::CommandCall;
use crate::value::StoredLimit;

/// A key must outlive its state by this long, in us.
const MARGIN: u64 = 1_000_000;
const DAY_MS: u64 = 86_400_000;

/// When a charge is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteTime {
    /// In us.
    pub(crate) now: u64,
    /// A test has passed `now`: its keys live for a day.
    pub(crate) is_test: bool,
}

/// The state of a key, ready to be written.
#[derive(Debug)]
pub(crate) struct PendingState {
    pub(crate) bytes: [u8; 24],
    /// When it is that of an unused key, in us.
    ends: u64,
}

impl PendingState {
    /// `None` if it ends too late to be exact.
    pub(crate) fn new(
        stored: &StoredLimit,
        state: Option<&State>,
        at: &tidegate_core::Moment,
    ) -> Option<Self> {
        let reset_after = stored.limit.standing(state, Holds::NONE, at).reset_after;
        let ends = at.now().get() + reset_after.get();
        let is_exact = ends + 2 * MARGIN < tidegate_core::Micros::MAX.get();
        is_exact.then(|| Self { bytes: stored.packed_state(state), ends })
    }

    /// Writes it. `expires` is when the key expires, if it has a value of this limit.
    pub(crate) fn write<'a, C: CommandCall<'a>>(
        &self,
        call: &mut C,
        key: &mut C::Key,
        stored: &StoredLimit,
        expires: Option<u64>,
        time: WriteTime,
    ) {
        let state = &self.bytes[..stored.state_len()];
        if expires.is_some_and(|expires| expires >= self.ends + MARGIN) {
            return call.overwrite(key, stored.head_len(), state);
        }
        let mut ms = self.ends.saturating_sub(time.now).div_ceil(1_000);
        // A key that is used again is likely to be used once more: so that this needs no new TTL,
        // the key of a bucket lives twice as long.
        if expires.is_some() && stored.is_bucket() {
            ms *= 2;
        }
        ms += 1_000;
        if time.is_test {
            ms = ms.max(DAY_MS);
        }
        let value = stored.value(state, time.now + 1_000 * ms, self.ends);
        let clock = if time.is_test { call.now() } else { time.now };
        call.set(key, &value, clock / 1_000 + ms);
    }
}
