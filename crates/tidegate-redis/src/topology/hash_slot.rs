//! The hash slot of a key in a Cluster.

/// One of the 16,384 slots of a Cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct HashSlot(u16);

impl HashSlot {
    pub(crate) const COUNT: u16 = 16_384;

    /// The slot of `key`: of its hash tag if it has one, otherwise of the whole key.
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

/// CRC-16/XMODEM, as in the Cluster specification.
fn crc16(bytes: &[u8]) -> u16 {
    const POLYNOMIAL: u16 = 0x1021;
    let step = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ POLYNOMIAL };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ (u16::from(*byte) << 8), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [("foo", 12182), ("{foo}.bar", 12182), ("bar{foo}{x}", 12182)] {
            assert_eq!(HashSlot::of(key).get(), slot, "{key}");
        }
        assert_eq!(HashSlot::of("foo{}bar"), HashSlot(crc16(b"foo{}bar") % HashSlot::COUNT));
        assert_eq!(HashSlot::of("foo{bar"), HashSlot(crc16(b"foo{bar") % HashSlot::COUNT));
    }
}
