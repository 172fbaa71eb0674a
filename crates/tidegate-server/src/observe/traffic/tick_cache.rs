//! Values that are made once a second and shared between requests; never without a request.

/// The values made since the last sample, by what was requested.
#[derive(Debug)]
pub(crate) struct TickCache<K, V> {
    tick: u64,
    values: Vec<(K, V)>,
}

impl<K, V> Default for TickCache<K, V> {
    fn default() -> Self {
        Self { tick: 0, values: Vec::new() }
    }
}

impl<K: PartialEq, V: Clone> TickCache<K, V> {
    /// The value made since this sample. Drops all older ones.
    pub(crate) fn get(&mut self, tick: u64, key: &K) -> Option<V> {
        if self.tick != tick {
            *self = Self { tick, values: Vec::new() };
        }
        self.values.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone())
    }

    /// Keeps a value, if there are fewer than `max`. Nothing is kept before the first sample.
    pub(crate) fn keep(&mut self, max: usize, key: K, value: &V) {
        if self.tick > 0 && self.values.len() < max {
            self.values.push((key, value.clone()));
        }
    }

    /// Drops everything if it was last requested before this sample.
    pub(super) fn drop_before(&mut self, tick: u64) {
        if self.tick < tick {
            self.values.clear();
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}
