//! Canonical spelling of paths and hosts.

use std::borrow::Cow;

use tidegate::policy::normalize_escapes;

/// An escaped slash, as [`normalize_escapes`] spells it.
const SLASH: &str = "%2F";

/// The canonical spelling of a path, so that no other spelling bypasses the rules for it.
///
/// Path parameters (`;x=1`) are removed from each segment: Java servers route without them. Escapes
/// are normalized by [`normalize_escapes`]. Repeated slashes become one. `.` and `..` are resolved
/// and never lead above the root. The result starts with a slash. A trailing slash is kept, and an
/// escaped slash between two names stays escaped, because their meaning depends on the service. At
/// the start or end of a segment, an escaped slash counts as a repeated one. A canonical path is
/// returned unchanged.
///
/// `path` has no query. `*`, the request target for the whole server, stays `*`.
///
/// ```
/// use tidegate_tower::extract::normalize_path;
/// for path in ["/login", "//login", "/a/../login", "/%6cogin", "/a/..;x=1/login;y"] {
///     assert_eq!(normalize_path(path), "/login");
/// }
/// ```
pub fn normalize_path(path: &str) -> Cow<'_, str> {
    if path == "*" {
        return Cow::Borrowed(path);
    }
    let escaped = match without_parameters(path) {
        Cow::Borrowed(path) => normalize_escapes(path),
        Cow::Owned(path) => Cow::Owned(normalize_escapes(&path).into_owned()),
    };
    if is_canonical(&escaped) {
        return escaped;
    }
    let mut normal = String::with_capacity(escaped.len() + 1);
    let mut segments = escaped.split('/').peekable();
    while let Some(segment) = segments.next() {
        match segment.trim_start_matches(SLASH).trim_end_matches(SLASH) {
            "" | "." => {}
            ".." => normal.truncate(normal.rfind('/').unwrap_or(0)),
            name => {
                normal.push('/');
                normal.push_str(name);
                if !segment.ends_with(SLASH) {
                    continue;
                }
            }
        }
        // The last segment names a directory: its slash is part of the path.
        if segments.peek().is_none() {
            normal.push('/');
        }
    }
    Cow::Owned(normal)
}

/// A path without the parameters of its segments. A `;` that is escaped is part of a name.
fn without_parameters(path: &str) -> Cow<'_, str> {
    if !path.contains(';') {
        return Cow::Borrowed(path);
    }
    let names = path.split('/').map(|segment| segment.split_once(';').map_or(segment, |it| it.0));
    Cow::Owned(names.collect::<Vec<_>>().join("/"))
}

/// Whether nothing is left to rewrite in a path with normalized escapes. False for some canonical
/// paths, which are then copied: `/.hidden`.
fn is_canonical(path: &str) -> bool {
    let starts_oddly = |pair: &[u8]| matches!(pair, b"//" | b"/.");
    let has_edge_slash = || path.contains("/%2F") || path.contains("%2F/") || path.ends_with(SLASH);
    path.starts_with('/') && !path.as_bytes().windows(2).any(starts_oddly) && !has_edge_slash()
}

/// The canonical spelling of a host: lower case, without the port and the trailing dot. `None` if
/// it is not a valid host.
///
/// ```
/// use tidegate_tower::extract::normalize_host;
/// assert_eq!(normalize_host("Example.COM.:8080").as_deref(), Some("example.com"));
/// assert_eq!(normalize_host("[::1]:8080").as_deref(), Some("[::1]"));
/// ```
pub fn normalize_host(host: &str) -> Option<Cow<'_, str>> {
    // The colons of an IPv6 address are inside brackets; any other colon starts a port.
    let (name, port) = match host.rfind(']') {
        Some(end) => host.split_at(end + 1),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit());
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return None;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_host = match literal {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.bytes().all(is_host_byte),
    };
    if !is_host {
        return None;
    }
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        return Some(Cow::Owned(name.to_ascii_lowercase()));
    }
    Some(Cow::Borrowed(name))
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=%".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_path_becomes_one() {
        for (path, normal) in [
            ("/", "/"),
            ("", "/"),
            ("//", "/"),
            ("login", "/login"),
            ("*", "*"),
            ("/login", "/login"),
            ("/login/", "/login/"),
            ("/login//", "/login/"),
            ("//login", "/login"),
            ("///a////b", "/a/b"),
            ("/./login", "/login"),
            ("/login/.", "/login/"),
            ("/a/..", "/"),
            ("/a/../", "/"),
            ("/a/b/..", "/a/"),
            ("/a/../login", "/login"),
            ("/a/..//../login", "/login"),
            ("/../../login", "/login"),
            ("../login", "/login"),
            ("..", "/"),
            ("/a//../b", "/b"),
            ("/...", "/..."),
            ("/.hidden", "/.hidden"),
            ("/a..", "/a.."),
            ("/%6cogin", "/login"),
            ("/%6Cogin", "/login"),
            ("/%2e/%2E%2e/login", "/login"),
            ("/a/.%2e/login", "/login"),
            ("/%7euser%2d%5f", "/~user-_"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%2f..%2Fb", "/a%2F..%2Fb"),
            ("/login%2F", "/login/"),
            ("/login%2f%2F/", "/login/"),
            ("/a%2F/b", "/a/b"),
            ("/%2Flogin", "/login"),
            ("/%2F", "/"),
            ("/a/..%2F", "/"),
            ("/a/%2F../login", "/login"),
            ("/login;x=1", "/login"),
            ("/login/;x=1", "/login/"),
            ("/login;x=1/", "/login/"),
            ("/;x/login", "/login"),
            ("/;/;x;y/login;;z", "/login"),
            (";x/login", "/login"),
            ("/a/..;/login", "/login"),
            ("/a/..;x=/y/../login", "/login"),
            ("/a/.;x/login", "/a/login"),
            ("/a/%2e%2e;x/login", "/login"),
            ("/login%2F;x", "/login/"),
            ("/login;%2F..", "/login"),
            ("/login%3Bx", "/login%3Bx"),
            ("/%256cogin", "/%256cogin"),
            ("/%c3%a9", "/%C3%A9"),
            ("/é", "/%C3%A9"),
            ("/@me", "/%40me"),
            ("/%40me", "/%40me"),
            ("/%é6", "/%25%C3%A96"),
            ("/%00", "/%00"),
            ("/%", "/%25"),
            ("/%6", "/%256"),
            ("/%zz", "/%25zz"),
            ("/%6g/../x", "/x"),
            ("/%%6c", "/%25l"),
            ("/%%36%63ogin", "/%256cogin"),
            ("/%6%63ogin", "/%256cogin"),
            ("/%/%63", "/%25/c"),
            ("/%zz%63", "/%25zzc"),
        ] {
            assert_eq!(normalize_path(path), normal, "{path:?}");
            assert_eq!(normalize_path(normal), normal, "{path:?} is normal now");
        }
    }

    #[test]
    fn normalizing_a_path_twice_changes_nothing() {
        // Every text of up to five of the characters with a special meaning.
        let alphabet = ["/", ".", "%", "2", "e", "g", ";", "%2F"];
        let mut texts = vec![String::new()];
        for _ in 0..5 {
            let longer = texts.iter().flat_map(|text| alphabet.map(|c| format!("{text}{c}")));
            texts = longer.collect();
            for text in &texts {
                let normal = normalize_path(text);
                assert!(normal.starts_with('/') && !normal.contains("//"), "{text:?}");
                assert!(!normal.split('/').any(|s| matches!(s, "." | "..")), "{text:?}");
                assert_eq!(normalize_path(&normal), normal, "{text:?}");
            }
        }
    }

    #[test]
    fn a_canonical_path_is_not_copied() {
        for path in ["/", "/login", "/a/b.c/d_e/", "*"] {
            assert!(matches!(normalize_path(path), Cow::Borrowed(_)), "{path:?}");
        }
    }

    #[test]
    fn normalizing_takes_time_linear_in_the_length() {
        assert_eq!(normalize_path(&"/a/..".repeat(200_000)), "/");
        assert_eq!(normalize_path(&"/..".repeat(200_000)), "/");
        let up = "/a".repeat(100_000) + &"/..".repeat(100_000) + "/x";
        assert_eq!(normalize_path(&up), "/x");
        assert_eq!(normalize_path(&"%".repeat(200_000)).len(), 600_001);
    }

    #[test]
    fn a_host_is_compared_without_case_port_or_final_dot() {
        for (host, normal) in [
            ("example.com", Some("example.com")),
            ("EXAMPLE.com:443", Some("example.com")),
            ("example.com.", Some("example.com")),
            ("example.com.:80", Some("example.com")),
            ("example.com:", Some("example.com")),
            ("a_b.internal", Some("a_b.internal")),
            ("127.0.0.1:8080", Some("127.0.0.1")),
            ("[2001:DB8::1]:8080", Some("[2001:db8::1]")),
            ("[::1]", Some("[::1]")),
            ("", None),
            (".", None),
            (":80", None),
            ("::1", None),
            ("[::1", None),
            ("[x]", None),
            ("[::1]x", None),
            ("example.com:80:80", None),
            ("example.com:+1", None),
            ("user@example.com", None),
            ("a b", None),
            ("a/b", None),
            ("a,b", None),
            ("é.com", None),
        ] {
            assert_eq!(normalize_host(host).as_deref(), normal, "{host:?}");
        }
    }
}
