//! Commands on a store in this process, with a clock of the test.

use std::collections::HashMap;

use tidegate_module::{CommandCall, Found, ReplyResult, StoredValue};

#[derive(Default)]
pub(crate) struct MemoryStore {
    pub(crate) now: u64,
    /// Values, and when they expire in ms.
    pub(crate) values: HashMap<Vec<u8>, (Vec<u8>, u64)>,
    pub(crate) writes: usize,
}

/// One call on a [`MemoryStore`].
pub(crate) struct MemoryCall<'a> {
    store: &'a mut MemoryStore,
    arguments: Vec<&'a [u8]>,
}

impl MemoryStore {
    pub(crate) fn run(
        &mut self,
        arguments: &[&[u8]],
        command: impl FnOnce(&mut MemoryCall<'_>) -> ReplyResult,
    ) -> ReplyResult {
        // A clock that steps back finds keys that would have expired.
        let now = self.now / 1_000;
        self.values.retain(|_, (_, expires)| *expires + 10_000 > now);
        command(&mut MemoryCall { store: self, arguments: arguments.to_vec() })
    }
}

impl<'a> CommandCall<'a> for MemoryCall<'a> {
    type Key = Vec<u8>;

    fn argument(&self, index: usize) -> Option<&'a [u8]> {
        self.arguments.get(index).copied()
    }

    fn now(&self) -> u64 {
        self.store.now
    }

    fn open(&mut self, argument: usize) -> Option<Vec<u8>> {
        self.argument(argument).map(<[u8]>::to_vec)
    }

    fn read(&mut self, key: &Vec<u8>) -> Found {
        match self.store.values.get(key) {
            Some((value, _)) => Found::Value(StoredValue::new(value)),
            None => Found::Missing,
        }
    }

    fn overwrite(&mut self, key: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
        self.store.writes += 1;
        let (value, _) = self.store.values.get_mut(key).unwrap();
        value[offset..][..bytes.len()].copy_from_slice(bytes);
    }

    fn set(&mut self, key: &mut Vec<u8>, value: &[u8], expires_ms: u64) {
        self.store.writes += 1;
        self.store.values.insert(key.clone(), (value.to_vec(), expires_ms));
    }
}
