//! Forms that change something: sent from a page of the console, with the admin token.

use std::net::IpAddr;

use axum::extract::{FromRef, FromRequest, Request};
use axum::response::{IntoResponse, Response};
use http::StatusCode;

use super::error_page::ErrorPage;
use super::form::{self, FormFields};
use super::state::ConsoleContext;
use super::user::ConsoleUser;
use crate::policy::Actor;
use crate::transport::auth::AccessLevel;

/// A form that may change something. As an extractor it refuses requests without admin access.
///
/// The user has signed in as admin, or the admin token is in a header or in the field
/// [`AdminForm::TOKEN`].
#[derive(Clone, Debug)]
pub(crate) struct AdminForm {
    pub(crate) fields: FormFields,
    pub(crate) by: Actor,
}

impl AdminForm {
    /// Name of the form field for the admin token.
    pub(crate) const TOKEN: &str = "token";
}

impl<S: Send + Sync> FromRequest<S> for AdminForm
where
    ConsoleContext: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        read(request, &ConsoleContext::from_ref(state)).await.map_err(IntoResponse::into_response)
    }
}

async fn read(request: Request, context: &ConsoleContext) -> Result<AdminForm, ErrorPage> {
    let (parts, body) = request.into_parts();
    let user = ConsoleUser::of(context, &parts.headers);
    form::check_same_origin(&user, &parts.uri, &parts.headers)?;
    if !context.app.tokens.has_admin() {
        let detail = "admin token required, and the server has none; set TIDEGATE_ADMIN_TOKEN";
        return Err(ErrorPage::new(StatusCode::FORBIDDEN, detail));
    }
    let client = context.app.client_ip(&parts);
    let fields = form::fields(Request::from_parts(parts, body)).await?;
    if user.access < AccessLevel::Admin {
        admit(context, client, fields.text(AdminForm::TOKEN))?;
    }
    let by = Actor { token: Some(AccessLevel::Admin.name()), address: client };
    Ok(AdminForm { fields, by })
}

fn admit(context: &ConsoleContext, client: Option<IpAddr>, token: &str) -> Result<(), ErrorPage> {
    if token.is_empty() {
        let detail = "admin token required; sign in with it, or enter it in the form";
        return Err(ErrorPage::new(StatusCode::UNAUTHORIZED, detail));
    }
    if !context.console.allow_sign_in(client) {
        return Err(ErrorPage::too_many_attempts());
    }
    if context.app.tokens.access_with(token.as_bytes()) == Some(AccessLevel::Admin) {
        return Ok(());
    }
    Err(ErrorPage::new(StatusCode::FORBIDDEN, "invalid admin token"))
}
