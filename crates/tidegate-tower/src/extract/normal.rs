//! One spelling for paths and hosts that mean the same.

use std::borrow::Cow;

use tidegate::policy::one_spelling;

/// A path as rules compare it, so that no other spelling of a path slips past its rule.
///
/// It is brought to [`one_spelling`]; then repeated slashes become one, and `.` and `..` are resolved
/// and never lead above the root. It starts with a slash. A slash at the end stays, and an escaped
/// slash stays escaped: what these mean is for the service behind to say. A normal path stays what it
/// is.
///
/// It takes a path alone, without a query. `*`, which stands for the whole server, stays `*`.
///
/// ```
/// use tidegate_tower::extract::normal_path;
/// for path in ["/login", "//login", "/a/../login", "/%6cogin", "/a/%2e%2E/./login"] {
///     assert_eq!(normal_path(path), "/login");
/// }
/// ```
pub fn normal_path(path: &str) -> Cow<'_, str> {
    if path == "*" {
        return Cow::Borrowed(path);
    }
    let spelled = one_spelling(path);
    let is_odd = !spelled.starts_with('/')
        || spelled.as_bytes().windows(2).any(|pair| matches!(pair, b"//" | b"/."));
    if !is_odd {
        return spelled;
    }
    let mut normal = String::with_capacity(spelled.len() + 1);
    let mut segments = spelled.split('/').peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "" | "." => {}
            ".." => normal.truncate(normal.rfind('/').unwrap_or(0)),
            _ => {
                normal.push('/');
                normal.push_str(segment);
                continue;
            }
        }
        // The last segment names a directory: its slash is part of the path.
        if segments.peek().is_none() {
            normal.push('/');
        }
    }
    Cow::Owned(normal)
}

/// A host as rules compare it: lower case, without a port and without the dot of the root. `None`
/// for what cannot be a host.
///
/// ```
/// use tidegate_tower::extract::normal_host;
/// assert_eq!(normal_host("Example.COM.:8080").as_deref(), Some("example.com"));
/// assert_eq!(normal_host("[::1]:8080").as_deref(), Some("[::1]"));
/// ```
pub fn normal_host(host: &str) -> Option<Cow<'_, str>> {
    // The colons of an IPv6 address stand in brackets; any other begins a port.
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
            assert_eq!(normal_path(path), normal, "{path:?}");
            assert_eq!(normal_path(normal), normal, "{path:?} is normal now");
        }
    }

    #[test]
    fn a_normal_path_stays_what_it_is_whatever_the_input() {
        // Every text of up to six of the characters that mean something.
        let alphabet = ['/', '.', '%', '2', 'e', 'g'];
        let mut texts = vec![String::new()];
        for _ in 0..6 {
            let longer = texts.iter().flat_map(|text| alphabet.map(|c| format!("{text}{c}")));
            texts = longer.collect();
            for text in &texts {
                let normal = normal_path(text);
                assert!(normal.starts_with('/') && !normal.contains("//"), "{text:?}");
                assert!(!normal.split('/').any(|s| matches!(s, "." | "..")), "{text:?}");
                assert_eq!(normal_path(&normal), normal, "{text:?}");
            }
        }
    }

    #[test]
    fn a_path_that_is_normal_is_not_copied() {
        for path in ["/", "/login", "/a/b.c/d_e/", "*"] {
            assert!(matches!(normal_path(path), Cow::Borrowed(_)), "{path:?}");
        }
    }

    #[test]
    fn long_paths_take_time_in_proportion() {
        assert_eq!(normal_path(&"/a/..".repeat(200_000)), "/");
        assert_eq!(normal_path(&"/..".repeat(200_000)), "/");
        let up = "/a".repeat(100_000) + &"/..".repeat(100_000) + "/x";
        assert_eq!(normal_path(&up), "/x");
        assert_eq!(normal_path(&"%".repeat(200_000)).len(), 600_001);
    }

    #[test]
    fn a_host_is_known_without_case_port_or_final_dot() {
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
            assert_eq!(normal_host(host).as_deref(), normal, "{host:?}");
        }
    }
}
