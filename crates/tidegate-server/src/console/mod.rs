//! The console: pages for the person on call and the person who chooses a limit.
//!
//! # Layout
//!
//! - `page`: what every page has around it. `assets`: the style sheet and the script. `trouble`: what went wrong.
//! - `hosts`: under which names it answers. `guard`: the headers of every answer. `visitor`: who looks.
//!   `form`: what they send. `change`: what may change something. `sessions`, `login`: who has signed in.
//! - `live`: what goes on now. `keys`: how one key stands. `playground`: limits on imagined traffic. `rules`: the policy
//!   in force.

mod assets;
mod change;
mod form;
mod guard;
mod hosts;
mod keys;
mod live;
mod login;
mod page;
mod playground;
mod rules;
mod sessions;
mod trouble;
mod visitor;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use tidegate::{Clock, Limit, Limiter, Memory};

use self::hosts::Hosts;
pub use self::hosts::{HostName, InvalidHostName};
use self::sessions::{Cookie, Sessions};
use crate::http::Door;

/// Does the door have TLS?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tls {
    /// It does.
    On,
    /// It does not.
    Off,
}

/// What the pages need besides what every call has at hand.
pub struct Console {
    hosts: Hosts,
    sessions: Sessions,
    cookie: Cookie,
    /// How often somebody may try a token, by address.
    attempts: Option<Limiter>,
    clock: Arc<dyn Clock>,
    live: live::Shared,
}

impl Console {
    /// How many tokens an address may try.
    const ATTEMPTS: &str = "10/min";
    /// What it takes to remember who has tried.
    const ATTEMPT_BYTES: usize = 1 << 20;

    /// The console of a door at this address, which people reach under these names as well.
    pub fn new(door: SocketAddr, tls: Tls, names: Vec<HostName>, clock: Arc<dyn Clock>) -> Self {
        let engine = Memory::builder().clock(clock.clone()).cap_bytes(Self::ATTEMPT_BYTES).build();
        // One that could not be read would let nobody in.
        let limit = Self::ATTEMPTS.parse::<Limit>().ok();
        Self {
            hosts: Hosts::new(door, names),
            sessions: Sessions::default(),
            cookie: Cookie::new(door.port(), tls),
            attempts: limit.map(|limit| Limiter::new(engine, limit)),
            clock,
            live: live::Shared::default(),
        }
    }

    /// May this client try a token now? Who has an address of IPv6 has 2^64 of them.
    fn may_try(&self, client: Option<IpAddr>) -> bool {
        let key = match client {
            Some(IpAddr::V6(address)) => format!("{:x?}", &address.segments()[..4]),
            Some(IpAddr::V4(address)) => address.to_string(),
            None => String::new(),
        };
        let decision = self.attempts.as_ref().map(|attempts| attempts.check_now(&*key));
        decision.is_some_and(|decision| decision.is_ok_and(|decision| decision.allowed()))
    }
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// All pages.
pub(crate) fn router(door: &Door) -> Router<Door> {
    Router::new()
        .route("/", get(live::show))
        .route("/console/live", get(live::follow))
        .route("/keys", get(keys::show))
        .route("/keys/reset", post(keys::reset))
        .route("/keys/override", post(keys::set_override))
        .route("/keys/override/end", post(keys::end_override))
        .route("/keys/take-back", post(keys::take_back))
        .route("/playground", get(playground::show))
        .route("/rules", get(rules::list))
        .route("/rules/validate", post(rules::validate))
        .route("/rules/delete", post(rules::delete))
        .route("/login", get(login::ask).post(login::sign_in))
        .route("/logout", post(login::sign_out))
        .route("/console/style.css", get(assets::style))
        .route("/console/console.js", get(assets::script))
        .route("/console/icon.svg", get(assets::icon))
        .route_layer(from_fn_with_state(door.clone(), guard::guard))
}
