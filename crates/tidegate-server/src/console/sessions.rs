//! Who has signed in.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use http::HeaderMap;
use http::header::COOKIE;
use tidegate::Micros;

use crate::tokens::Access;

/// Who has signed in, until the process ends.
#[derive(Default, Debug)]
pub(super) struct Sessions {
    by_id: Mutex<HashMap<Id, Session>>,
}

/// Drawn at random: whoever knows it is whoever has signed in.
type Id = [u8; 32];

#[derive(Clone, Copy, Debug)]
struct Session {
    access: Access,
    ends: Micros,
}

/// The system has no random numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoRandom;

impl Sessions {
    /// How long one lasts.
    pub(super) const LASTS: Micros = Micros::new(12 * 3_600 * 1_000_000);
    /// The most of them; for one more the oldest ends.
    const MOST: usize = 256;

    /// Begins one, and tells its id as a cookie can hold it.
    pub(super) fn begin(&self, access: Access, elapsed: Micros) -> Result<String, NoRandom> {
        let mut id = Id::default();
        getrandom::fill(&mut id).map_err(|_| NoRandom)?;
        let mut by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        by_id.retain(|_, session| session.ends > elapsed);
        while by_id.len() >= Self::MOST {
            let oldest = by_id.iter().min_by_key(|(_, session)| session.ends).map(|(id, _)| *id);
            let Some(oldest) = oldest else { break };
            by_id.remove(&oldest);
        }
        by_id.insert(id, Session { access, ends: elapsed.saturating_add(Self::LASTS) });
        Ok(hex(&id))
    }

    /// What somebody may do who shows this id.
    pub(super) fn access(&self, id: &str, elapsed: Micros) -> Option<Access> {
        let by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        let session = by_id.get(&unhex(id)?)?;
        (session.ends > elapsed).then_some(session.access)
    }

    /// Ends one.
    pub(super) fn end(&self, id: &str) {
        if let Some(id) = unhex(id) {
            self.by_id.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        }
    }
}

/// The cookie that holds the id of a session.
#[derive(Clone, Debug)]
pub(super) struct Cookie {
    name: Box<str>,
    secure: &'static str,
}

impl Cookie {
    /// Browsers keep cookies by host and not by port, so that two servers on one machine need two names.
    pub(super) fn new(port: u16, tls: super::Tls) -> Self {
        match tls {
            super::Tls::On => {
                Self { name: format!("__Host-tidegate_{port}").into(), secure: "; Secure" }
            }
            super::Tls::Off => Self { name: format!("tidegate_{port}").into(), secure: "" },
        }
    }

    /// What a browser shows.
    pub(super) fn shown<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let all = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|one| one.split_once('='));
        pairs.find(|(name, _)| name.trim() == &*self.name).map(|(_, id)| id.trim())
    }

    /// Has a browser keep it. No script reads it, and no other site's request brings it along.
    pub(super) fn keep(&self, id: &str) -> String {
        let seconds = Sessions::LASTS.get() / 1_000_000;
        self.write(id, seconds)
    }

    /// Has a browser forget it.
    pub(super) fn forget(&self) -> String {
        self.write("", 0)
    }

    fn write(&self, id: &str, seconds: u64) -> String {
        let Self { name, secure } = self;
        format!("{name}={id}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
    }
}

fn hex(id: &Id) -> String {
    let mut text = String::with_capacity(2 * id.len());
    for byte in id {
        // A string takes whatever it is given.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn unhex(text: &str) -> Option<Id> {
    let mut id = Id::default();
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
    fn a_session_ends_by_itself_by_command_or_for_room() {
        let sessions = Sessions::default();
        let start = Micros::ZERO;
        let one = sessions.begin(Access::Admin, start).unwrap();
        assert_eq!(one.len(), 64);
        assert_eq!(sessions.access(&one, start), Some(Access::Admin));
        assert_eq!(sessions.access(&one, Sessions::LASTS), None);
        for wrong in ["", "00", &"0".repeat(64), &"\u{e9}".repeat(32), &"+1".repeat(32)] {
            assert_eq!(sessions.access(wrong, start), None);
        }
        sessions.end(&one);
        assert_eq!(sessions.access(&one, start), None);
        let first = sessions.begin(Access::Check, start).unwrap();
        let later = Micros::new(1);
        let second = sessions.begin(Access::Check, later).unwrap();
        for _ in 1..Sessions::MOST {
            sessions.begin(Access::Check, later).unwrap();
        }
        assert_eq!(sessions.access(&first, later), None);
        assert_eq!(sessions.by_id.lock().unwrap().len(), Sessions::MOST);
        assert!(sessions.access(&second, later).is_some());
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let cookie = Cookie::new(8080, super::super::Tls::Off);
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "a=b; tidegate_80=no".parse().unwrap());
        headers.append(COOKIE, "x; tidegate_8080=yes".parse().unwrap());
        assert_eq!(cookie.shown(&headers), Some("yes"));
        assert!(!cookie.keep("id").contains("Secure"));
        let secure = Cookie::new(8080, super::super::Tls::On).keep("id");
        assert!(secure.starts_with("__Host-") && secure.ends_with("; Secure"), "{secure}");
    }
}
