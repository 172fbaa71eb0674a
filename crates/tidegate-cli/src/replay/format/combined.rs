//! Common and combined log format of nginx and Apache.
//!
//! `host ident user [time] "request" status bytes "referer" "user agent"`; the common format lacks
//! the last two. Also accepted: Apache's variant that begins with the virtual host, and a quoted
//! `X-Forwarded-For` at the end, as in nginx's packages.

use std::borrow::Cow;
use std::net::IpAddr;

use memchr::{memchr, memchr2, memmem, memrchr};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use super::timestamp::CommonLogTime;
use crate::replay::log_entry::{AccessLogEntry, ClientOrigin, LineError, address};

pub(crate) fn parse<'a>(
    line: &'a [u8],
    time: &mut CommonLogTime,
) -> Result<AccessLogEntry<'a>, LineError> {
    // The user before the time comes from the client and may contain brackets, but no quotes.
    let after = memmem::find(line, b"] \"").ok_or("missing [time]")?;
    let bracket = memrchr(b'[', &line[..after]).ok_or("missing [time]")?;
    let (before, rest) = (&line[..bracket], &line[bracket + 1..]);
    let end = after - bracket - 1;
    let time = time.parse(&rest[..end]);
    let at = time.ok_or("invalid time; expected 10/Oct/2000:13:55:36 -0700")?;
    let mut entry = AccessLogEntry::new(at);
    let mut words = before.split(|&b| b == b' ').filter(|word| !word.is_empty());
    let first = words.next().ok_or("missing client address")?;
    entry.from = ip(first).map(ClientOrigin::Peer);
    if entry.from.is_none() {
        // Apache's vhost_combined begins with the virtual host; otherwise this is a host name.
        let second = words.next().and_then(ip).map(ClientOrigin::Peer);
        if let (Some(_), Ok(host)) = (second, std::str::from_utf8(first)) {
            entry.from = second;
            entry.set_host(host);
        }
    }
    let mut rest = &rest[end + 1..];
    let request = quoted(&mut rest).ok_or("missing \"request\"")?;
    request_line(request, &mut entry)?;
    for name in ["referer", "user-agent", "x-forwarded-for"] {
        let Some(value) = quoted(&mut rest) else { break };
        let is_list = |b: &u8| b.is_ascii_hexdigit() || b".:, []".contains(b);
        // The meaning of a further field is unknown, unless it can only be a list of addresses.
        if name == "x-forwarded-for" && !value.iter().all(is_list) {
            break;
        }
        if value != b"-" {
            entry.push_header(name, text(value));
        }
    }
    Ok(entry)
}

/// `GET /path?query HTTP/1.1`
fn request_line<'a>(request: &'a [u8], entry: &mut AccessLogEntry<'a>) -> Result<(), LineError> {
    let space = memchr(b' ', request).ok_or("the request has no method and path")?;
    let (method, rest) = (&request[..space], &request[space + 1..]);
    let is_method =
        !method.is_empty() && method.iter().all(|b| b.is_ascii_alphabetic() || b"-_".contains(b));
    if !is_method {
        return Err("the request has no method");
    }
    let target = match memchr::memrchr(b' ', rest) {
        Some(at) if rest[at + 1..].starts_with(b"HTTP/") => &rest[..at],
        _ => rest,
    };
    entry.method = text(method);
    if entry.method.eq_ignore_ascii_case("connect") && !target.starts_with(b"/") {
        // The target of CONNECT is a host.
        entry.set_owned_host(text(target));
        return entry.set_target(Cow::Borrowed("/"));
    }
    entry.set_target(target_text(target))
}

/// The next quoted part, without the quotes. A backslash escapes the next character.
fn quoted<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let start = memchr(b'"', rest)? + 1;
    let mut at = start;
    loop {
        at += memchr2(b'"', b'\\', rest.get(at..)?)?;
        if rest[at] == b'"' {
            let part = &rest[start..at];
            *rest = &rest[at + 1..];
            return Some(part);
        }
        at += 2;
    }
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    plain(bytes).unwrap_or_else(|| String::from_utf8_lossy(&unescape(bytes)).into_owned().into())
}

/// As [`text`], with bytes that are not printable ASCII as `%FF`, which is valid in a path and
/// equal for every rule.
fn target_text(bytes: &[u8]) -> Cow<'_, str> {
    const NON_GRAPHIC: &AsciiSet = &CONTROLS.add(b' ');
    plain(bytes).unwrap_or_else(|| percent_encode(&unescape(bytes), NON_GRAPHIC).to_string().into())
}

/// The text itself, if it has no escape and is UTF-8.
fn plain(bytes: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(bytes).ok()?;
    memchr(b'\\', bytes).is_none().then_some(Cow::Borrowed(text))
}

/// Undoes the escapes of the log.
fn unescape(mut bytes: &[u8]) -> Vec<u8> {
    let mut unescaped = Vec::with_capacity(bytes.len());
    let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    while let Some((&byte, after)) = bytes.split_first() {
        let code = after.get(1..3).and_then(hex);
        let (plain, rest) = match (byte, after) {
            (b'\\', [b'x', ..]) if code.is_some() => (code.unwrap_or_default(), &after[3..]),
            (b'\\', [b'n', rest @ ..]) => (b'\n', rest),
            (b'\\', [b't', rest @ ..]) => (b'\t', rest),
            (b'\\', [b'r', rest @ ..]) => (b'\r', rest),
            (b'\\', [other, rest @ ..]) => (*other, rest),
            _ => (byte, after),
        };
        unescaped.push(plain);
        bytes = rest;
    }
    unescaped
}

fn ip(word: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(word).ok().and_then(address)
}
