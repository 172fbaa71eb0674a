//! The limits that small entries belong to, by number.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Arc, PoisonError};

use super::small::LimitNumber;
use crate::RuleLimit;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, RwLock};

/// Numbers the limits of one engine.
///
/// A limit keeps its number as long as somebody else has the limit or an entry goes by it; then the
/// number is given to another.
#[derive(Debug)]
pub(crate) struct Numbers {
    /// Tells this engine's numbers from those of others; never 0.
    engine: u64,
    limits: RwLock<Limits>,
    /// There are so many that some may not be needed any more.
    crowded: AtomicBool,
    /// Held by whoever frees numbers: nobody else may do so meanwhile, or a number could stand for
    /// another limit than the one that was found to be abandoned.
    tidying: Mutex<()>,
}

#[derive(Debug)]
struct Limits {
    by_number: Vec<Option<Arc<RuleLimit>>>,
    free: Vec<LimitNumber>,
    by_address: HashMap<usize, LimitNumber>,
    crowded_at: usize,
}

impl Default for Numbers {
    fn default() -> Self {
        static ENGINES: AtomicU64 = AtomicU64::new(1);
        Self {
            engine: ENGINES.fetch_add(1, Ordering::Relaxed),
            limits: RwLock::new(Limits {
                by_number: Vec::new(),
                free: Vec::new(),
                by_address: HashMap::new(),
                crowded_at: Self::MANY,
            }),
            crowded: AtomicBool::new(false),
            tidying: Mutex::new(()),
        }
    }
}

impl Numbers {
    /// As many limits are never too many. A test that tries orders of events has only a few.
    const MANY: usize = if cfg!(shuttle) { 2 } else { 1_024 };

    /// The number of a limit; `None` if it can have none. A limit that comes with a call has none: it
    /// would be another one with the next call.
    pub(crate) fn of(&self, limit: &Arc<RuleLimit>) -> Option<LimitNumber> {
        self.known(limit).or_else(|| self.look_up(limit))
    }

    /// The number that the limit has already.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the lower bits are wanted")]
    pub(crate) fn known(&self, limit: &RuleLimit) -> Option<LimitNumber> {
        // The engine comes before the number, so that both are read at once.
        let known = limit.number().load(Ordering::Relaxed);
        let is_ours = known / u64::from(LimitNumber::COUNT) == self.engine;
        is_ours.then_some(LimitNumber::from_low_bits(known as u32))
    }

    #[cold]
    fn look_up(&self, limit: &Arc<RuleLimit>) -> Option<LimitNumber> {
        if limit.comes_with_call() || !limit.limit().packs() || limit.check_zone().is_err() {
            return None;
        }
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        let address = Arc::as_ptr(limit).addr();
        let number = match limits.by_address.get(&address) {
            Some(number) => *number,
            None => limits.enter(address, limit)?,
        };
        if limits.by_address.len() > limits.crowded_at {
            self.crowded.store(true, Ordering::Relaxed);
        }
        let known = self.engine * u64::from(LimitNumber::COUNT) + u64::from(number.get());
        limit.number().store(known, Ordering::Relaxed);
        Some(number)
    }

    /// The limit of this number.
    pub(crate) fn limit(&self, number: LimitNumber) -> Option<Arc<RuleLimit>> {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        limits.by_number.get(number.get() as usize)?.clone()
    }

    /// Frees numbers that are not needed, if there are many: `used` tells those that entries go by.
    ///
    /// A limit that only this list has cannot be charged by anybody, so no new entry will go by it.
    pub(crate) fn tidy(&self, used: impl FnOnce() -> HashSet<LimitNumber>) {
        if !self.crowded.load(Ordering::Relaxed) {
            return;
        }
        let Ok(_alone) = self.tidying.try_lock() else { return };
        let abandoned = |limits: &Limits| -> Vec<LimitNumber> {
            let numbers = limits.by_address.values().copied();
            numbers.filter(|number| limits.is_abandoned(*number)).collect()
        };
        let candidates = abandoned(&self.limits.read().unwrap_or_else(PoisonError::into_inner));
        // Whatever those did who have let go of a limit is seen from here on.
        fence(Ordering::Acquire);
        let used = used();
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        for number in candidates.into_iter().filter(|number| !used.contains(number)) {
            if limits.is_abandoned(number) {
                limits.leave(number);
            }
        }
        limits.crowded_at = Self::MANY.max(2 * limits.by_address.len());
        self.crowded.store(false, Ordering::Relaxed);
    }
}

impl Limits {
    fn enter(&mut self, address: usize, limit: &Arc<RuleLimit>) -> Option<LimitNumber> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let number = LimitNumber::new(u32::try_from(self.by_number.len()).ok()?)?;
                self.by_number.push(None);
                number
            }
        };
        *self.by_number.get_mut(number.get() as usize)? = Some(limit.clone());
        self.by_address.insert(address, number);
        Some(number)
    }

    fn leave(&mut self, number: LimitNumber) {
        let place = self.by_number.get_mut(number.get() as usize);
        if let Some(limit) = place.and_then(Option::take) {
            self.by_address.remove(&Arc::as_ptr(&limit).addr());
            self.free.push(number);
        }
    }

    /// Has nobody else this limit?
    fn is_abandoned(&self, number: LimitNumber) -> bool {
        let limit = self.by_number.get(number.get() as usize).and_then(Option::as_ref);
        limit.is_some_and(|limit| Arc::strong_count(limit) == 1)
    }
}
