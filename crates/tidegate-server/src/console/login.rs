//! Signing in and out.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use http::header::SET_COOKIE;
use maud::{Markup, html};

use super::error_page::ErrorPage;
use super::form::{self, FormFields};
use super::layout;
use super::state::ConsoleContext;
use super::user::ConsoleUser;
use crate::transport::auth::AuthTokens;
use crate::transport::http::AppState;

/// `GET /login`
pub(super) async fn show(State(app): State<AppState>, fields: FormFields) -> Response {
    if !app.tokens.any() {
        return Redirect::to(layout::HOME).into_response();
    }
    layout::bare("Sign in", &sign_in_form(next(&fields), None)).into_response()
}

/// `POST /login`
pub(super) async fn sign_in(
    State(context): State<ConsoleContext>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let (parts, body) = request.into_parts();
    form::check_same_origin(
        &ConsoleUser::of(&context, &parts.headers),
        &parts.uri,
        &parts.headers,
    )?;
    if !context.console.allow_sign_in(context.app.client_ip(&parts)) {
        return Err(ErrorPage::too_many_attempts());
    }
    let fields = form::fields(Request::from_parts(parts, body)).await?;
    let (console, next) = (&context.console, next(&fields));
    // A copied token may have spaces around it.
    let Some(access) = context.app.tokens.access_with(fields.text("token").trim().as_bytes())
    else {
        let again = sign_in_form(next, Some("invalid token"));
        return Ok((StatusCode::FORBIDDEN, layout::bare("Sign in", &again)).into_response());
    };
    let session = console.sessions.begin(access, console.clock.elapsed());
    let session = session.map_err(|_| {
        let detail = "no random numbers available; use Authorization: Bearer";
        ErrorPage::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    let cookie = [(SET_COOKIE, console.cookie.set(&session))];
    Ok((cookie, Redirect::to(next)).into_response())
}

/// `POST /logout`
pub(super) async fn sign_out(
    State(context): State<ConsoleContext>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let headers = request.headers();
    form::check_same_origin(&ConsoleUser::of(&context, headers), request.uri(), headers)?;
    let console = &context.console;
    if let Some(id) = console.cookie.session_id(headers) {
        console.sessions.end(id);
    }
    let cookie = [(SET_COOKIE, console.cookie.delete())];
    Ok((cookie, Redirect::to(layout::HOME)).into_response())
}

/// The page to show after signing in: one of the console's, never another site.
fn next(fields: &FormFields) -> &str {
    let next = fields.text("next");
    let path = next.split('?').next().unwrap_or_default();
    let is_page = layout::NavItem::ALL.iter().any(|page| page.path() == path);
    if is_page && next.bytes().all(|b| b.is_ascii_graphic()) { next } else { layout::HOME }
}

fn sign_in_form(next: &str, error: Option<&str>) -> Markup {
    html! {
        section.signin {
            h1 { "Sign in" }
            p { "Enter a token of this server: " code { (AuthTokens::CHECK_VARIABLE) }
                " for read access, " code { (AuthTokens::ADMIN_VARIABLE) } " for changes." }
            @if let Some(error) = error {
                p.wrong role="alert" { (error) }
            }
            form method="post" action="/login" {
                input type="hidden" name="next" value=(next);
                label for="token" { "Token" }
                input #token type="password" name="token" required autofocus autocomplete="current-password"
                    spellcheck="false" autocapitalize="none";
                button type="submit" { "Sign in" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signing_in_never_redirects_to_another_site() {
        for (given, expected) in [
            ("/rules?page=2", "/rules?page=2"),
            ("/rules", "/rules"),
            ("https://evil.example/", layout::HOME),
            ("//evil.example/", layout::HOME),
            ("/\\evil.example", layout::HOME),
            ("/rules\r\nset-cookie: a", layout::HOME),
            ("/rules/../..//evil.example", layout::HOME),
            ("", layout::HOME),
        ] {
            let encoded: String = form_urlencoded::byte_serialize(given.as_bytes()).collect();
            let fields = FormFields::read(format!("next={encoded}").as_bytes());
            assert_eq!(next(&fields), expected, "{given}");
        }
    }
}
