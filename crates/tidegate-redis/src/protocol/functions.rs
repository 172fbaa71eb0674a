//! Whether the servers have the functions of this version.
//!
//! A server that has functions keeps the library until `FUNCTION FLUSH`, also across restarts, and
//! its replicas have it, too. Calls never wait for it: while it is loaded, and where it cannot be,
//! they are sent as scripts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::error::CallError;
use crate::connection::server_error::{FunctionRefusal, is_loaded_already, lacks_permission};

/// How long scripts are used before functions are tried again: each attempt that lacks a permission
/// is an entry of `ACL LOG`.
const PAUSE: Duration = Duration::from_secs(600);

/// How a call is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CommandForm {
    Function,
    Script,
}

/// What is known about functions on the servers of one deployment.
pub(crate) struct FunctionSupport(Mutex<LibraryState>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LibraryState {
    /// Not tried yet, or a server has lost the library.
    Missing,
    Loading,
    Loaded,
    /// This user may not load it, but another one may have.
    MaybeLoaded,
    /// Scripts are used until then.
    Unavailable(Instant),
    /// Functions are not used (tests).
    Off,
}

impl FunctionSupport {
    pub(crate) fn new(is_on: bool) -> Arc<Self> {
        let state = if is_on { LibraryState::Missing } else { LibraryState::Off };
        Arc::new(Self(Mutex::new(state)))
    }

    /// How the next call is sent. With a guard, the library is to be loaded.
    pub(crate) fn choose(self: &Arc<Self>, now: Instant) -> (CommandForm, Option<LoadGuard>) {
        let mut state = self.lock();
        let is_due = match *state {
            LibraryState::Loaded | LibraryState::MaybeLoaded => {
                return (CommandForm::Function, None);
            }
            LibraryState::Missing => true,
            LibraryState::Unavailable(until) => now >= until,
            LibraryState::Loading | LibraryState::Off => false,
        };
        if is_due {
            *state = LibraryState::Loading;
        }
        (CommandForm::Script, is_due.then(|| LoadGuard(Arc::clone(self))))
    }

    /// A server has refused `FCALL`. With a guard, the library is to be loaded on that server: in a
    /// Cluster the others may have it.
    pub(crate) fn refused(
        self: &Arc<Self>,
        refusal: FunctionRefusal,
        now: Instant,
    ) -> Option<LoadGuard> {
        let mut state = self.lock();
        *state = match (refusal, *state) {
            (FunctionRefusal::NotLoaded, LibraryState::Loaded) => {
                *state = LibraryState::Loading;
                return Some(LoadGuard(Arc::clone(self)));
            }
            (FunctionRefusal::NotAvailable, _)
            | (FunctionRefusal::NotLoaded, LibraryState::MaybeLoaded) => unavailable(now),
            (_, state) => state,
        };
        None
    }

    fn lock(&self) -> MutexGuard<'_, LibraryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unavailable(now: Instant) -> LibraryState {
    LibraryState::Unavailable(now + PAUSE)
}

/// The library is being loaded. When dropped without a result, it is still missing.
pub(crate) struct LoadGuard(Arc<FunctionSupport>);

impl LoadGuard {
    /// Stores the result of `FUNCTION LOAD`.
    pub(crate) fn finish(self, reply: Result<(), CallError>, now: Instant) {
        let state = match reply {
            Ok(()) => LibraryState::Loaded,
            Err(CallError::ServerError(error)) if is_loaded_already(&error) => LibraryState::Loaded,
            Err(CallError::ServerError(error)) if lacks_permission(&error) => {
                LibraryState::MaybeLoaded
            }
            // No functions, or a proxy without them.
            Err(CallError::ServerError(_)) => unavailable(now),
            // There is no connection: try again.
            Err(_) => LibraryState::Missing,
        };
        *self.0.lock() = state;
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if *state == LibraryState::Loading {
            *state = LibraryState::Missing;
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    fn server_error(line: &str) -> Result<(), CallError> {
        let reply = parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        Err(CallError::ServerError(Arc::new(reply.extract_error().unwrap_err())))
    }

    /// After this reply to `FUNCTION LOAD`.
    fn support_after(reply: Result<(), CallError>, now: Instant) -> Arc<FunctionSupport> {
        let support = FunctionSupport::new(true);
        let (form, guard) = support.choose(now);
        assert_eq!(form, CommandForm::Script, "no call waits for the library");
        assert!(support.choose(now).1.is_none(), "it is loaded once");
        guard.unwrap().finish(reply, now);
        support
    }

    /// The next call is sent as a script, and the library is loaded after the pause.
    fn assert_paused(support: &Arc<FunctionSupport>, now: Instant) {
        let (form, guard) = support.choose(now + PAUSE / 2);
        assert!(form == CommandForm::Script && guard.is_none());
        assert!(support.choose(now + PAUSE).1.is_some());
    }

    #[test]
    fn a_server_without_functions_is_sent_scripts_and_tried_again_later() {
        let now = Instant::now();
        for line in [
            "ERR unknown command `FUNCTION`, with args beginning with: `LOAD`",
            "ERR unsupported command",
            "ERR Error compiling function: 1: unexpected symbol",
        ] {
            assert_paused(&support_after(server_error(line), now), now);
        }
    }

    #[test]
    fn without_the_permission_to_load_a_library_of_the_administrator_is_used() {
        let denied = "NOPERM User tg has no permissions to run the 'function|load' command";
        let now = Instant::now();
        let support = support_after(server_error(denied), now);
        assert_eq!(support.choose(now).0, CommandForm::Function);
        assert!(support.refused(FunctionRefusal::ThisCall, now).is_none());
        assert_eq!(support.choose(now).0, CommandForm::Function);
        assert!(support.refused(FunctionRefusal::NotLoaded, now).is_none());
        assert_paused(&support, now);
    }

    #[test]
    fn a_lost_library_is_loaded_again() {
        let now = Instant::now();
        for reply in [Ok(()), server_error("ERR Library 'tidegate_1' already exists")] {
            let support = support_after(reply, now);
            assert_eq!(support.choose(now).0, CommandForm::Function);
            let guard = support.refused(FunctionRefusal::NotLoaded, now);
            let (form, second) = support.choose(now);
            assert!(form == CommandForm::Script && second.is_none(), "it is loaded once");
            drop(guard.unwrap());
            assert!(support.choose(now).1.is_some(), "the task was dropped");
        }
        let support = support_after(Err(CallError::TimedOut), now);
        assert!(support.choose(now).1.is_some(), "there was no connection");
    }

    #[test]
    fn without_the_permission_to_call_functions_scripts_are_used() {
        let now = Instant::now();
        let support = support_after(Ok(()), now);
        assert!(support.refused(FunctionRefusal::NotAvailable, now).is_none());
        assert_paused(&support, now);
    }

    #[test]
    fn functions_that_are_off_are_never_loaded() {
        let (form, guard) = FunctionSupport::new(false).choose(Instant::now());
        assert!(form == CommandForm::Script && guard.is_none());
    }
}
