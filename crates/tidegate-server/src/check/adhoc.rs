//! Rules made from ad-hoc limits and from `CL.THROTTLE`, cached between calls.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate::{Limit, Rule};

use super::decision::CheckError;
use super::request::Throttle;

/// The rules of the ad-hoc limits that recent requests have used.
#[derive(Default, Debug)]
pub(super) struct AdhocRules {
    limits: RuleCache<Box<str>>,
    throttles: RuleCache<Throttle>,
}

impl AdhocRules {
    /// The rule of an ad-hoc limit in the notation, for example `10/s`.
    pub(super) fn limit(&self, text: &str) -> Result<Rule, CheckError> {
        self.limits.get(text, || text.parse().map(Rule::adhoc).map_err(CheckError::Limit))
    }

    /// The rule of redis-cell's `CL.THROTTLE`.
    pub(super) fn throttle(&self, throttle: Throttle) -> Result<Rule, CheckError> {
        self.throttles.get(&throttle, || throttle_rule(throttle))
    }
}

fn throttle_rule(throttle: Throttle) -> Result<Rule, CheckError> {
    let period = Duration::from_secs(throttle.period);
    let burst = throttle.max_burst.checked_add(1).ok_or(CheckError::Throttle)?;
    if throttle.count == 0 {
        return Err(CheckError::Throttle);
    }
    let limit = Limit::per(throttle.count, period).burst(burst).build();
    limit.map(Rule::throttle).map_err(|_| CheckError::Throttle)
}

/// At most [`RuleCache::CAPACITY`] rules that were made for earlier calls.
#[derive(Debug)]
struct RuleCache<K>(Mutex<HashMap<K, Rule>>);

impl<K> Default for RuleCache<K> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

impl<K: Eq + Hash> RuleCache<K> {
    const CAPACITY: usize = 1_024;

    fn get<Q>(
        &self,
        key: &Q,
        make: impl FnOnce() -> Result<Rule, CheckError>,
    ) -> Result<Rule, CheckError>
    where
        K: std::borrow::Borrow<Q>,
        Q: Eq + Hash + ToOwned + ?Sized,
        Q::Owned: Into<K>,
    {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rule) = lock().get(key) {
            return Ok(rule.clone());
        }
        let rule = make()?;
        let mut rules = lock();
        if rules.len() >= Self::CAPACITY {
            // A full cache means that most calls bring a new limit: an eviction order would not
            // save them anything.
            rules.clear();
        }
        rules.insert(key.to_owned().into(), rule.clone());
        Ok(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_bounded_and_keeps_no_invalid_limit() {
        let cache: RuleCache<Box<str>> = RuleCache::default();
        let len = || cache.0.lock().unwrap().len();
        let make = |text: &str| {
            cache.get(text, || text.parse().map(Rule::adhoc).map_err(CheckError::Limit))
        };
        for count in 1..=3 * RuleCache::<Box<str>>::CAPACITY {
            make(&format!("{count}/s")).unwrap();
            assert!((1..=RuleCache::<Box<str>>::CAPACITY).contains(&len()));
        }
        let before = len();
        make("5/parsec").unwrap_err();
        assert_eq!(len(), before, "an invalid limit is not cached");
        make("7/s").unwrap();
        let known = cache.get("7/s", || Err(CheckError::AdhocDisabled));
        assert_eq!(known.unwrap().limits()[0].limit().to_string(), "7/s");
    }
}
