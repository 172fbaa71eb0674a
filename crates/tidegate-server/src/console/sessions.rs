//! Sessions and their cookie.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use http::HeaderMap;
use http::header::COOKIE;
use tidegate::Micros;

use crate::transport::auth::AccessLevel;

/// Sessions of signed-in users. They end with the process.
#[derive(Default, Debug)]
pub(super) struct Sessions {
    by_id: Mutex<HashMap<SessionId, ConsoleSession>>,
}

/// A random number that authenticates the user.
type SessionId = [u8; 32];

#[derive(Clone, Copy, Debug)]
struct ConsoleSession {
    access: AccessLevel,
    ends: Micros,
}

/// The operating system returned no random numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct RandomUnavailable;

impl Sessions {
    /// Lifetime of a session.
    pub(super) const LIFETIME: Micros = Micros::new(12 * 3_600 * 1_000_000);
    /// Upper bound; a new session then replaces the oldest.
    const MAX_SESSIONS: usize = 256;

    /// Starts a session and returns its id in hexadecimal.
    pub(super) fn begin(
        &self,
        access: AccessLevel,
        elapsed: Micros,
    ) -> Result<String, RandomUnavailable> {
        let mut id = SessionId::default();
        getrandom::fill(&mut id).map_err(|_| RandomUnavailable)?;
        let mut by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        by_id.retain(|_, session| session.ends > elapsed);
        while by_id.len() >= Self::MAX_SESSIONS {
            let oldest = by_id.iter().min_by_key(|(_, session)| session.ends).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            by_id.remove(&oldest);
        }
        by_id.insert(id, ConsoleSession { access, ends: elapsed.saturating_add(Self::LIFETIME) });
        Ok(hex(&id))
    }

    /// Access level of the session with this id.
    pub(super) fn access(&self, id: &str, elapsed: Micros) -> Option<AccessLevel> {
        let by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        let session = by_id.get(&unhex(id)?)?;
        (session.ends > elapsed).then_some(session.access)
    }

    pub(super) fn end(&self, id: &str) {
        if let Some(id) = unhex(id) {
            self.by_id.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
    }
}

/// Whether the session cookie needs TLS: `On` if the listener has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CookieSecurity {
    /// `Secure`, with the prefix `__Host-`.
    On,
    /// Also sent over plain HTTP.
    Off,
}

/// The cookie with the id of a session.
#[derive(Clone, Debug)]
pub(super) struct SessionCookie {
    name: Box<str>,
    secure: &'static str,
}

impl SessionCookie {
    /// The name contains the port: browsers store cookies per host, so two servers on one machine
    /// need two names.
    pub(super) fn new(port: u16, tls: CookieSecurity) -> Self {
        match tls {
            CookieSecurity::On => {
                Self { name: format!("__Host-tidegate_{port}").into(), secure: "; Secure" }
            }
            CookieSecurity::Off => Self { name: format!("tidegate_{port}").into(), secure: "" },
        }
    }

    /// The session id in the request headers.
    pub(super) fn session_id<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let all = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|one| one.split_once('='));
        pairs.find(|(name, _)| name.trim() == &*self.name).map(|(_, id)| id.trim())
    }

    /// The `Set-Cookie` value for a session. Scripts cannot read it, and browsers do not send it
    /// with cross-site requests.
    pub(super) fn set(&self, id: &str) -> String {
        let seconds = Sessions::LIFETIME.get() / 1_000_000;
        self.write(id, seconds)
    }

    /// The `Set-Cookie` value that deletes the cookie.
    pub(super) fn delete(&self) -> String {
        self.write("", 0)
    }

    fn write(&self, id: &str, seconds: u64) -> String {
        let Self { name, secure } = self;
        format!("{name}={id}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
    }
}

fn hex(id: &SessionId) -> String {
    let mut text = String::with_capacity(2 * id.len());
    for byte in id {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn unhex(text: &str) -> Option<SessionId> {
    let mut id = SessionId::default();
    if text.len() != 2 * id.len() || !text.is_ascii() {
        return None;
    }
    for (byte, at) in id.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_after_its_lifetime_on_sign_out_or_for_a_newer_one() {
        let sessions = Sessions::default();
        let start = Micros::ZERO;
        let one = sessions.begin(AccessLevel::Admin, start).unwrap();
        assert_eq!(one.len(), 64);
        assert_eq!(sessions.access(&one, start), Some(AccessLevel::Admin));
        assert_eq!(sessions.access(&one, Sessions::LIFETIME), None);
        for wrong in ["", "00", &"0".repeat(64), &"\u{e9}".repeat(32), &"+1".repeat(32)] {
            assert_eq!(sessions.access(wrong, start), None);
        }
        sessions.end(&one);
        assert_eq!(sessions.access(&one, start), None);
        let first = sessions.begin(AccessLevel::Check, start).unwrap();
        let later = Micros::new(1);
        let second = sessions.begin(AccessLevel::Check, later).unwrap();
        for _ in 1..Sessions::MAX_SESSIONS {
            sessions.begin(AccessLevel::Check, later).unwrap();
        }
        assert_eq!(sessions.access(&first, later), None);
        assert_eq!(sessions.by_id.lock().unwrap().len(), Sessions::MAX_SESSIONS);
        assert!(sessions.access(&second, later).is_some());
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let cookie = SessionCookie::new(8080, CookieSecurity::Off);
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "a=b; tidegate_80=no".parse().unwrap());
        headers.append(COOKIE, "x; tidegate_8080=yes".parse().unwrap());
        assert_eq!(cookie.session_id(&headers), Some("yes"));
        assert!(!cookie.set("id").contains("Secure"));
        let secure = SessionCookie::new(8080, CookieSecurity::On).set("id");
        assert!(secure.starts_with("__Host-") && secure.ends_with("; Secure"), "{secure}");
    }
}
