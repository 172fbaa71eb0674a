//! Sign-in state of the console and the state of its handlers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::FromRef;
use tidegate::{Clock, Limit, Limiter, Memory};

use super::sessions::{CookieSecurity, SessionCookie, Sessions};
use crate::transport::http::AppState;

/// Sessions and sign-in attempts.
pub struct ConsoleState {
    pub(super) sessions: Sessions,
    pub(super) cookie: SessionCookie,
    /// Limits sign-in attempts per client address.
    attempts: Option<Limiter>,
    pub(super) clock: Arc<dyn Clock>,
}

impl ConsoleState {
    /// Sign-in attempts of one client address.
    const ATTEMPTS: &str = "10/min";
    /// Memory cap of the limiter for sign-in attempts.
    const ATTEMPT_BYTES: usize = 1 << 20;

    /// The console of the HTTP listener at this address.
    pub fn new(listener: SocketAddr, tls: CookieSecurity, clock: Arc<dyn Clock>) -> Self {
        let engine = Memory::builder().clock(clock.clone()).cap_bytes(Self::ATTEMPT_BYTES).build();
        // Without a limiter every attempt is denied.
        let limit = Self::ATTEMPTS.parse::<Limit>().ok();
        Self {
            sessions: Sessions::default(),
            cookie: SessionCookie::new(listener.port(), tls),
            attempts: limit.map(|limit| Limiter::new(engine, limit)),
            clock,
        }
    }

    /// Counts a sign-in attempt. IPv6 clients are counted by /64 network: a client can use all of
    /// its addresses.
    pub(super) fn allow_sign_in(&self, client: Option<IpAddr>) -> bool {
        let key = match client {
            Some(IpAddr::V6(address)) => format!("{:x?}", &address.segments()[..4]),
            Some(IpAddr::V4(address)) => address.to_string(),
            None => String::new(),
        };
        let decision = self.attempts.as_ref().map(|attempts| attempts.check_now(&*key));
        decision.is_some_and(|decision| decision.is_ok_and(|decision| decision.allowed()))
    }
}

impl fmt::Debug for ConsoleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsoleState").finish_non_exhaustive()
    }
}

/// State of the console's handlers: that of the HTTP API, and the console's own.
#[derive(Clone)]
pub struct ConsoleContext {
    /// State shared with the HTTP API.
    pub app: AppState,
    /// Sessions and sign-in attempts.
    pub console: Arc<ConsoleState>,
}

/// Handlers that need nothing of the console's take `State<AppState>`.
impl FromRef<ConsoleContext> for AppState {
    fn from_ref(context: &ConsoleContext) -> Self {
        context.app.clone()
    }
}
