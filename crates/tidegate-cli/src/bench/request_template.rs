//! Request bytes with a slot for the key. Requests for two keys differ only in the digits of the
//! key's number.

const PREFIX: &str = "bench-";

/// Names of the keys. All have the same length, so that all requests have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BenchKeys {
    digits: usize,
}

impl BenchKeys {
    /// Names for this many keys.
    pub(crate) fn new(keys: u32) -> Self {
        Self { digits: keys.saturating_sub(1).to_string().len() }
    }

    /// The name of the key with this number: `bench-042`.
    pub(crate) fn name(self, number: u32) -> String {
        format!("{PREFIX}{number:0width$}", width = self.digits)
    }
}

/// A request with slots for the number of the key.
#[derive(Clone, Debug)]
pub(crate) struct RequestTemplate {
    bytes: Vec<u8>,
    digits: usize,
    /// Offsets at which the digits begin.
    slots: Vec<usize>,
}

impl RequestTemplate {
    /// `request` builds the bytes for a key; their length must not depend on the key. The slots
    /// are where the requests for two keys differ.
    pub(crate) fn new(keys: BenchKeys, request: impl Fn(&str) -> Vec<u8>) -> Self {
        let digits = keys.digits;
        let repeated = |digit: &str| request(&format!("{PREFIX}{}", digit.repeat(digits)));
        let (bytes, other) = (repeated("0"), repeated("1"));
        let mut slots: Vec<usize> = Vec::new();
        for (offset, (a, b)) in bytes.iter().zip(&other).enumerate() {
            if a != b && slots.last().is_none_or(|last| offset >= last + digits) {
                slots.push(offset);
            }
        }
        Self { bytes, digits, slots }
    }

    /// Appends the request for this key.
    pub(crate) fn write(&self, number: u32, to: &mut Vec<u8>) {
        let begin = to.len();
        to.extend_from_slice(&self.bytes);
        for slot in &self.slots {
            let mut left = number;
            for digit in to[begin + slot..][..self.digits].iter_mut().rev() {
                *digit = b'0' + (left % 10) as u8;
                left /= 10;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_writes_the_bytes_of_the_request() {
        let request = |key: &str| format!("check 10 {key} or 01 {key}{key}!").into_bytes();
        for count in [1, 2, 10, 11, 1_000, 1_001, 10_000_000] {
            let keys = BenchKeys::new(count);
            let template = RequestTemplate::new(keys, request);
            for number in [0, 1, 9, 10, 42, 999, 1_000, count / 2, count - 1] {
                if number >= count {
                    continue;
                }
                let mut written = b"before".to_vec();
                template.write(number, &mut written);
                let expected = [b"before".to_vec(), request(&keys.name(number))].concat();
                assert_eq!(written, expected, "{number} of {count}");
            }
        }
        let (mut written, fixed) =
            (Vec::new(), RequestTemplate::new(BenchKeys::new(10), |_| b"same".into()));
        fixed.write(7, &mut written);
        assert_eq!(written, b"same");
    }
}
