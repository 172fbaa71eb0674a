//! Canonical percent-encoding of paths.

use std::borrow::Cow;

/// A path, or a part of one, in the canonical spelling that rules compare.
///
/// Letters, digits and `-._~*/` are unescaped, except an escaped slash, which stays escaped.
/// Everything else is escaped, in capitals: `@` and `%40` are equal, and so are `é` and `%c3%a9`. A
/// `%` without two digits counts as an escaped one. A text in this spelling is unchanged.
pub fn normalize_escapes(text: &str) -> Cow<'_, str> {
    if text.bytes().all(is_unescaped) {
        return Cow::Borrowed(text);
    }
    let mut normalized = String::with_capacity(text.len() + 16);
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escaped = (byte == b'%').then(|| after.first_chunk().and_then(value)).flatten();
        if escaped.is_some() {
            rest = &after[2..];
        }
        match escaped {
            // An escaped slash is part of a segment to some services and a separator to others.
            Some(byte) if is_unescaped(byte) && byte != b'/' => normalized.push(byte.into()),
            Some(byte) => escape(byte, &mut normalized),
            None if is_unescaped(byte) => normalized.push(byte.into()),
            None => escape(byte, &mut normalized),
        }
    }
    Cow::Owned(normalized)
}

fn is_unescaped(byte: u8) -> bool {
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
    fn equivalent_paths_have_one_spelling() {
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
                let normalized = normalize_escapes(text);
                assert_eq!(normalized, one, "{text}");
                assert_eq!(normalize_escapes(&normalized), one, "once more");
            }
        }
    }
}
