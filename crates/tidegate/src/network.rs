//! CIDR networks, and the network that one client is counted by.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A block of addresses in CIDR notation: `10.0.0.0/8`, `2001:db8::/32`, or one host, `::1`.
///
/// IPv4 addresses are compared in their IPv4 form. An IPv6 network of mapped addresses
/// (`::ffff:10.0.0.0/104`) becomes the IPv4 network, and an address is converted before it is
/// compared. So no IPv6 network contains an IPv4 address, not even `::/0`.
///
/// ```
/// use tidegate::Network;
/// let office: Network = "10.0.0.0/8".parse()?;
/// assert!(office.contains("10.1.2.3".parse()?));
/// assert!(office.contains("::ffff:10.1.2.3".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Network {
    /// Never a mapped address; no bits beyond the prefix.
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Loopback addresses, `127.0.0.0/8` and `::1`.
    pub const LOOPBACK: [Self; 2] = [
        Self { address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 },
        Self { address: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix: 128 },
    ];

    /// Whether the network contains the address. A mapped address counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && Self::around(address, self.prefix) == *self
    }

    /// The network of this prefix length around an unmapped address.
    fn around(address: IpAddr, prefix: u8) -> Self {
        let spare = width(address).saturating_sub(prefix).into();
        let address = match address {
            // A shift by the whole width, for a prefix of 0, clears the mask.
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(spare).unwrap_or(0);
                Ipv4Addr::from_bits(v4.to_bits() & mask).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(spare).unwrap_or(0);
                Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
        };
        Self { address, prefix }
    }
}

/// The network of this address alone.
impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self { address, prefix: width(address) }
    }
}

/// Strict: no bits beyond the prefix, no zone, spaces, sign or leading zero.
impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Self, InvalidNetwork> {
        let (host, prefix) = match text.split_once('/') {
            Some((host, prefix)) => (host, Some(prefix)),
            None => (text, None),
        };
        if host.contains('%') {
            return Err(InvalidNetwork::Zone(shortened(text)));
        }
        let given = IpAddr::from_str(host).map_err(|_| InvalidNetwork::Address(shortened(text)))?;
        let address = given.to_canonical();
        let Some(prefix) = prefix else { return Ok(Self::from(address)) };
        // The first 96 bits of a mapped address only mark it as mapped.
        let min = width(given) - width(address);
        let max = width(given);
        let length = prefix_length(prefix).filter(|length| (min..=max).contains(length));
        let Some(length) = length else {
            let prefix = shortened(prefix);
            return Err(InvalidNetwork::Prefix { address: given, prefix, min, max });
        };
        let network = Self::around(address, length - min);
        if network.address != address {
            return Err(InvalidNetwork::HostBits { network: text.into(), masked: network });
        }
        Ok(network)
    }
}

/// The parsed form; a single host has no prefix.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, prefix } = *self;
        if prefix == width(address) {
            return write!(f, "{address}");
        }
        write!(f, "{address}/{prefix}")
    }
}

/// The network one client is counted by: IPv4 address, IPv6 /64.
///
/// A single IPv6 customer gets at least a /64, and could use a new address for every request. A
/// mapped address counts as the IPv4 address.
///
/// ```
/// use std::net::IpAddr;
/// use tidegate::ClientNetwork;
/// let client = |text: &str| {
///     text.parse::<IpAddr>().map(|address| ClientNetwork::from(address).to_string())
/// };
/// assert_eq!(client("::ffff:1.2.3.4")?, "1.2.3.4");
/// assert_eq!(client("2001:db8:1:2:3:4:5:6")?, "2001:db8:1:2::/64");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientNetwork(Network);

impl ClientNetwork {
    /// Prefix length by which IPv6 clients are counted.
    pub const IPV6_PREFIX: u8 = 64;

    /// The network of this client.
    pub const fn network(&self) -> Network {
        self.0
    }

    /// The key of a client given as text: the client network if the text is an address, else the
    /// text unchanged.
    pub fn key_of(text: &str) -> Cow<'_, str> {
        match text.parse::<IpAddr>() {
            // IPv4 addresses have one spelling, so the text is already the key.
            Ok(IpAddr::V4(_)) | Err(_) => Cow::Borrowed(text),
            Ok(address) => Cow::Owned(Self::from(address).to_string()),
        }
    }
}

impl From<IpAddr> for ClientNetwork {
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self(Network::around(address, width(address).min(Self::IPV6_PREFIX)))
    }
}

/// `1.2.3.4`, or `2001:db8:1:2::/64`: the key of the client.
impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of bits of the address.
fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn prefix_length(text: &str) -> Option<u8> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let leading_zero = text.len() > 1 && text.starts_with('0');
    if digits && !leading_zero { text.parse().ok() } else { None }
}

/// The text shortened for an error message.
fn shortened(text: &str) -> Box<str> {
    const MAX: usize = 64;
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}..", text.split_at(end).0).into(),
        None => text.into(),
    }
}

/// Why a network is refused. The message includes the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InvalidNetwork {
    /// Not an address, with or without a prefix.
    Address(Box<str>),
    /// A zone, which is only meaningful on one machine.
    Zone(Box<str>),
    /// Not a prefix length of this address.
    Prefix {
        /// The address before the prefix.
        address: IpAddr,
        /// The text as written.
        prefix: Box<str>,
        /// Shortest prefix: 0, or 96 for a mapped address.
        min: u8,
        /// Longest prefix.
        max: u8,
    },
    /// Bits beyond the prefix are set.
    HostBits {
        /// The text as written.
        network: Box<str>,
        /// The network without these bits.
        masked: Network,
    },
}

impl fmt::Display for InvalidNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(text) => {
                write!(f, "{text:?} is not a network; use one like 10.0.0.0/8 or 2001:db8::/32")
            }
            Self::Zone(text) => write!(f, "{text:?} has a zone; leave out the % and what follows"),
            Self::Prefix { address, prefix, min, max } => {
                write!(f, "prefix {prefix:?} after {address}; use a number from {min} to {max}")
            }
            Self::HostBits { network, masked } => {
                write!(f, "{network} has bits beyond its prefix; write {masked}")
            }
        }
    }
}

impl std::error::Error for InvalidNetwork {}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap()
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_prints_as_it_is_parsed_and_mapped_ones_as_ipv4() {
        for (text, printed) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1/32", "127.0.0.1"),
            ("::1", "::1"),
            ("::1/128", "::1"),
            ("::/0", "::/0"),
            ("2001:DB8:0::/32", "2001:db8::/32"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("::ffff:1.2.3.4/128", "1.2.3.4"),
        ] {
            let parsed = network(text);
            assert_eq!(parsed.to_string(), printed);
            assert_eq!(network(printed), parsed);
        }
        assert_eq!(Network::LOOPBACK, ["127.0.0.0/8", "::1"].map(network));
        assert_eq!(Network::from(address("::ffff:1.2.3.4")), network("1.2.3.4"));
    }

    #[test]
    fn a_network_contains_the_addresses_that_share_its_prefix() {
        for (block, inside, outside) in [
            ("10.0.0.0/8", "10.255.255.255", "11.0.0.0"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::ffff:11.1.2.3"),
            ("::ffff:10.0.0.0/104", "10.1.2.3", "::a00:0"),
            ("10.0.0.0/31", "10.0.0.1", "10.0.0.2"),
            ("0.0.0.0/0", "255.255.255.255", "::"),
            ("::/0", "ffff::", "1.2.3.4"),
            ("::/0", "::1.2.3.4", "::ffff:1.2.3.4"),
            ("::1", "::1", "::2"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::"),
            ("1.2.3.4", "1.2.3.4", "1.2.3.5"),
        ] {
            assert!(network(block).contains(address(inside)), "{block} has {inside}");
            assert!(!network(block).contains(address(outside)), "{block} has not {outside}");
        }
    }

    #[test]
    fn an_invalid_network_is_refused_with_the_remedy() {
        let long = "1".repeat(1_000_000);
        for (text, message) in [
            ("10.0.0.5/8", "10.0.0.5/8 has bits beyond its prefix; write 10.0.0.0/8"),
            ("1.2.3.4/0", "1.2.3.4/0 has bits beyond its prefix; write 0.0.0.0/0"),
            ("2001:db8::1/64", "2001:db8::1/64 has bits beyond its prefix; write 2001:db8::/64"),
            (
                "::ffff:10.0.0.5/104",
                "::ffff:10.0.0.5/104 has bits beyond its prefix; write 10.0.0.0/8",
            ),
            ("10.0.0.0/33", "prefix \"33\" after 10.0.0.0; use a number from 0 to 32"),
            ("::/129", "prefix \"129\" after ::; use a number from 0 to 128"),
            ("::/256", "prefix \"256\" after ::; use a number from 0 to 128"),
            (
                "::ffff:10.0.0.0/8",
                "prefix \"8\" after ::ffff:10.0.0.0; use a number from 96 to 128",
            ),
            ("fe80::1%eth0", "\"fe80::1%eth0\" has a zone; leave out the % and what follows"),
            ("fe80::%1/10\n", "\"fe80::%1/10\\n\" has a zone; leave out the % and what follows"),
            ("", "\"\" is not a network; use one like 10.0.0.0/8 or 2001:db8::/32"),
        ] {
            assert_eq!(text.parse::<Network>().unwrap_err().to_string(), message);
        }
        for prefix in ["", "+8", "-8", "08", "00", " 8", "8 ", "8/8", "0x8", "8.0", "٨", &long] {
            let error = format!("10.0.0.0/{prefix}").parse::<Network>().unwrap_err();
            assert!(matches!(error, InvalidNetwork::Prefix { .. }), "{error}");
            assert!(error.to_string().len() < 200);
        }
        for text in ["/8", "10/8", "010.0.0.0/8", " ::1", "[::1]", "::1:", "1.2.3.4:80", &long] {
            let error = text.parse::<Network>().unwrap_err();
            assert!(matches!(error, InvalidNetwork::Address(_)), "{error}");
            assert!(error.to_string().len() < 200);
        }
    }

    #[test]
    fn ipv4_is_counted_by_address_and_ipv6_by_its_64() {
        for (text, counted) in [
            ("1.2.3.4", "1.2.3.4"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("::FFFF:102:304", "1.2.3.4"),
            ("2001:db8:1:2::", "2001:db8:1:2::/64"),
            ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
            ("2001:DB8:1:3::1", "2001:db8:1:3::/64"),
            ("::1", "::/64"),
        ] {
            let client = ClientNetwork::from(address(text));
            assert_eq!(client.to_string(), counted);
            assert_eq!(ClientNetwork::key_of(text), counted);
            assert_eq!(ClientNetwork::key_of(counted), counted, "a key is unchanged");
            assert!(client.network().contains(address(text)));
        }
    }

    #[test]
    fn a_key_that_is_not_an_address_is_unchanged() {
        for text in ["", "alice", "1.2.3", "01.2.3.4", " ::1", "[::1]", "::1%lo", "1.2.3.4:5"] {
            assert!(matches!(ClientNetwork::key_of(text), Cow::Borrowed(key) if key == text));
        }
    }
}
