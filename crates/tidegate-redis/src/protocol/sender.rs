//! Sends scripts to the servers that own their keys: the one place that decides by which command.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tidegate::{Clock, SystemClock};
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::connection::error::CallError;
use crate::connection::server_error::{ErrorClass, FunctionRefusal, ModuleRefusal};
use crate::durability::replica_ack::{ConfirmableReply, SendVia};
use crate::protocol::encode::ScriptTime;
use crate::protocol::functions::{CommandForm, FunctionSupport, LoadGuard};
use crate::protocol::scripts::{LIBRARY, Script, lean};
use crate::topology::hash_slot::HashSlot;
use crate::topology::router::Router;

/// Sends scripts. Clones share connections.
#[derive(Clone)]
pub(crate) struct ScriptSender {
    pub(crate) router: Router,
    /// Replaces the clock of Redis; for tests.
    pub(crate) test_clock: Option<Arc<dyn Clock>>,
    pub(crate) functions: Arc<FunctionSupport>,
}

impl ScriptSender {
    /// The deadline of `FUNCTION LOAD`, for which no call waits.
    const LOAD_DEADLINE: Duration = Duration::from_secs(1);

    /// Runs a script whose keys are all in `slot`; `push` appends the keys and arguments.
    ///
    /// Sends `TG.DECIDE` to a server with the native module if that has the script, `FCALL` if the
    /// script is a function on the servers, else `EVALSHA`, and `EVAL` to a server that does not
    /// have the script. Each is sent only after the one before was refused
    /// without being executed.
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
        // The native module has the keys, arguments and reply of this script.
        if std::ptr::eq(script, lean()) && self.router.has_module(slot) {
            let mut decide = redis::cmd("TG.DECIDE");
            push(&mut decide);
            let reply = self.router.send(until, slot, &decide, via).await;
            let Err(CallError::ServerError(error)) = &reply else { return reply };
            let Some(refusal) = ModuleRefusal::of(error) else { return reply };
            self.router.module_refused(slot, refusal);
        }
        if let Some(function) = script.function
            && self.command_form(slot) == CommandForm::Function
        {
            let fcall = command("FCALL", function);
            let reply = self.router.send(until, slot, &fcall, via).await;
            let Err(CallError::ServerError(error)) = &reply else { return reply };
            let Some(refusal) = FunctionRefusal::of(error) else { return reply };
            if let Some(guard) = self.functions.refused(refusal, Instant::now()) {
                self.start_loading(slot, guard);
            }
        }
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

    /// How a script with a function is sent. Begins to load the library if that is due.
    fn command_form(&self, slot: HashSlot) -> CommandForm {
        let (form, load) = self.functions.choose(Instant::now());
        if let Some(guard) = load {
            self.start_loading(slot, guard);
        }
        form
    }

    fn start_loading(&self, slot: HashSlot, guard: LoadGuard) {
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(self.clone().load_library(slot, guard));
        }
    }

    /// Loads the library on the server that owns `slot`. Replicas get it from there.
    async fn load_library(self, slot: HashSlot, guard: LoadGuard) {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(&LIBRARY.text);
        let until = Instant::now() + Self::LOAD_DEADLINE;
        let reply = self.router.send(until, slot, &load, SendVia::Shared).await;
        guard.finish(reply.map(drop), Instant::now());
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
