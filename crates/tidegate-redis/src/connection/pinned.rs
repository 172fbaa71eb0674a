//! Several commands on the same connection.

use std::sync::Arc;

use redis::Value;
use tokio::time::Instant;

use crate::connection::error::{CallError, ConnectFailure};
use crate::connection::supervisor::{LiveConnection, SupervisedConnection, WireCommand};

/// The current connection of a supervised one. When it is lost, calls on it fail: they do not use
/// the next one.
pub(crate) struct Pinned {
    connection: SupervisedConnection,
    live: Arc<LiveConnection>,
}

impl SupervisedConnection {
    /// The current connection, or the first one before `end`.
    pub(crate) async fn pinned(&self, end: Instant) -> Result<Pinned, CallError> {
        Ok(Pinned { connection: self.clone(), live: self.live(end).await? })
    }
}

impl Pinned {
    pub(crate) async fn send(
        &self,
        end: Instant,
        outgoing: WireCommand<'_>,
    ) -> Result<Value, CallError> {
        self.connection.send_on(&self.live, end, outgoing).await
    }

    /// Takes this connection out of use: a reply to `WAIT` is outstanding and would block later
    /// calls.
    pub(crate) fn abandon(&self) {
        let text = format!("reply to WAIT outstanding at {}; reconnecting", self.live.endpoint);
        self.connection.0.inner.retire(&self.live, &ConnectFailure(text).into());
    }
}
