//! Who looks at a page, and what they may do.

use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Redirect, Response};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};

use super::trouble::Trouble;
use crate::http::{Door, connection::Peer, token};
use crate::tokens::Access;

/// Somebody who may look. A handler that takes one answers nobody else: others are asked to sign in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Visitor {
    /// What they may do.
    pub(crate) access: Access,
    shown: Shown,
    tokens: TokensOfServer,
}

/// What somebody has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shown {
    Nothing,
    Session,
    Token,
}

/// Which tokens there are, so that nobody is asked for one that nobody has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TokensOfServer {
    None,
    CheckOnly,
    WithAdmin,
}

impl Visitor {
    /// Whoever it is, whether they may look or not.
    pub(super) fn of(door: &Door, headers: &HeaderMap) -> Self {
        let console = &door.console;
        let by_token = token(headers).and_then(|token| door.tokens.access_with(token));
        let by_session = || {
            let id = console.cookie.shown(headers)?;
            console.sessions.access(id, console.clock.elapsed())
        };
        let (access, shown) = match by_token {
            Some(access) => (Some(access), Shown::Token),
            None => match by_session() {
                Some(access) => (Some(access), Shown::Session),
                None => (None, Shown::Nothing),
            },
        };
        let tokens = match (door.tokens.any(), door.tokens.has_admin()) {
            (false, _) => TokensOfServer::None,
            (true, false) => TokensOfServer::CheckOnly,
            (true, true) => TokensOfServer::WithAdmin,
        };
        Self { access: access.unwrap_or(Access::Nothing).max(door.tokens.access()), shown, tokens }
    }

    /// May they look?
    pub(super) fn may_look(&self) -> bool {
        self.access >= Access::Check
    }

    /// Have they signed in?
    pub(super) fn has_session(&self) -> bool {
        self.shown == Shown::Session
    }

    /// Did they show a token with the request itself, as no browser does by itself?
    pub(super) fn has_token(&self) -> bool {
        self.shown == Shown::Token
    }

    /// Could they do more if they signed in?
    pub(super) fn could_sign_in(&self) -> bool {
        match self.tokens {
            TokensOfServer::None => false,
            TokensOfServer::CheckOnly => self.access < Access::Check,
            TokensOfServer::WithAdmin => self.access < Access::Admin,
        }
    }

    /// Does a form that changes something need a field for the admin token?
    pub(crate) fn needs_token(&self) -> bool {
        self.access < Access::Admin
    }

    /// Can anybody change anything?
    pub(crate) fn can_change(&self) -> bool {
        self.tokens == TokensOfServer::WithAdmin
    }
}

impl FromRequestParts<Door> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Response> {
        let visitor = Self::of(door, &parts.headers);
        if visitor.may_look() {
            return Ok(visitor);
        }
        let is_event_stream = parts
            .headers
            .get(http::header::ACCEPT)
            .is_some_and(|accepted| accepted.as_bytes().starts_with(b"text/event-stream"));
        if parts.method == Method::GET && token(&parts.headers).is_none() && !is_event_stream {
            let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
            let next: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
            return Err(Redirect::to(&format!("/login?next={next}")).into_response());
        }
        let detail = "sign in at /login, or show the token as Authorization: Bearer";
        Err(Trouble::new(StatusCode::UNAUTHORIZED, detail).into_response())
    }
}

/// Where a request comes from, as far as it can be believed.
pub(super) fn client(door: &Door, parts: &Parts) -> Option<IpAddr> {
    let peer = parts.extensions.get::<Peer>()?.0;
    Some(door.service.active().trusted.client_ip(peer, &parts.headers))
}
