//! Deciding as an engine does: look at every limit, then charge all of them or none.

use std::collections::VecDeque;
use std::sync::Arc;

use tidegate_core::{Cost, Holds, Micros, Packed, State, Wait};

use super::candidate::Candidate;
use crate::RuleLimit;

/// What one request was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// May it pass?
    pub allowed: bool,
    /// When to come back; the longest of the limits that say no.
    pub retry_after: Wait,
    /// How long it has to wait for its turn.
    pub delay: Micros,
}

/// The limits of a candidate, and what they remember of every key.
#[derive(Debug)]
pub(super) struct Meters {
    meters: Vec<Meter>,
}

/// One limit, and what it remembers.
#[derive(Debug)]
pub(super) struct Meter {
    rule: Arc<RuleLimit>,
    memory: Memory,
    /// What it thinks of the request that is being decided.
    thinks: Thinks,
}

#[derive(Clone, Copy, Debug)]
struct Thinks {
    told: Told,
    /// Used if the request passes, and if not.
    used: [u64; 2],
    /// What would be remembered.
    left: Option<Packed>,
}

#[derive(Debug)]
enum Memory {
    /// Two numbers for each key.
    Packed(Vec<Option<Packed>>),
    /// A state for each key.
    Kept(Vec<Option<State>>),
    /// When the holders of each key leave, the next first: all stay equally long.
    Held { stay: Micros, leaving: Vec<VecDeque<Micros>> },
}

impl Meters {
    pub(super) fn new(candidate: &Candidate, keys: usize, stay: Micros) -> Self {
        let meter = |rule: &Arc<RuleLimit>| {
            let limit = rule.limit();
            let memory = match limit.lease() {
                Some(lease) => {
                    Memory::Held { stay: stay.min(lease), leaving: vec![VecDeque::new(); keys] }
                }
                None if limit.packs() => Memory::Packed(vec![None; keys]),
                None => Memory::Kept(vec![None; keys]),
            };
            let told = Told { allowed: true, retry_after: Wait::NONE, delay: Micros::ZERO };
            Meter { rule: rule.clone(), memory, thinks: Thinks { told, used: [0; 2], left: None } }
        };
        Self { meters: candidate.rule().limits().iter().map(meter).collect() }
    }

    /// Decides a request, and charges it if it passes.
    pub(super) fn decide(&mut self, key: usize, now: Micros) -> Told {
        let mut all = Told { allowed: true, retry_after: Wait::NONE, delay: Micros::ZERO };
        for meter in &mut self.meters {
            meter.look(key, now);
            let told = &meter.thinks.told;
            all.allowed &= told.allowed;
            all.retry_after = all.retry_after.max(told.retry_after);
            all.delay = all.delay.max(told.delay);
        }
        if all.allowed {
            self.meters.iter_mut().for_each(|meter| meter.charge(key, now));
        } else {
            all.delay = Micros::ZERO;
        }
        all
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Meter> {
        self.meters.iter()
    }
}

impl Meter {
    /// Did it say yes to the request that was decided last?
    pub(super) fn allowed(&self) -> bool {
        self.thinks.told.allowed
    }

    /// Does it give turns?
    pub(super) fn gives_turns(&self) -> bool {
        self.rule.limit().is_queue()
    }

    /// The turn that it gave the request that was decided last.
    pub(super) fn delay(&self) -> Micros {
        self.thinks.told.delay
    }

    /// What its key had used after the request that was decided last.
    pub(super) fn used_then(&self, passed: bool) -> u64 {
        self.thinks.used[usize::from(passed)]
    }

    /// What a key has used now.
    pub(super) fn used(&self, key: usize, now: Micros) -> u64 {
        let (limit, at) = (self.rule.limit(), self.rule.moment(now));
        let used = |state: Option<&State>| limit.standing(state, Holds::NONE, &at).used;
        match &self.memory {
            Memory::Packed(states) => {
                used(states[key].and_then(|packed| limit.unpack(packed)).as_ref())
            }
            Memory::Kept(states) => used(states[key].as_ref()),
            Memory::Held { leaving, .. } => {
                leaving[key].iter().filter(|leaves| **leaves > now).count() as u64
            }
        }
    }

    fn look(&mut self, key: usize, now: Micros) {
        let (limit, capacity) = (self.rule.limit(), self.rule.limit().capacity());
        let at = self.rule.moment(now);
        if let Memory::Packed(states) = &mut self.memory {
            if let Some((verdict, left)) = limit.decide(states[key], &at, Cost::ONE) {
                let used = capacity - verdict.remaining;
                let before = used.saturating_sub(u64::from(verdict.allowed));
                let told = Told {
                    allowed: verdict.allowed,
                    retry_after: verdict.retry_after,
                    delay: verdict.delay,
                };
                self.thinks = Thinks { told, used: [before, used], left };
                return;
            }
            // Numbers that cannot be packed are kept as they are, from here on.
            let unpacked = |packed: &Option<Packed>| packed.and_then(|packed| limit.unpack(packed));
            self.memory = Memory::Kept(states.iter().map(unpacked).collect());
        }
        match &mut self.memory {
            Memory::Packed(_) => {}
            Memory::Kept(states) => {
                let verdict = limit.look(states[key].as_ref(), Holds::NONE, &at, Cost::ONE);
                let used = capacity.saturating_sub(verdict.remaining);
                let told = Told {
                    allowed: verdict.allowed,
                    retry_after: verdict.retry_after,
                    delay: verdict.delay,
                };
                self.thinks = Thinks { told, used: [used, used + 1], left: None };
            }
            Memory::Held { leaving, .. } => {
                let leaving = &mut leaving[key];
                while leaving.front().is_some_and(|leaves| *leaves <= now) {
                    leaving.pop_front();
                }
                let held = leaving.len() as u64;
                let retry_after = match leaving.front() {
                    _ if held < capacity => Wait::NONE,
                    Some(leaves) => Wait::For(leaves.saturating_sub(now)),
                    None => Wait::Never,
                };
                let told = Told { allowed: held < capacity, retry_after, delay: Micros::ZERO };
                self.thinks = Thinks { told, used: [held, held + 1], left: None };
            }
        }
    }

    fn charge(&mut self, key: usize, now: Micros) {
        match &mut self.memory {
            Memory::Packed(states) => states[key] = self.thinks.left,
            Memory::Kept(states) => {
                self.rule.limit().charge(&mut states[key], &self.rule.moment(now), Cost::ONE, None);
            }
            Memory::Held { stay, leaving } => leaving[key].push_back(now.saturating_add(*stay)),
        }
    }
}
