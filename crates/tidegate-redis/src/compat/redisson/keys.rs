//! The key names of a limiter.

/// The keys of one limiter, as Redisson names them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RedissonKeys {
    /// The configuration; then the remaining permits, the entries, and the progress of counting,
    /// each for all clients and for one client.
    keys: [String; 7],
}

impl RedissonKeys {
    pub(crate) fn new(name: &str, client: &str) -> Self {
        let (value, permits) = (suffixed(name, "value"), suffixed(name, "permits"));
        let (own_value, own_permits) = (suffixed(&value, client), suffixed(&permits, client));
        let (count, own_count) = (suffixed(&permits, "count"), suffixed(&own_permits, "count"));
        let name = name.to_owned();
        Self { keys: [name, value, own_value, permits, own_permits, count, own_count] }
    }

    /// The limiter's own name.
    pub(crate) fn name(&self) -> &str {
        &self.keys[0]
    }

    /// In the order of KEYS of the scripts.
    pub(crate) fn keys(&self) -> [&str; 7] {
        self.keys.each_ref().map(String::as_str)
    }
}

/// A key in the same slot of a Cluster as `name`.
fn suffixed(name: &str, suffix: &str) -> String {
    match name.contains('{') {
        true => format!("{name}:{suffix}"),
        false => format!("{{{name}}}:{suffix}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::hash_slot::HashSlot;

    #[test]
    fn the_keys_are_those_of_redisson() {
        // The last two do not exist in Redisson.
        let keys = |name| RedissonKeys::new(name, "c-1").keys[..5].to_vec();
        let plain = ["a", "{a}:value", "{a}:value:c-1", "{a}:permits", "{a}:permits:c-1"];
        assert_eq!(keys("a"), plain);
        let tagged = ["a{b}", "a{b}:value", "a{b}:value:c-1", "a{b}:permits", "a{b}:permits:c-1"];
        assert_eq!(keys("a{b}"), tagged);
    }

    #[test]
    fn the_keys_of_a_limiter_are_in_one_slot() {
        for name in ["a", "a:b", "{a}b", "a{b}c{d}", "\u{e9} \n"] {
            let names = RedissonKeys::new(name, "c-1");
            let slots = names.keys().map(HashSlot::of);
            assert!(slots.iter().all(|slot| *slot == slots[0]), "{names:?}");
        }
    }
}
