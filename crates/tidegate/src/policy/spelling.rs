//! One spelling for every path that means the same.

use std::borrow::Cow;

/// A path, or a part of one, in the one spelling in which rules compare it.
///
/// Letters, digits and `-._~*/` stand for themselves, escaped or not, but for an escaped slash, which
/// stays apart from a slash. Everything else is escaped, in capitals: `@` and `%40` are one, and so
/// are `é` and `%c3%a9`. A `%` without two digits counts as an escaped one. A text in this spelling
/// stays what it is.
pub fn one_spelling(text: &str) -> Cow<'_, str> {
    if text.bytes().all(stands_for_itself) {
        return Cow::Borrowed(text);
    }
    let mut spelled = String::with_capacity(text.len() + 16);
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escaped = (byte == b'%').then(|| after.first_chunk().and_then(value)).flatten();
        if escaped.is_some() {
            rest = &after[2..];
        }
        match escaped {
            // An escaped slash is part of a name to some services and ends one to others.
            Some(byte) if stands_for_itself(byte) && byte != b'/' => spelled.push(byte.into()),
            Some(byte) => escape(byte, &mut spelled),
            None if stands_for_itself(byte) => spelled.push(byte.into()),
            None => escape(byte, &mut spelled),
        }
    }
    Cow::Owned(spelled)
}

fn stands_for_itself(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~*/".contains(&byte)
}

fn value(digits: &[u8; 2]) -> Option<u8> {
    let digits = std::str::from_utf8(digits).ok()?;
    let are_digits = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    are_digits.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

fn escape(byte: u8, into: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    into.push('%');
    into.push(DIGITS[usize::from(byte >> 4)].into());
    into.push(DIGITS[usize::from(byte & 15)].into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_means_the_same_is_spelled_the_same() {
        for (spellings, one) in [
            (vec!["/login", "/%6cogin", "/%6Cogin"], "/login"),
            (vec!["/@admin", "/%40admin"], "/%40admin"),
            (vec!["/café", "/caf%C3%A9", "/caf%c3%a9", "/c%61fé"], "/caf%C3%A9"),
            (vec!["/a b", "/a%20b"], "/a%20b"),
            (vec!["/a*b", "/a%2Ab"], "/a*b"),
            (vec!["/a%2fb", "/a%2Fb"], "/a%2Fb"),
            (vec!["/100%", "/100%25"], "/100%25"),
            (vec!["/%%41", "/%25A"], "/%25A"),
            (vec!["/%+1", "/%25%2B1"], "/%25%2B1"),
            (vec!["/;x=1", "/%3Bx%3d1"], "/%3Bx%3D1"),
            (vec!["/%ff%00"], "/%FF%00"),
        ] {
            for text in spellings {
                let spelled = one_spelling(text);
                assert_eq!(spelled, one, "{text}");
                assert_eq!(one_spelling(&spelled), one, "once more");
            }
        }
    }
}
