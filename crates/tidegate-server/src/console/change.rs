//! What may change something: sent from a page of ours, by somebody with the admin token.

use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use http::StatusCode;

use super::form::{self, Fields};
use super::trouble::Trouble;
use super::visitor::{self, Visitor};
use crate::http::Door;
use crate::tokens::Access;

/// A form that may change something. A handler that takes one answers nobody else.
///
/// Its sender has signed in as admin, shows the admin token with the request, or has typed it into the field
/// [`Change::TOKEN`].
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// What stands in it.
    pub(crate) fields: Fields,
}

impl Change {
    /// The field for the admin token, in a form that asks for it.
    pub(crate) const TOKEN: &str = "token";
}

impl FromRequest<Door> for Change {
    type Rejection = Response;

    async fn from_request(request: Request, door: &Door) -> Result<Self, Response> {
        read(request, door).await.map_err(IntoResponse::into_response)
    }
}

async fn read(request: Request, door: &Door) -> Result<Change, Trouble> {
    let (parts, body) = request.into_parts();
    let visitor = Visitor::of(door, &parts.headers);
    form::is_ours(&visitor, &parts.uri, &parts.headers)?;
    if !door.tokens.has_admin() {
        let detail = "this needs an admin token, and the server has none; set TIDEGATE_ADMIN_TOKEN";
        return Err(Trouble::new(StatusCode::FORBIDDEN, detail));
    }
    let client = visitor::client(door, &parts);
    let fields = form::fields(Request::from_parts(parts, body)).await?;
    if visitor.access < Access::Admin {
        admit(door, client, fields.text(Change::TOKEN))?;
    }
    Ok(Change { fields })
}

fn admit(door: &Door, client: Option<std::net::IpAddr>, token: &str) -> Result<(), Trouble> {
    if token.is_empty() {
        let detail = "this needs the admin token; sign in with it, or type it into the form";
        return Err(Trouble::new(StatusCode::UNAUTHORIZED, detail));
    }
    if !door.console.may_try(client) {
        return Err(Trouble::too_many_attempts());
    }
    if door.tokens.access_with(token.as_bytes()) == Some(Access::Admin) {
        return Ok(());
    }
    Err(Trouble::new(StatusCode::FORBIDDEN, "that is not the admin token"))
}
