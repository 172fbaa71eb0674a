//! Calls that must come by the same connection, one after the other.

use std::sync::Arc;

use redis::{Cmd, Pipeline, Value};
use tokio::time::Instant;

use super::{Fault, Line, Link, LinkError, send, send_all, send_asking};

/// One connection of a link. When it is lost, calls on it are, too: they do not go on by the next one.
pub(crate) struct Pinned {
    link: Link,
    line: Arc<Line>,
}

impl Link {
    /// The connection that there is now, or that there will be before `end`.
    pub(crate) async fn pinned(&self, end: Instant) -> Result<Pinned, LinkError> {
        Ok(Pinned { link: self.clone(), line: self.line(end).await? })
    }
}

impl Pinned {
    pub(crate) async fn call_until(&self, end: Instant, cmd: &Cmd) -> Result<Value, LinkError> {
        self.link.exchange_on(&self.line, end, |connection| send(connection, cmd)).await
    }

    /// The same behind `ASKING`.
    pub(crate) async fn call_asking_until(
        &self,
        end: Instant,
        cmd: &Cmd,
    ) -> Result<Value, LinkError> {
        self.link.exchange_on(&self.line, end, |connection| send_asking(connection, cmd)).await
    }

    /// The answer to the last of these, if none is an error.
    pub(crate) async fn call_all_until(
        &self,
        end: Instant,
        cmds: &Pipeline,
    ) -> Result<Value, LinkError> {
        let last = |answers: Vec<Value>| {
            let error = answers.iter().find(|answer| matches!(answer, Value::ServerError(_)));
            error.or(answers.last()).cloned().unwrap_or(Value::Nil)
        };
        let answers = |connection| async move { send_all(connection, cmds).await.map(last) };
        self.link.exchange_on(&self.line, end, answers).await
    }

    /// Nobody is to use this connection again: it still owes an answer that will not come.
    pub(crate) fn abandon(&self) {
        let what = format!("redis at {} owes an answer; connecting again", self.line.place);
        self.link.0.core.withdraw(&self.line, &Fault(what).into());
    }
}
