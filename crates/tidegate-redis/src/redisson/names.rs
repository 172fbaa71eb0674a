//! Under which keys a limiter lies.

/// The keys of one limiter, as Redisson names them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Names {
    /// The configuration; what is left; what was taken; how far that is counted. All but the first of all, and of one
    /// client.
    keys: [String; 7],
}

impl Names {
    pub(super) fn new(name: &str, client: &str) -> Self {
        let (value, permits) = (beside(name, "value"), beside(name, "permits"));
        let (own_value, own_permits) = (beside(&value, client), beside(&permits, client));
        let (count, own_count) = (beside(&permits, "count"), beside(&own_permits, "count"));
        let name = name.to_owned();
        Self { keys: [name, value, own_value, permits, own_permits, count, own_count] }
    }

    /// The limiter's own name.
    pub(super) fn name(&self) -> &str {
        &self.keys[0]
    }

    /// In the order in which the scripts have them.
    pub(super) fn keys(&self) -> [&str; 7] {
        self.keys.each_ref().map(String::as_str)
    }
}

/// In the same slot of a Cluster as `name`: what stands in braces decides on that, or all of it.
fn beside(name: &str, suffix: &str) -> String {
    match name.contains('{') {
        true => format!("{name}:{suffix}"),
        false => format!("{{{name}}}:{suffix}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Slot;

    #[test]
    fn the_keys_are_those_of_redisson() {
        // The last two are ours.
        let keys = |name| Names::new(name, "c-1").keys[..5].to_vec();
        let plain = ["a", "{a}:value", "{a}:value:c-1", "{a}:permits", "{a}:permits:c-1"];
        assert_eq!(keys("a"), plain);
        let tagged = ["a{b}", "a{b}:value", "a{b}:value:c-1", "a{b}:permits", "a{b}:permits:c-1"];
        assert_eq!(keys("a{b}"), tagged);
    }

    #[test]
    fn the_keys_of_a_limiter_lie_in_one_slot() {
        for name in ["a", "a:b", "{a}b", "a{b}c{d}", "\u{e9} \n"] {
            let names = Names::new(name, "c-1");
            let slots = names.keys().map(Slot::of);
            assert!(slots.iter().all(|slot| *slot == slots[0]), "{names:?}");
        }
    }
}
