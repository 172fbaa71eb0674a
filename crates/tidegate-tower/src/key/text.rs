//! A key as it is found, part by part.

use std::fmt::{self, Display, Write};
use std::net::IpAddr;

use smallvec::SmallVec;
use tidegate::{Client, Key, policy};

/// The parts of a key. Short ones need no allocation.
#[derive(Clone, Default, Debug)]
pub struct KeyText {
    text: SmallVec<[u8; 64]>,
    /// Where each part ends.
    ends: SmallVec<[usize; 4]>,
    lacks: Lacks,
}

/// The parts of a [`KeyText`].
#[derive(Clone, Debug)]
pub struct KeyParts<'a>(Parts<'a>);

#[derive(Clone, Debug)]
enum Parts<'a> {
    One(&'a [u8]),
    Many(SmallVec<[&'a str; 4]>),
}

impl KeyParts<'_> {
    /// The key that they make.
    pub fn key(&self) -> Key<'_> {
        match &self.0 {
            Parts::One(part) => Key::from(*part),
            Parts::Many(parts) => Key::of(parts),
        }
    }
}

/// What a key lacks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Lacks {
    /// Nothing.
    #[default]
    Nothing,
    /// The request has not told a part of it.
    Part,
    /// The service is not set up to know it; what to do about that.
    Setup(&'static str),
}

impl KeyText {
    /// Adds a part.
    pub fn add(&mut self, part: &str) {
        self.text.extend_from_slice(part.as_bytes());
        self.ends.push(self.text.len());
    }

    /// Adds a part as it is printed.
    pub fn add_display(&mut self, part: impl Display) {
        // Nothing that is written here fails by itself; a part that fails to print is not there.
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
        if self.lacks == Lacks::Nothing {
            self.lacks = Lacks::Part;
        }
    }

    /// Says that nobody can know the key, because the service is not set up for it. The request is
    /// answered with an error of the server that says `what_to_do`.
    pub fn cannot_know(&mut self, what_to_do: &'static str) {
        self.lacks = Lacks::Setup(what_to_do);
    }

    /// The parts in order.
    pub fn parts(&self) -> KeyParts<'_> {
        if self.ends.len() == 1 {
            return KeyParts(Parts::One(&self.text));
        }
        let mut start = 0;
        let part = |&end: &usize| {
            let bytes = self.text.get(start..end).unwrap_or_default();
            start = end;
            // Whole strings were written, one after the other.
            std::str::from_utf8(bytes).unwrap_or_default()
        };
        KeyParts(Parts::Many(self.ends.iter().map(part).collect()))
    }

    /// Adds a client, as it is printed.
    pub(crate) fn add_client(&mut self, ip: IpAddr) {
        let IpAddr::V4(ip) = ip.to_canonical() else { return self.add_display(Client::from(ip)) };
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

    /// Too long to be served as a key?
    pub(crate) fn is_too_long(&self) -> bool {
        self.text.len() > Key::MAX_LEN || self.ends.len() > Key::MAX_PARTS
    }

    pub(crate) fn lacks(&self) -> Lacks {
        self.lacks
    }
}

impl Write for KeyText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.text.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(key: &KeyText) -> Vec<String> {
        let text = |part: &[u8]| String::from_utf8(part.to_vec()).unwrap();
        key.parts().key().parts().map(text).collect()
    }

    #[test]
    fn parts_stay_apart_whatever_is_in_them() {
        let mut key = KeyText::default();
        assert!(parts(&key).is_empty());
        key.add("a\0b");
        assert_eq!(parts(&key), ["a\0b"]);
        key.add("");
        key.add_display(42);
        key.add(&"é".repeat(100));
        assert_eq!(parts(&key), ["a\0b", "", "42", &"é".repeat(100)]);
        assert_eq!(key.lacks(), Lacks::Nothing);
        key.add_missing();
        assert_eq!(parts(&key).len(), 5);
        assert_eq!(key.lacks(), Lacks::Part);
    }

    #[test]
    fn what_fails_to_print_is_missing_as_a_whole() {
        struct Broken;
        impl Display for Broken {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("half")?;
                Err(fmt::Error)
            }
        }
        let mut key = KeyText::default();
        key.add("a");
        key.add_display(Broken);
        assert_eq!(parts(&key), ["a", policy::MISSING]);
        assert_eq!(key.lacks(), Lacks::Part);
    }

    #[test]
    fn a_client_is_added_as_it_is_printed() {
        for ip in ["0.0.0.0", "1.22.100.255", "9.10.99.200", "::ffff:1.2.3.4", "2001:db8::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            let mut key = KeyText::default();
            key.add_client(ip);
            assert_eq!(parts(&key), [Client::from(ip).to_string()]);
        }
    }
}
