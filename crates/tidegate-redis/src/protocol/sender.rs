//! Sends scripts to the servers that own their keys.

use std::sync::Arc;

use redis::Cmd;
use tidegate::{Clock, SystemClock};
use tokio::time::Instant;

use crate::connection::error::CallError;
use crate::connection::server_error::ErrorClass;
use crate::durability::replica_ack::{ConfirmableReply, SendVia};
use crate::protocol::encode::ScriptTime;
use crate::protocol::scripts::Script;
use crate::topology::hash_slot::HashSlot;
use crate::topology::router::Router;

/// Sends scripts. Clones share connections.
#[derive(Clone)]
pub(crate) struct ScriptSender {
    pub(crate) router: Router,
    /// Replaces the clock of Redis; for tests.
    pub(crate) test_clock: Option<Arc<dyn Clock>>,
}

impl ScriptSender {
    /// Runs a script whose keys are all in `slot`; `push` appends the keys and arguments.
    pub(crate) async fn eval(
        &self,
        script: &Script,
        slot: HashSlot,
        via: SendVia,
        until: Instant,
        push: impl Fn(&mut Cmd),
    ) -> Result<ConfirmableReply, CallError> {
        let command = |name: &str, script: &str| {
            let mut cmd = redis::cmd(name);
            push(cmd.arg(script));
            cmd
        };
        let evalsha = command("EVALSHA", &script.digest);
        match self.router.send(until, slot, &evalsha, via).await {
            // Nothing was executed: the server does not have the script yet.
            Err(CallError::ServerError(error))
                if ErrorClass::of(&error) == ErrorClass::NoScript =>
            {
                let eval = command("EVAL", &script.text);
                self.router.send(until, slot, &eval, via).await
            }
            reply => reply,
        }
    }

    /// The time to send with a script now.
    pub(crate) fn time(&self) -> ScriptTime {
        let instant = self.test_clock.as_ref().map(|clock| clock.now());
        ScriptTime { instant, guess: instant.unwrap_or_else(|| SystemClock.now()) }
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.test_clock.clone().unwrap_or_else(|| Arc::new(SystemClock))
    }
}
