//! The slots of a Cluster: which key lies in which.

/// One of the 16,384 parts into which a Cluster divides its keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Slot(u16);

impl Slot {
    pub(crate) const COUNT: u16 = 16_384;

    /// Where `key` lies: by the part in its first braces, if there is one, or by all of it.
    pub(crate) fn of(key: &str) -> Self {
        let key = key.as_bytes();
        let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
            let rest = &key[open + 1..];
            let close = rest.iter().position(|byte| *byte == b'}')?;
            (close > 0).then(|| &rest[..close])
        });
        Self(crc16(tag.unwrap_or(key)) % Self::COUNT)
    }

    pub(crate) fn get(self) -> u16 {
        self.0
    }
}

/// CRC-16/XMODEM, as the Cluster specification has it.
fn crc16(bytes: &[u8]) -> u16 {
    const POLYNOMIAL: u16 = 0x1021;
    let step = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ (u16::from(*byte) << 8), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lie_where_the_specification_says() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [("foo", 12182), ("{foo}.bar", 12182), ("bar{foo}{x}", 12182)] {
            assert_eq!(Slot::of(key).get(), slot, "{key}");
        }
        assert_eq!(Slot::of("foo{}bar"), Slot(crc16(b"foo{}bar") % Slot::COUNT));
        assert_eq!(Slot::of("foo{bar"), Slot(crc16(b"foo{bar") % Slot::COUNT));
    }
}
