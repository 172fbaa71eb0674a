//! The client address behind proxies.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName};
use tidegate::Network;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Proxies whose `X-Forwarded-For` is trusted. By default, those on this machine.
///
/// The `Forwarded` header of RFC 7239 is not read: a proxy that writes one of the two headers
/// passes the other on as the client sent it.
///
/// ```
/// use tidegate_tower::extract::TrustedProxies;
/// let proxies: TrustedProxies = ["10.0.0.0/8".parse()?].into_iter().collect();
/// let mut headers = http::HeaderMap::new();
/// headers.insert("x-forwarded-for", "6.6.6.6, 203.0.113.7, 10.0.0.2".parse()?);
/// let client = proxies.client_ip("10.0.0.1".parse()?, &headers);
/// assert_eq!(client.to_string(), "203.0.113.7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrustedProxies(Box<[Network]>);

impl TrustedProxies {
    /// At most this many entries of `X-Forwarded-For` are read.
    pub const MAX_HOPS: usize = 64;

    /// Is this the address of a trusted proxy?
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(address))
    }

    /// The address of the client of a connection from `peer`.
    ///
    /// Every proxy appends the address that it was called from. So the list is read from the right,
    /// over all lines of the header, past trusted proxies to the first other address. The client
    /// may have forged all entries left of it. If the peer is not a trusted proxy, the header is
    /// not read.
    ///
    /// Reading stops at an entry that is not an address (empty, `unknown`, a name), and after
    /// [`TrustedProxies::MAX_HOPS`] entries. The client is then the last trusted proxy: its clients
    /// share one address rather than choosing one. The same applies to a list that contains only
    /// trusted proxies.
    ///
    /// An entry may have a port and brackets. IPv4-mapped addresses become IPv4.
    pub fn client_ip(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        let lines = headers.get_all(&X_FORWARDED_FOR).iter().rev();
        let mut hops = lines.flat_map(|line| line.as_bytes().rsplit(|&b| b == b','));
        for _ in 0..Self::MAX_HOPS {
            if !self.contains(client) {
                break;
            }
            let Some(hop) = hops.next().and_then(hop) else { break };
            client = hop;
        }
        client
    }
}

/// The proxies on this machine: `127.0.0.0/8` and `::1`.
impl Default for TrustedProxies {
    fn default() -> Self {
        Network::LOOPBACK.into_iter().collect()
    }
}

/// The proxies in these networks. If there are none, `X-Forwarded-For` is never read.
impl FromIterator<Network> for TrustedProxies {
    fn from_iter<I: IntoIterator<Item = Network>>(networks: I) -> Self {
        Self(networks.into_iter().collect())
    }
}

/// The address of an entry, with or without brackets and port. An address with a zone is invalid.
fn hop(entry: &[u8]) -> Option<IpAddr> {
    let entry = std::str::from_utf8(entry.trim_ascii()).ok()?;
    let bracketed = entry.strip_prefix('[').and_then(|entry| entry.strip_suffix(']'));
    let address = match bracketed {
        Some(v6) => IpAddr::V6(v6.parse().ok()?),
        None => entry.parse().or_else(|_| entry.parse::<SocketAddr>().map(|a| a.ip())).ok()?,
    };
    (!entry.contains('%')).then(|| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn proxies() -> TrustedProxies {
        ["10.0.0.0/8", "fd00::/8", "::1"]
            .map(|n| n.parse::<Network>().unwrap())
            .into_iter()
            .collect()
    }

    fn client(peer: &str, lines: &[&[u8]]) -> String {
        let value = |line: &&[u8]| HeaderValue::from_bytes(line).unwrap();
        let headers = lines.iter().map(|line| (X_FORWARDED_FOR.clone(), value(line))).collect();
        proxies().client_ip(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn the_rightmost_untrusted_hop_is_the_client() {
        for (peer, lines, expected) in [
            // Without a trusted proxy the header is ignored.
            ("9.9.9.9", &["1.1.1.1"][..], "9.9.9.9"),
            ("9.9.9.9", &["10.0.0.1"], "9.9.9.9"),
            ("9.9.9.9", &[], "9.9.9.9"),
            ("::ffff:9.9.9.9", &["1.1.1.1"], "9.9.9.9"),
            ("2001:db8::1", &["1.1.1.1"], "2001:db8::1"),
            // With one, it is read from the right.
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["1.1.1.1"], "1.1.1.1"),
            ("::ffff:10.0.0.1", &["1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", &["6.6.6.6, 1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", &["6.6.6.6, 1.1.1.1, 10.0.0.2"], "1.1.1.1"),
            ("10.0.0.1", &["6.6.6.6, 10.0.0.9, 1.1.1.1, 10.0.0.2,10.0.0.3"], "1.1.1.1"),
            ("10.0.0.1", &["127.0.0.1, 1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", &["1.1.1.1, 127.0.0.1"], "127.0.0.1"), // not trusted here
            // The lines are one list.
            ("10.0.0.1", &["6.6.6.6", "1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", &["6.6.6.6, 1.1.1.1", "10.0.0.2", "10.0.0.3"], "1.1.1.1"),
            // Only trusted proxies: the leftmost of them.
            ("10.0.0.1", &["10.0.0.2, 10.0.0.3"], "10.0.0.2"),
            ("10.0.0.1", &["fd00::7", "10.0.0.3"], "fd00::7"),
            // Ports, brackets, spaces, mapped addresses.
            ("10.0.0.1", &["1.1.1.1:443"], "1.1.1.1"),
            ("10.0.0.1", &["[2001:db8::1]:443"], "2001:db8::1"),
            ("10.0.0.1", &["[2001:db8::1]"], "2001:db8::1"),
            ("10.0.0.1", &["2001:db8::1"], "2001:db8::1"),
            ("10.0.0.1", &["\t 1.1.1.1 \t"], "1.1.1.1"),
            ("10.0.0.1", &["::ffff:1.1.1.1"], "1.1.1.1"),
            ("10.0.0.1", &["[::ffff:1.1.1.1]:80"], "1.1.1.1"),
            ("10.0.0.1", &["1.1.1.1, ::ffff:10.0.0.2, [fd00::1]:80"], "1.1.1.1"),
        ] {
            let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
            assert_eq!(client(peer, &bytes), expected, "{peer} {lines:?}");
        }
    }

    #[test]
    fn an_entry_that_is_no_address_ends_the_walk_at_the_proxy_that_wrote_it() {
        for entry in [
            b"".as_slice(),
            b" ",
            b"unknown",
            b"_hidden",
            b"localhost",
            b"\"1.1.1.1\"",
            b"1.1.1",
            b"1.1.1.1.1",
            b"01.1.1.1",
            b"1.1.1.1:",
            b"1.1.1.1:99999",
            b"1.1.1.1:x",
            b"[1.1.1.1]",
            b"[1.1.1.1]:80",
            b"[::1",
            b"::1]",
            b"[]",
            b"[[::1]]",
            b"[::1]80",
            b"fe80::1%eth0",
            b"[fe80::1%1]:80",
            b"1.1.1.1;2.2.2.2",
            b"1.1.1.1 2.2.2.2",
            b"for=1.1.1.1",
            b"10.0.0.0/8",
            b"\xff\xfe",
            "١.١.١.١".as_bytes(),
        ] {
            let name = String::from_utf8_lossy(entry);
            let chain = [b"6.6.6.6,", entry, b",10.0.0.2"].concat();
            assert_eq!(client("10.0.0.1", &[&chain]), "10.0.0.2", "{name:?}");
            assert_eq!(client("10.0.0.1", &[b"6.6.6.6", entry]), "10.0.0.1", "{name:?}");
            let spoofed = [entry, b", 1.1.1.1"].concat();
            assert_eq!(client("10.0.0.1", &[&spoofed]), "1.1.1.1", "{name:?}");
        }
    }

    #[test]
    fn a_long_list_is_read_only_up_to_the_maximum_number_of_hops() {
        let spoofed = "6.6.6.6,".repeat(10_000) + "1.1.1.1";
        assert_eq!(client("10.0.0.1", &[spoofed.as_bytes()]), "1.1.1.1");
        let list = |proxies: usize| "6.6.6.6".to_owned() + &",10.0.0.2".repeat(proxies);
        assert_eq!(client("10.0.0.1", &[list(63).as_bytes()]), "6.6.6.6");
        assert_eq!(client("10.0.0.1", &[list(64).as_bytes()]), "10.0.0.2");
        assert_eq!(client("10.0.0.1", &[list(10_000).as_bytes()]), "10.0.0.2");
        assert_eq!(client("10.0.0.1", &[",".repeat(10_000).as_bytes()]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &["9".repeat(60_000).as_bytes()]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &vec![b"10.0.0.2".as_slice(); 10_000]), "10.0.0.2");
    }

    #[test]
    fn loopback_is_trusted_by_default() {
        let mut headers = HeaderMap::new();
        headers.insert(&X_FORWARDED_FOR, HeaderValue::from_static("1.1.1.1"));
        for (peer, trusted) in
            [("127.0.0.1", true), ("127.9.9.9", true), ("::1", true), ("10.0.0.1", false)]
        {
            let peer: IpAddr = peer.parse().unwrap();
            let client = TrustedProxies::default().client_ip(peer, &headers);
            assert_eq!(client == peer, !trusted, "{peer}");
            let none: TrustedProxies = [].into_iter().collect();
            assert_eq!(none.client_ip(peer, &headers), peer);
            assert!(!none.contains(peer));
        }
    }
}
