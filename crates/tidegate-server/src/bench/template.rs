//! The bytes of a question, which are the same for every key but for the digits of its number.

/// What a key begins with.
const PREFIX: &str = "bench-";

/// The names of keys. They are all of one length, so that questions are, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Names {
    digits: usize,
}

impl Names {
    /// The names of so many keys.
    pub(crate) fn new(keys: u32) -> Self {
        Self { digits: keys.saturating_sub(1).to_string().len() }
    }

    /// The name of the key with this number: `bench-042`.
    pub(crate) fn name(self, number: u32) -> String {
        format!("{PREFIX}{number:0width$}", width = self.digits)
    }
}

/// A question with room for the number of a key.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    digits: usize,
    /// Where the digits are.
    places: Vec<usize>,
}

impl Template {
    /// What `question` makes of the name of a key, which must be as long for any other. Where two keys make a
    /// difference, there the number is.
    pub(crate) fn new(names: Names, question: impl Fn(&str) -> Vec<u8>) -> Self {
        let digits = names.digits;
        let named = |digit: &str| question(&format!("{PREFIX}{}", digit.repeat(digits)));
        let (bytes, other) = (named("0"), named("1"));
        let mut places: Vec<usize> = Vec::new();
        for (place, (a, b)) in bytes.iter().zip(&other).enumerate() {
            if a != b && places.last().is_none_or(|last| place >= last + digits) {
                places.push(place);
            }
        }
        Self { bytes, digits, places }
    }

    /// Appends the question about this key.
    pub(crate) fn write(&self, number: u32, to: &mut Vec<u8>) {
        let begin = to.len();
        to.extend_from_slice(&self.bytes);
        for place in &self.places {
            let mut left = number;
            for digit in to[begin + place..][..self.digits].iter_mut().rev() {
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
    fn a_template_writes_what_the_question_would() {
        let question = |key: &str| format!("ask 10 {key} or 01 {key}{key}!").into_bytes();
        for keys in [1, 2, 10, 11, 1_000, 1_001, 10_000_000] {
            let names = Names::new(keys);
            let template = Template::new(names, question);
            for number in [0, 1, 9, 10, 42, 999, 1_000, keys / 2, keys - 1] {
                if number >= keys {
                    continue;
                }
                let mut written = b"before".to_vec();
                template.write(number, &mut written);
                let expected = [b"before".to_vec(), question(&names.name(number))].concat();
                assert_eq!(written, expected, "{number} of {keys}");
            }
        }
        let (mut written, fixed) = (Vec::new(), Template::new(Names::new(10), |_| b"same".into()));
        fixed.write(7, &mut written);
        assert_eq!(written, b"same");
    }
}
