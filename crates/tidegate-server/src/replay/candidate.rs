//! One policy on the requests of a log.

use tidegate::policy::Request as _;
use tidegate::{Engine, Key, ManualClock, Memory, Micros};
use tidegate_tower::extract::TrustedProxies;

use super::entry::Entry;
use super::tally::{Fate, Questions, RuleTally, Tally};
use super::timeline::Bucket;
use crate::config::Loaded;

/// A policy, an engine of its own, and what came of it.
pub(super) struct Candidate {
    /// The file.
    pub(super) name: String,
    pub(super) loaded: Loaded,
    pub(super) tally: Tally,
    trusted: TrustedProxies,
    clock: ManualClock,
    engine: Memory,
}

impl Candidate {
    /// Bytes of state that an engine may use.
    pub(super) const CAP_BYTES: usize = Memory::DEFAULT_CAP_BYTES;

    pub(super) fn new(name: String, loaded: Loaded, questions: Questions) -> Self {
        let clock = ManualClock::new(Micros::ZERO);
        let engine = Memory::builder().cap_bytes(Self::CAP_BYTES).clock(clock.clone()).build();
        let trusted = loaded.settings.trusted_proxies.iter().copied().collect();
        let rules = loaded.policy.rules();
        let by_name = rules.iter().enumerate().map(|(i, rule)| (rule.name().into(), i)).collect();
        let tallies = rules
            .iter()
            .map(|rule| RuleTally::new(rule.name(), rule.rule().limits(), questions))
            .collect();
        Self {
            name,
            loaded,
            tally: Tally::new(by_name, tallies, questions),
            trusted,
            clock,
            engine,
        }
    }

    /// Bytes of state in use.
    pub(super) fn state_bytes(&self) -> u64 {
        self.engine.health().memory_bytes
    }

    /// Decides a request at this instant, no earlier than any before.
    pub(super) fn decide(&mut self, entry: &Entry<'_>, now: Micros) -> Fate {
        let Self { loaded, tally, trusted, clock, engine, .. } = self;
        clock.set(now);
        let seen = entry.seen_behind(trusted);
        let mut bucket = Bucket { requests: 1, ..Bucket::default() };
        let fate = match loaded.policy.plan_request(&seen, now) {
            Err(_) => {
                tally.matched += 1;
                tally.refused += 1;
                Fate::Unknown
            }
            Ok(plan) => {
                tally.note_plan(&plan);
                tally.note_needs(&plan, loaded, now);
                match plan.denied_by() {
                    Some(rule) => {
                        let address = seen.client_ip().map(|ip| ip.to_string()).unwrap_or_default();
                        tally.deny_by_list(rule.name(), Key::from(&address), now)
                    }
                    None => {
                        let would_deny = tally.would_deny;
                        let fate = tally.settle(&plan, engine, now);
                        bucket.would_deny = tally.would_deny - would_deny;
                        fate
                    }
                }
            }
        };
        if let Fate::Deny(_) = fate {
            bucket.denied = 1;
            tally.denied += 1;
        }
        tally.timeline.add(now, bucket);
        fate
    }
}
