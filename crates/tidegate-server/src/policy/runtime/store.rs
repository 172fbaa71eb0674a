//! Where the fields are kept: in Redis for a fleet, or in this process.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::{Clock, EngineError, Micros};
use tidegate_redis::{RuntimeHash, RuntimeVersion, RuntimeWrite};

/// A reply of a store.
pub(crate) type StoreReply<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, EngineError>> + Send + 'a>>;

/// Names and values of all fields.
pub(crate) type StoredFields = Vec<(String, String)>;

/// Keeps the fields of all servers that use it.
pub(crate) trait RuntimeStore: Send + Sync {
    fn poll(&self) -> StoreReply<'_, RuntimeVersion>;

    /// The current version and all fields.
    fn read(&self) -> StoreReply<'_, (RuntimeVersion, StoredFields)>;

    /// Makes a change; `None` if the head is not the expected one.
    fn write<'a>(&'a self, write: &'a RuntimeWrite) -> StoreReply<'a, Option<RuntimeVersion>>;

    /// Whether other servers use it too, and it may be unreachable.
    fn is_shared(&self) -> bool;
}

impl RuntimeStore for RuntimeHash {
    fn poll(&self) -> StoreReply<'_, RuntimeVersion> {
        Box::pin(self.poll())
    }

    fn read(&self) -> StoreReply<'_, (RuntimeVersion, StoredFields)> {
        Box::pin(self.read())
    }

    fn write<'a>(&'a self, write: &'a RuntimeWrite) -> StoreReply<'a, Option<RuntimeVersion>> {
        Box::pin(self.write(write))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// Fields in this process. It starts empty: a copy from a file is offered to it.
pub(crate) struct ProcessStore {
    clock: Arc<dyn Clock>,
    contents: Mutex<StoreContents>,
}

/// What a store contains.
#[derive(Clone, Default, Debug)]
pub(super) struct StoreContents {
    pub(super) head: String,
    pub(super) fields: BTreeMap<String, String>,
}

impl StoreContents {
    pub(super) fn version(&self, time: Micros) -> RuntimeVersion {
        let (head, len) = (self.head.clone(), self.fields.len() as u64);
        RuntimeVersion { time, head, len, servers: 1 }
    }

    pub(super) fn stored(&self) -> StoredFields {
        self.fields.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// Whether the change was made.
    pub(super) fn write(&mut self, write: &RuntimeWrite) -> bool {
        if self.head != write.expected {
            return false;
        }
        self.head.clone_from(&write.head);
        self.fields.extend(write.set.iter().cloned());
        self.fields.retain(|name, _| !write.delete.contains(name));
        true
    }
}

impl ProcessStore {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, contents: Mutex::default() }
    }

    fn contents(&self) -> MutexGuard<'_, StoreContents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RuntimeStore for ProcessStore {
    fn poll(&self) -> StoreReply<'_, RuntimeVersion> {
        Box::pin(async { Ok(self.contents().version(self.clock.now())) })
    }

    fn read(&self) -> StoreReply<'_, (RuntimeVersion, StoredFields)> {
        Box::pin(async {
            let contents = self.contents();
            Ok((contents.version(self.clock.now()), contents.stored()))
        })
    }

    fn write<'a>(&'a self, write: &'a RuntimeWrite) -> StoreReply<'a, Option<RuntimeVersion>> {
        Box::pin(async {
            let mut contents = self.contents();
            Ok(contents.write(write).then(|| contents.version(self.clock.now())))
        })
    }

    fn is_shared(&self) -> bool {
        false
    }
}
