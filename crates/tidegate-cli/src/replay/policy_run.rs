//! One policy applied to the requests of a log.

use tidegate::policy::Request as _;
use tidegate::{Key, Limiter, ManualClock, Memory, Micros, Policy};
use tidegate_tower::extract::TrustedProxies;

use super::counts::{CountOptions, PolicyCounts, RequestOutcome, RuleCounts};
use super::log_entry::AccessLogEntry;
use super::timeline::TimelineBucket;
use tidegate_config::LoadedPolicy;

/// A policy with its own engine and counts.
pub(crate) struct PolicyRun {
    pub(crate) name: String,
    pub(crate) loaded: LoadedPolicy,
    pub(crate) counts: PolicyCounts,
    trusted: TrustedProxies,
    clock: ManualClock,
    /// Without rules of its own: it gets plans of the policy.
    limiter: Limiter,
}

impl PolicyRun {
    pub(crate) fn new(name: String, loaded: LoadedPolicy, options: CountOptions) -> Self {
        let clock = ManualClock::new(Micros::ZERO);
        let engine = Memory::builder().clock(clock.clone()).build();
        let trusted = loaded.settings.trusted_proxies.iter().copied().collect();
        let rules = loaded.policy.rules();
        let by_name = rules.iter().enumerate().map(|(i, rule)| (rule.name().into(), i)).collect();
        let rule_counts = rules
            .iter()
            .map(|rule| RuleCounts::new(rule.name(), rule.rule().limits(), options))
            .collect();
        Self {
            name,
            loaded,
            counts: PolicyCounts::new(by_name, rule_counts, options),
            trusted,
            clock,
            limiter: Limiter::with_policy(engine, Policy::default()),
        }
    }

    /// Whether some keys found no room for their state.
    pub(crate) fn has_overflowed(&self) -> bool {
        let memory = self.limiter.engine().health().memory;
        memory.kinds().any(|(_, kind)| kind.overflows > 0)
    }

    /// Decides a request at this time, which must not be before that of an earlier call.
    pub(crate) fn decide(&mut self, entry: &AccessLogEntry<'_>, now: Micros) -> RequestOutcome {
        let Self { loaded, counts, trusted, clock, limiter, .. } = self;
        clock.set(now);
        let request = entry.request_behind(trusted);
        let mut bucket = TimelineBucket { requests: 1, ..TimelineBucket::default() };
        let outcome = match loaded.policy.plan_request(&request, now) {
            Err(_) => {
                counts.matched += 1;
                counts.refused += 1;
                RequestOutcome::Unknown
            }
            Ok(plan) => {
                counts.note_plan(&plan);
                counts.note_sizes(&plan, loaded, now);
                match plan.denied_by() {
                    Some(rule) => {
                        let address = request.client_ip().map(|ip| ip.to_string());
                        let key = address.unwrap_or_default();
                        counts.deny_by_list(rule.name(), Key::from(&key), now)
                    }
                    None => {
                        let would_deny = counts.would_deny;
                        let outcome = counts.settle(&plan, limiter, now);
                        bucket.would_deny = counts.would_deny - would_deny;
                        outcome
                    }
                }
            }
        };
        if let RequestOutcome::Deny(_) = outcome {
            bucket.denied = 1;
            counts.denied += 1;
        }
        counts.timeline.add(now, bucket);
        outcome
    }
}
