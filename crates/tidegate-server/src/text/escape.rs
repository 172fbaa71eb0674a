//! Text of callers made safe to display: escaped, joined and truncated.

use tidegate::Key;

/// The maximum length of a displayed key, in bytes.
pub(crate) const MAX_KEY_LEN: usize = 128;
/// Stands between the parts of a displayed key.
pub(crate) const KEY_SEPARATOR: char = '|';

/// Whether a character has an effect instead of a glyph: a control character, a line break, or one
/// that changes the direction of text. Such characters are escaped wherever text of a caller is
/// displayed.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
        )
}

/// A key for display: control characters escaped, parts joined by `KEY_SEPARATOR`, cut to
/// `MAX_KEY_LEN`.
pub fn display_key(key: Key<'_>) -> String {
    let mut text = String::new();
    push_key(&mut text, key);
    text
}

/// Appends a key to `text` as [`display_key`] writes it.
pub(crate) fn push_key(text: &mut String, key: Key<'_>) {
    let mut text = TruncatedText::new(text, MAX_KEY_LEN);
    for (i, part) in key.parts().enumerate() {
        if i > 0 {
            text.push(KEY_SEPARATOR);
        }
        text.push_escaped(part);
    }
}

/// Writes into a string, and ends it in `…` where it would get longer than `max` bytes.
pub(crate) struct TruncatedText<'a> {
    text: &'a mut String,
    max: usize,
    full: bool,
}

impl<'a> TruncatedText<'a> {
    pub(crate) fn new(text: &'a mut String, max: usize) -> Self {
        Self { text, max, full: false }
    }

    pub(crate) fn push_escaped(&mut self, part: &[u8]) {
        // Everything beyond is truncated anyway, including a character that is split here.
        let part = &part[..part.len().min(self.max + 4)];
        for chunk in part.utf8_chunks() {
            for c in chunk.valid().chars() {
                if is_hidden(c) {
                    c.escape_default().for_each(|c| self.push(c));
                } else {
                    self.push(c);
                }
            }
            for byte in chunk.invalid() {
                std::ascii::escape_default(*byte).for_each(|c| self.push(c.into()));
            }
        }
    }

    pub(crate) fn push(&mut self, c: char) {
        const ELLIPSIS: char = '…';
        if self.full {
            return;
        }
        if self.text.len() + c.len_utf8() <= self.max {
            self.text.push(c);
            return;
        }
        self.full = true;
        while self.text.len() + ELLIPSIS.len_utf8() > self.max {
            self.text.pop();
        }
        self.text.push(ELLIPSIS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_displayed_escaped_joined_and_truncated() {
        let whole = "x".repeat(MAX_KEY_LEN);
        let cut = format!("{}…", "x".repeat(MAX_KEY_LEN - 3));
        let cases: [(&[&str], &str); 8] = [
            (&["alice"], "alice"),
            (&["tenant", "", "alice"], "tenant||alice"),
            (&["a\nb\u{1b}[2J\u{202e}"], r"a\nb\u{1b}[2J\u{202e}"),
            (&["Zoë"], "Zoë"),
            (&[], ""),
            (&[&whole], &whole),
            (&[&whole, "y"], &cut),
            (&[&whole[1..], "y"], &cut),
        ];
        for (parts, shown) in cases {
            assert_eq!(display_key(Key::of(parts)), shown);
        }
        assert_eq!(display_key(b"\xff\xfeok".as_slice().into()), r"\xff\xfeok");
        // Neither a truncated character nor a truncated escape exceeds the length.
        for (piece, count) in [("\0", 1_000), ("é", 100), ("\u{1f30a}", 200)] {
            let shown = display_key(Key::from(&piece.repeat(count)));
            assert!(shown.len() <= MAX_KEY_LEN && shown.ends_with('…'), "{shown}");
        }
    }
}
