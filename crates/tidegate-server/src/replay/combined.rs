//! The common and the combined log format of nginx and Apache.
//!
//! `host ident user [time] "request" status bytes "referer" "user agent"`, the last two in the combined one alone. Apache's
//! variant with the virtual host in front is read too, and what nginx's packages add at the end: the quoted
//! `X-Forwarded-For`.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use memchr::{memchr, memchr2, memmem, memrchr};

use super::entry::{Entry, Fault, Origin, address};
use super::instant::CommonTime;

pub(super) fn parse<'a>(line: &'a [u8], time: &mut CommonTime) -> Result<Entry<'a>, Fault> {
    // The user before it is whatever a client says, but for quotes.
    let behind = memmem::find(line, b"] \"").ok_or("no [time] in it")?;
    let bracket = memrchr(b'[', &line[..behind]).ok_or("no [time] in it")?;
    let (before, rest) = (&line[..bracket], &line[bracket + 1..]);
    let end = behind - bracket - 1;
    let at = time.parse(&rest[..end]).ok_or("the time is not like 10/Oct/2000:13:55:36 -0700")?;
    let mut entry = Entry::new(at);
    let mut words = before.split(|&b| b == b' ').filter(|word| !word.is_empty());
    let first = words.next().ok_or("no address in front")?;
    entry.from = ip(first).map(Origin::Peer);
    if entry.from.is_none() {
        // Apache's vhost_combined begins with the virtual host. Otherwise it is the client's name.
        let second = words.next().and_then(ip).map(Origin::Peer);
        if let (Some(_), Ok(host)) = (second, std::str::from_utf8(first)) {
            entry.from = second;
            entry.set_host(host);
        }
    }
    let mut rest = &rest[end + 1..];
    let request = quoted(&mut rest).ok_or("no \"request\" in it")?;
    request_line(request, &mut entry)?;
    for name in ["referer", "user-agent", "x-forwarded-for"] {
        let Some(value) = quoted(&mut rest) else { break };
        let is_list = |b: &u8| b.is_ascii_hexdigit() || b".:, []".contains(b);
        // What comes behind is anybody's guess, unless it can be nothing else.
        if name == "x-forwarded-for" && !value.iter().all(is_list) {
            break;
        }
        if value != b"-" {
            entry.push_header(name, text(value, Plain::Keeps));
        }
    }
    Ok(entry)
}

/// `GET /path?query HTTP/1.1`
fn request_line<'a>(request: &'a [u8], entry: &mut Entry<'a>) -> Result<(), Fault> {
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
    entry.method = text(method, Plain::Keeps);
    if entry.method.eq_ignore_ascii_case("connect") && !target.starts_with(b"/") {
        // What is asked for is a host.
        entry.set_owned_host(text(target, Plain::Keeps));
        return entry.set_target(Cow::Borrowed("/"));
    }
    entry.set_target(text(target, Plain::IsEscaped))
}

/// The next part in quotes, without them. A backslash takes the character behind it along.
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

/// What becomes of bytes that cannot stand in a path as they are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plain {
    Keeps,
    /// It becomes `%FF`: the same to every rule.
    IsEscaped,
}

/// What was written, with the escapes of the log undone.
fn text(bytes: &[u8], plain: Plain) -> Cow<'_, str> {
    if memchr(b'\\', bytes).is_none()
        && let Ok(text) = std::str::from_utf8(bytes)
    {
        return Cow::Borrowed(text);
    }
    let mut undone = Vec::with_capacity(bytes.len());
    let mut push = |byte: u8| match plain {
        Plain::IsEscaped if !byte.is_ascii_graphic() => {
            undone.extend(format!("%{byte:02X}").bytes())
        }
        _ => undone.push(byte),
    };
    let mut rest = bytes;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after) {
            (b'\\', [b'x', high, low, tail @ ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                push(hex(*high) << 4 | hex(*low));
                rest = tail;
            }
            (b'\\', [escaped, tail @ ..]) => {
                push(match escaped {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    other => *other,
                });
                rest = tail;
            }
            _ => push(byte),
        }
    }
    Cow::Owned(String::from_utf8_lossy(&undone).into_owned())
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// An address. Those of IPv4 are most of them and quickly read.
fn ip(word: &[u8]) -> Option<IpAddr> {
    let mut parts = [0_u8; 4];
    let mut words = word.split(|&b| b == b'.');
    let is_v4 = parts.iter_mut().all(|part| {
        let digits = words.next().unwrap_or_default();
        let is_short = matches!(digits, [_] | [b'1'..=b'9', _] | [b'1'..=b'9', _, _]);
        let value = super::instant::number(digits).and_then(|value| u8::try_from(value).ok());
        value.filter(|_| is_short).map(|value| *part = value).is_some()
    });
    if is_v4 && words.next().is_none() {
        return Some(Ipv4Addr::from(parts).into());
    }
    std::str::from_utf8(word).ok().and_then(address)
}
