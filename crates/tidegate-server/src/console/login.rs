//! Signing in and out.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::StatusCode;
use http::header::SET_COOKIE;
use maud::{Markup, html};

use super::form::{self, Fields};
use super::page;
use super::trouble::Trouble;
use super::visitor::{self, Visitor};
use crate::http::Door;
use crate::tokens::Tokens;

/// `GET /login`
pub(super) async fn ask(State(door): State<Door>, fields: Fields) -> Response {
    if !door.tokens.any() {
        return Redirect::to(page::HOME).into_response();
    }
    page::bare("Sign in", &sign_in_form(next(&fields), None)).into_response()
}

/// `POST /login`
pub(super) async fn sign_in(
    State(door): State<Door>,
    request: Request,
) -> Result<Response, Trouble> {
    let (parts, body) = request.into_parts();
    form::is_ours(&Visitor::of(&door, &parts.headers), &parts.uri, &parts.headers)?;
    if !door.console.may_try(visitor::client(&door, &parts)) {
        return Err(Trouble::too_many_attempts());
    }
    let fields = form::fields(Request::from_parts(parts, body)).await?;
    let (console, next) = (&door.console, next(&fields));
    // Whoever copies a token brings along what stands around it.
    let Some(access) = door.tokens.access_with(fields.text("token").trim().as_bytes()) else {
        let again = sign_in_form(next, Some("that token opens nothing here"));
        return Ok((StatusCode::FORBIDDEN, page::bare("Sign in", &again)).into_response());
    };
    let session = console.sessions.begin(access, console.clock.elapsed());
    let session = session.map_err(|_| {
        let detail = "the system has no random numbers to give; use Authorization: Bearer";
        Trouble::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    let cookie = [(SET_COOKIE, console.cookie.keep(&session))];
    Ok((cookie, Redirect::to(next)).into_response())
}

/// `POST /logout`
pub(super) async fn sign_out(
    State(door): State<Door>,
    request: Request,
) -> Result<Response, Trouble> {
    let headers = request.headers();
    form::is_ours(&Visitor::of(&door, headers), request.uri(), headers)?;
    let console = &door.console;
    if let Some(id) = console.cookie.shown(headers) {
        console.sessions.end(id);
    }
    let cookie = [(SET_COOKIE, console.cookie.forget())];
    Ok((cookie, Redirect::to(page::HOME)).into_response())
}

/// Where to go on: a page of ours, and nowhere else.
fn next(fields: &Fields) -> &str {
    let next = fields.text("next");
    let path = next.split('?').next().unwrap_or_default();
    let is_page = page::Nav::ALL.iter().any(|page| page.path() == path);
    if is_page && next.bytes().all(|b| b.is_ascii_graphic()) { next } else { page::HOME }
}

fn sign_in_form(next: &str, wrong: Option<&str>) -> Markup {
    html! {
        section.signin {
            h1 { "Sign in" }
            p { "Show the token of this server: the one in " code { (Tokens::CHECK_VARIABLE) }
                " lets you look, the one in " code { (Tokens::ADMIN_VARIABLE) } " lets you change things." }
            @if let Some(wrong) = wrong {
                p.wrong role="alert" { (wrong) }
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
    fn after_signing_in_nobody_is_sent_elsewhere() {
        for (given, expected) in [
            ("/rules?page=2", "/rules?page=2"),
            ("/rules", "/rules"),
            ("https://evil.example/", page::HOME),
            ("//evil.example/", page::HOME),
            ("/\\evil.example", page::HOME),
            ("/rules\r\nset-cookie: a", page::HOME),
            ("/rules/../..//evil.example", page::HOME),
            ("", page::HOME),
        ] {
            let encoded: String = form_urlencoded::byte_serialize(given.as_bytes()).collect();
            let fields = Fields::read(format!("next={encoded}").as_bytes());
            assert_eq!(next(&fields), expected, "{given}");
        }
    }
}
