//! A rate-limit key under construction.

use std::fmt::{self, Display, Write};
use std::net::IpAddr;

use smallvec::SmallVec;
use tidegate::{ClientNetwork, Key, policy};

/// Collects the parts of a key. Short keys need no allocation.
#[derive(Clone, Default, Debug)]
pub struct KeyBuilder {
    text: SmallVec<[u8; 64]>,
    /// Where each part ends.
    ends: SmallVec<[usize; 4]>,
    defect: KeyDefect,
}

/// The parts of a [`KeyBuilder`].
#[derive(Clone, Debug)]
pub struct KeyParts<'a>(KeyPartsRepr<'a>);

#[derive(Clone, Debug)]
enum KeyPartsRepr<'a> {
    One(&'a [u8]),
    Many(SmallVec<[&'a str; 4]>),
}

impl KeyParts<'_> {
    /// The parts as one key.
    pub fn key(&self) -> Key<'_> {
        match &self.0 {
            KeyPartsRepr::One(part) => Key::from(*part),
            KeyPartsRepr::Many(parts) => Key::of(parts),
        }
    }
}

/// Why a key is incomplete.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum KeyDefect {
    #[default]
    None,
    /// The request does not have one of the parts.
    MissingPart,
    /// The service is misconfigured; the text says what to change.
    Misconfigured(&'static str),
}

impl KeyBuilder {
    /// Adds a part.
    pub fn add(&mut self, part: &str) {
        self.text.extend_from_slice(part.as_bytes());
        self.ends.push(self.text.len());
    }

    /// Adds the `Display` form of a part.
    pub fn add_display(&mut self, part: impl Display) {
        // `write_str` never fails. A `Display` that fails yields a missing part.
        if write!(self, "{part}").is_ok() {
            self.ends.push(self.text.len());
        } else {
            self.text.truncate(self.ends.last().copied().unwrap_or(0));
            self.add_missing();
        }
    }

    /// Adds a part that the request does not have.
    pub fn add_missing(&mut self) {
        self.add(policy::MISSING);
        if self.defect == KeyDefect::None {
            self.defect = KeyDefect::MissingPart;
        }
    }

    /// Marks the key as unavailable because the service is misconfigured. The request is denied
    /// with 500; `remedy` says what to change and is reported to
    /// [`on_decision`](crate::RateLimitLayer::on_decision).
    pub fn misconfigured(&mut self, remedy: &'static str) {
        self.defect = KeyDefect::Misconfigured(remedy);
    }

    /// The parts in order.
    pub fn parts(&self) -> KeyParts<'_> {
        if self.ends.len() == 1 {
            return KeyParts(KeyPartsRepr::One(&self.text));
        }
        let mut start = 0;
        let part = |&end: &usize| {
            let bytes = self.text.get(start..end).unwrap_or_default();
            start = end;
            // Each part was written as a whole string.
            std::str::from_utf8(bytes).unwrap_or_default()
        };
        KeyParts(KeyPartsRepr::Many(self.ends.iter().map(part).collect()))
    }

    /// Adds the address of a client in its [`ClientNetwork`] form. IPv4 is formatted by hand: it is
    /// the hot path.
    pub(crate) fn add_client(&mut self, ip: IpAddr) {
        let IpAddr::V4(ip) = ip.to_canonical() else {
            return self.add_display(ClientNetwork::from(ip));
        };
        let (mut text, mut len) = ([b'.'; 16], 0);
        for octet in ip.octets() {
            for (digit, least) in [(octet / 100, 100), (octet / 10 % 10, 10), (octet % 10, 0)] {
                text[len] = b'0' + digit;
                len += usize::from(octet >= least);
            }
            text[len] = b'.';
            len += 1;
        }
        self.text.extend_from_slice(&text[..len - 1]);
        self.ends.push(self.text.len());
    }

    pub(crate) fn defect(&self) -> KeyDefect {
        self.defect
    }
}

impl Write for KeyBuilder {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.text.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(key: &KeyBuilder) -> Vec<String> {
        let text = |part: &[u8]| String::from_utf8(part.to_vec()).unwrap();
        key.parts().key().parts().map(text).collect()
    }

    #[test]
    fn parts_stay_separate_whatever_they_contain() {
        let mut key = KeyBuilder::default();
        assert!(parts(&key).is_empty());
        key.add("a\0b");
        assert_eq!(parts(&key), ["a\0b"]);
        key.add("");
        key.add_display(42);
        key.add(&"é".repeat(100));
        assert_eq!(parts(&key), ["a\0b", "", "42", &"é".repeat(100)]);
        assert_eq!(key.defect(), KeyDefect::None);
        key.add_missing();
        assert_eq!(parts(&key).len(), 5);
        assert_eq!(key.defect(), KeyDefect::MissingPart);
    }

    #[test]
    fn a_part_that_fails_to_print_is_missing() {
        struct Broken;
        impl Display for Broken {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("half")?;
                Err(fmt::Error)
            }
        }
        let mut key = KeyBuilder::default();
        key.add("a");
        key.add_display(Broken);
        assert_eq!(parts(&key), ["a", policy::MISSING]);
        assert_eq!(key.defect(), KeyDefect::MissingPart);
    }

    #[test]
    fn a_client_is_added_in_its_display_form() {
        for ip in ["0.0.0.0", "1.22.100.255", "9.10.99.200", "::ffff:1.2.3.4", "2001:db8::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            let mut key = KeyBuilder::default();
            key.add_client(ip);
            assert_eq!(parts(&key), [ClientNetwork::from(ip).to_string()]);
        }
    }
}
