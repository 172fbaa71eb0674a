//! A bucket of Envoy, as version 1.40 behaves.

use tidegate::Micros;

use super::judge::{TOKEN, rate};
use crate::shares::ledger::Assignment;
use tidegate_config::envoy::FillInterval;

/// The bucket of one holder, and what it has counted since its last report.
#[derive(Clone, Default, Debug)]
pub(super) struct EnvoyBucket {
    action: Option<BucketState>,
    expires: Micros,
    pub(super) allowed: u64,
    pub(super) denied: u64,
}

#[derive(Clone, Debug)]
enum BucketState {
    DenyAll,
    TokenState(TokenState),
}

#[derive(Clone, Debug)]
struct TokenState {
    burst: u64,
    tokens: u64,
    interval: FillInterval,
    level: i128,
    at: Micros,
}

impl TokenState {
    fn fill(&mut self, now: Micros) {
        let span = i128::from(now.saturating_sub(self.at).get());
        let full = i128::from(self.burst) * TOKEN;
        self.level = (self.level + rate(self.tokens, self.interval) * span).min(full);
        self.at = now;
    }
}

impl EnvoyBucket {
    pub(super) fn deny(&mut self, now: Micros, ttl: Micros) {
        (self.action, self.expires) = (Some(BucketState::DenyAll), now.saturating_add(ttl));
    }

    /// A bucket that is in use and gets another capacity or number of tokens keeps its fill ratio,
    /// in whole tokens. A change of the interval alone is ignored.
    pub(super) fn assign(&mut self, now: Micros, assignment: &Assignment, ttl: Micros) {
        let share = assignment.share;
        let is_expired = now >= self.expires;
        self.expires = now.saturating_add(ttl);
        let mut level = i128::from(share.burst) * TOKEN;
        if let Some(BucketState::TokenState(old)) = &mut self.action
            && !is_expired
        {
            old.fill(now);
            if (old.burst, old.tokens) == (share.burst, share.tokens) {
                return;
            }
            level = i128::from(share.burst) * old.level / i128::from(old.burst) / TOKEN * TOKEN;
        }
        let (burst, tokens) = (share.burst, share.tokens);
        let interval = assignment.interval;
        self.action =
            Some(BucketState::TokenState(TokenState { burst, tokens, interval, level, at: now }));
    }

    /// Whether a request is admitted.
    pub(super) fn request(&mut self, now: Micros) -> bool {
        let admitted = match &mut self.action {
            Some(BucketState::TokenState(bucket)) if now < self.expires => {
                bucket.fill(now);
                let admitted = bucket.level >= TOKEN;
                bucket.level -= if admitted { TOKEN } else { 0 };
                admitted
            }
            _ => false,
        };
        self.allowed += u64::from(admitted);
        self.denied += u64::from(!admitted);
        admitted
    }

    /// What is reported, and counted anew.
    pub(super) fn counted(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.allowed), std::mem::take(&mut self.denied))
    }

    /// The process starts anew.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }
}
