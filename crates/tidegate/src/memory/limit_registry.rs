//! Limits by number, as packed states name them.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Arc, PoisonError};

use super::budget::Budget;
use super::packed_table::LimitNumber;
use crate::RuleLimit;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, RwLock};

/// Numbers the limits of one engine.
///
/// A limit keeps its number as long as it is in use elsewhere or a packed state refers to it. After
/// that the number is reused.
///
/// Limits that come with calls may be other instances with every call, so they are found by their
/// content, and the registry keeps one instance of each. Its bytes are counted once. A caller that
/// keeps this instance finds its number in it, as with the limit of a rule.
#[derive(Debug)]
pub(crate) struct LimitRegistry {
    /// Distinguishes this engine's numbers from those of others; never 0.
    engine: u64,
    limits: RwLock<RegistryState>,
    /// Whether there are so many limits that unused ones should be freed.
    crowded: AtomicBool,
    /// Held while numbers are freed. A second thread could otherwise reuse a number between the
    /// search for unused limits and their removal.
    freeing: Mutex<()>,
    hasher: RandomState,
    /// For the limits that come with calls.
    budget: Arc<Budget>,
}

#[derive(Debug)]
struct RegistryState {
    by_number: Vec<Option<NumberedLimit>>,
    free: Vec<LimitNumber>,
    by_address: HashMap<usize, LimitNumber>,
    /// Limits that come with calls, by a hash of name and limit.
    by_content: HashMap<u64, LimitNumber>,
    crowded_at: usize,
}

#[derive(Debug)]
struct NumberedLimit {
    limit: Arc<RuleLimit>,
    /// Whether the limit was found by its content since unused limits were last looked for.
    found: AtomicBool,
}

impl LimitRegistry {
    /// Below this number nothing is freed. Tests of interleavings have only a few limits.
    const CROWDED: usize = if cfg!(shuttle) { 2 } else { 1_024 };
    /// Bytes for each limit in the maps, and what the allocator adds to its parts, about.
    const EXTRA_BYTES: usize = 128;

    /// A registry that counts limits of calls in `budget`.
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        static ENGINES: AtomicU64 = AtomicU64::new(1);
        Self {
            engine: ENGINES.fetch_add(1, Ordering::Relaxed),
            limits: RwLock::new(RegistryState {
                by_number: Vec::new(),
                free: Vec::new(),
                by_address: HashMap::new(),
                by_content: HashMap::new(),
                crowded_at: Self::CROWDED,
            }),
            crowded: AtomicBool::new(false),
            freeing: Mutex::new(()),
            hasher: RandomState::new(),
            budget: budget.clone(),
        }
    }

    /// The number of a limit; `None` if it cannot have one, or comes with calls and has none yet.
    pub(crate) fn of(&self, limit: &Arc<RuleLimit>) -> Option<LimitNumber> {
        self.known(limit).or_else(|| self.look_up(limit))
    }

    /// The number that the limit already has.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the lower bits are wanted")]
    pub(crate) fn known(&self, limit: &RuleLimit) -> Option<LimitNumber> {
        // The engine is in the upper bits, so that both are read at once.
        let known = limit.number().load(Ordering::Relaxed);
        let is_ours = known / u64::from(LimitNumber::COUNT) == self.engine;
        is_ours.then_some(LimitNumber::from_low_bits(known as u32))
    }

    #[cold]
    fn look_up(&self, limit: &Arc<RuleLimit>) -> Option<LimitNumber> {
        if limit.is_adhoc() || !Self::packs(limit) {
            return None;
        }
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        let address = Arc::as_ptr(limit).addr();
        let number = match limits.by_address.get(&address) {
            Some(number) => *number,
            None => {
                let number = limits.insert(limit)?;
                limits.by_address.insert(address, number);
                number
            }
        };
        self.note_size(&limits);
        self.set_known(limit, number);
        Some(number)
    }

    /// Notes the number in the limit. It is valid as long as the caller has the limit: the number
    /// of an instance that is in use elsewhere is not freed.
    fn set_known(&self, limit: &RuleLimit, number: LimitNumber) {
        let known = self.engine * u64::from(LimitNumber::COUNT) + u64::from(number.get());
        limit.number().store(known, Ordering::Relaxed);
    }

    /// Whether states of the limit can be packed.
    pub(crate) fn packs(limit: &RuleLimit) -> bool {
        limit.limit().packs() && limit.check_zone().is_ok()
    }

    /// The instance and the number of a limit that comes with calls, if it has one.
    ///
    /// The number stays valid for as long as the instance is kept. It also does while a shard is
    /// locked in which a state is stored under it.
    pub(crate) fn per_call(&self, limit: &RuleLimit) -> Option<(Arc<RuleLimit>, LimitNumber)> {
        let hash = self.hash(limit);
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        let number = *limits.by_content.get(&hash)?;
        let numbered = limits.numbered(number).filter(|found| *found.limit == *limit)?;
        numbered.found.store(true, Ordering::Relaxed);
        Some((numbered.limit.clone(), number))
    }

    /// Adds a limit that comes with calls, and counts its bytes, unless it is there.
    pub(crate) fn add_per_call(
        &self,
        limit: &Arc<RuleLimit>,
    ) -> Option<(Arc<RuleLimit>, LimitNumber)> {
        let hash = self.hash(limit);
        {
            let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
            if !limits.by_content.contains_key(&hash) {
                let number = limits.insert(limit)?;
                limits.by_content.insert(hash, number);
                // A caller that uses this very instance again does not have to look it up.
                if Self::packs(limit) {
                    self.set_known(limit, number);
                }
                self.budget.resized(0, Self::bytes(limit));
            }
            self.note_size(&limits);
        }
        self.per_call(limit)
    }

    /// Bytes of a limit that comes with calls.
    pub(crate) fn bytes(limit: &RuleLimit) -> usize {
        limit.own_bytes() + Self::EXTRA_BYTES
    }

    /// The limit of this number.
    pub(crate) fn limit(&self, number: LimitNumber) -> Option<Arc<RuleLimit>> {
        let limits = self.limits.read().unwrap_or_else(PoisonError::into_inner);
        Some(limits.numbered(number)?.limit.clone())
    }

    /// Lets the next call free unused numbers, however few limits there are.
    pub(crate) fn set_crowded(&self) {
        self.crowded.store(true, Ordering::Relaxed);
    }

    /// Frees unused numbers, if there are many limits. `used` returns the numbers that packed
    /// states refer to.
    ///
    /// A limit that only this registry owns cannot be charged, so no new state will refer to it.
    /// One that comes with calls can be found by its content, and is kept if that happened
    /// meanwhile.
    pub(crate) fn free_unused(&self, used: impl FnOnce() -> HashSet<LimitNumber>) {
        if !self.crowded.load(Ordering::Relaxed) {
            return;
        }
        let Ok(_guard) = self.freeing.try_lock() else { return };
        let candidates = {
            let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
            limits.forget_finds();
            limits.unused()
        };
        // Makes the writes of threads that dropped a limit visible.
        fence(Ordering::Acquire);
        let used = used();
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        for number in candidates.into_iter().filter(|number| !used.contains(number)) {
            if !limits.is_unused(number) {
                continue;
            }
            if let Some(limit) = limits.remove(number)
                && limit.is_adhoc()
            {
                limits.by_content.remove(&self.hash(&limit));
                self.budget.resized(Self::bytes(&limit), 0);
            }
        }
        limits.crowded_at = Self::CROWDED.max(2 * limits.len());
        self.crowded.store(false, Ordering::Relaxed);
    }

    fn note_size(&self, limits: &RegistryState) {
        if limits.len() > limits.crowded_at {
            self.set_crowded();
        }
    }

    fn hash(&self, limit: &RuleLimit) -> u64 {
        let reserved = (limit.on_reserve(), limit.on_expiry());
        self.hasher.hash_one((limit.tag().bits(), limit.limit(), reserved))
    }
}

impl RegistryState {
    fn len(&self) -> usize {
        self.by_address.len() + self.by_content.len()
    }

    fn numbered(&self, number: LimitNumber) -> Option<&NumberedLimit> {
        self.by_number.get(number.get() as usize)?.as_ref()
    }

    fn insert(&mut self, limit: &Arc<RuleLimit>) -> Option<LimitNumber> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let number = LimitNumber::new(u32::try_from(self.by_number.len()).ok()?)?;
                self.by_number.push(None);
                number
            }
        };
        let numbered = NumberedLimit { limit: limit.clone(), found: AtomicBool::new(true) };
        *self.by_number.get_mut(number.get() as usize)? = Some(numbered);
        Some(number)
    }

    fn remove(&mut self, number: LimitNumber) -> Option<Arc<RuleLimit>> {
        let entry = self.by_number.get_mut(number.get() as usize);
        let NumberedLimit { limit, .. } = entry.and_then(Option::take)?;
        self.by_address.remove(&Arc::as_ptr(&limit).addr());
        self.free.push(number);
        Some(limit)
    }

    fn forget_finds(&mut self) {
        for numbered in self.by_number.iter().flatten() {
            numbered.found.store(false, Ordering::Relaxed);
        }
    }

    fn unused(&self) -> Vec<LimitNumber> {
        let numbers = self.by_address.values().chain(self.by_content.values()).copied();
        numbers.filter(|number| self.is_unused(*number)).collect()
    }

    /// Whether only the registry owns the limit, and no call has found it since unused ones are
    /// looked for.
    fn is_unused(&self, number: LimitNumber) -> bool {
        self.numbered(number).is_some_and(|numbered| {
            let is_found = numbered.found.load(Ordering::Relaxed);
            !is_found && Arc::strong_count(&numbered.limit) == 1
        })
    }
}
