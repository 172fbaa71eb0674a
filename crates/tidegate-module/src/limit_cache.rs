//! Limits of earlier commands, by the arguments that name them.

use std::sync::{Arc, Mutex, PoisonError};

use crate::value::StoredLimit;

/// A hash table without collision handling: a limit that was replaced is derived again.
pub(crate) struct LimitCache(Mutex<Vec<Option<CachedLimit>>>);

struct CachedLimit {
    name: Box<[u8]>,
    limit: Arc<StoredLimit>,
}

impl LimitCache {
    const SLOTS: usize = 256;
    /// Longer names are not cached, so that a table has at most 64 KiB of them.
    const MAX_NAME: usize = 256;

    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// The limit of this name, or the one that `derive` returns.
    pub(crate) fn get<E>(
        &self,
        name: &[u8],
        derive: impl FnOnce() -> Result<StoredLimit, E>,
    ) -> Result<Arc<StoredLimit>, E> {
        let index = slot(name);
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(cached)) = slots.get(index)
            && *cached.name == *name
        {
            return Ok(Arc::clone(&cached.limit));
        }
        let limit = Arc::new(derive()?);
        if name.len() <= Self::MAX_NAME {
            if slots.is_empty() {
                slots.resize_with(Self::SLOTS, || None);
            }
            slots[index] = Some(CachedLimit { name: name.into(), limit: Arc::clone(&limit) });
        }
        Ok(limit)
    }
}

/// FNV-1a.
fn slot(name: &[u8]) -> usize {
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    (hash >> 32) as usize % LimitCache::SLOTS
}
