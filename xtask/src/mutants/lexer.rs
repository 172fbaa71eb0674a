//! Rust text as tokens: just enough of the language to know an operator from a generic, and both
//! from a comment.

use std::ops::Range;

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// An identifier or a keyword.
    Word,
    /// `'a`
    Lifetime,
    /// A number with its suffix.
    Number,
    /// A string or a character of any flavour.
    Text,
    /// An operator or a delimiter.
    Mark,
}

/// A token and where it is, in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
    pub(super) start: usize,
}

impl Token<'_> {
    pub(super) fn end(&self) -> usize {
        self.start + self.text.len()
    }

    pub(super) fn span(&self) -> Range<usize> {
        self.start..self.end()
    }

    pub(super) fn is(&self, text: &str) -> bool {
        self.text == text && matches!(self.kind, Kind::Word | Kind::Mark)
    }
}

/// Operators of more than one character, longest first.
const LONG_MARKS: &[&str] = &[
    "<<=", ">>=", "...", "..=", "::", "->", "=>", "==", "!=", "<=", ">=", "&&", "||", "+=", "-=",
    "*=", "/=", "%=", "^=", "&=", "|=", "<<", ">>", "..",
];

/// The tokens of `source`. Spaces and comments are left out.
pub(super) fn lex(source: &str) -> Vec<Token<'_>> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let mut at = 0;
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        if first.is_whitespace() {
            at += first.len_utf8();
        } else if let Some(len) = comment_len(rest) {
            at += len;
        } else {
            let (kind, len) = token_len(rest, tokens.last());
            tokens.push(Token { kind, text: &rest[..len], start: at });
            at += len;
        }
    }
    tokens
}

fn comment_len(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if !rest.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    Some(at)
}

/// The kind and length of the token that `rest` begins with.
fn token_len(rest: &str, before: Option<&Token<'_>>) -> (Kind, usize) {
    if let Some(len) = text_len(rest) {
        return (Kind::Text, len);
    }
    if let Some(name) = rest.strip_prefix('\'') {
        return (Kind::Lifetime, 1 + word_len(name));
    }
    if let Some(name) = rest.strip_prefix("r#") {
        return (Kind::Word, 2 + word_len(name));
    }
    let word = word_len(rest);
    if rest.starts_with(|first: char| first.is_ascii_digit()) {
        // Behind a dot a number is the name of a field, and `0.1` two of them.
        let is_field = before.is_some_and(|before| before.is("."));
        let fraction = rest[word..]
            .strip_prefix('.')
            .filter(|digits| !is_field && digits.starts_with(|next: char| next.is_ascii_digit()));
        return (Kind::Number, word + fraction.map_or(0, |digits| 1 + word_len(digits)));
    }
    if word > 0 {
        return (Kind::Word, word);
    }
    let long = LONG_MARKS.iter().find(|mark| rest.starts_with(**mark)).map(|mark| mark.len());
    (Kind::Mark, long.unwrap_or_else(|| rest.chars().next().map_or(0, char::len_utf8)))
}

fn word_len(rest: &str) -> usize {
    rest.find(|next: char| next != '_' && !next.is_alphanumeric()).unwrap_or(rest.len())
}

/// The length of the string or character literal that `rest` begins with, if it does.
fn text_len(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r", ""].into_iter().find(|&prefix| {
        rest.strip_prefix(prefix).is_some_and(|after| {
            after.starts_with(['"', '\'']) || after.trim_start_matches('#').starts_with('"')
        })
    })?;
    let body = &rest[prefix.len()..];
    let body_len = if prefix.ends_with('r') {
        raw_string_len(body)?
    } else if body.starts_with('"') {
        quoted_len(body, '"')
    } else if body.starts_with('\'') && is_character(body) {
        quoted_len(body, '\'')
    } else {
        return None;
    };
    Some(prefix.len() + body_len)
}

/// `'x'` and `'\n'` are characters; `'a` is a lifetime.
fn is_character(body: &str) -> bool {
    let mut inside = body.chars().skip(1);
    inside.next() == Some('\\') || inside.next() == Some('\'')
}

fn quoted_len(body: &str, quote: char) -> usize {
    let mut escaped = true; // steps over the opening quote
    for (at, next) in body.char_indices() {
        match next {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if next == quote => return at + 1,
            _ => {}
        }
    }
    body.len()
}

fn raw_string_len(body: &str) -> Option<usize> {
    let hashes = body.find(|next| next != '#')?;
    let inside = body[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", &body[..hashes]);
    let end = inside.find(&close).map_or(inside.len(), |at| at + close.len());
    Some(hashes + 1 + end)
}

#[cfg(test)]
mod tests {
    use super::{Kind, lex};

    #[test]
    fn text_is_cut_into_the_tokens_rust_sees() {
        for (source, expected) in [
            ("a<b", "a < b"),
            ("a <= b >> 1", "a <= b >> 1"),
            ("x -> y => z", "x -> y => z"),
            ("0..=n", "0 ..= n"),
            ("0..1", "0 .. 1"),
            ("1.5 + 1.max(2)", "1.5 + 1 . max ( 2 )"),
            ("self.0.1", "self . 0 . 1"),
            ("1_000u64", "1_000u64"),
            ("a // b < c\nd", "a d"),
            ("a /* b /* c */ < */ d", "a d"),
            ("/// a < b\nc", "c"),
            (r#"a "b < \" c" d"#, r#"a "b < \" c" d"#),
            (r###"r#"a " < b"# c"###, r###"r#"a " < b"# c"###),
            (r#"b"<" b'<' c"<" '<' '\'' x"#, r#"b"<" b'<' c"<" '<' '\'' x"#),
            ("r#type < br", "r#type < br"),
            ("&'a str", "& 'a str"),
            ("f::<'_, 'static>()", "f :: < '_ , 'static > ( )"),
            ("'é' 'a' b 'c: loop", "'é' 'a' b 'c : loop"),
            ("\"unclosed", "\"unclosed"),
            ("/* unclosed", ""),
        ] {
            let tokens: Vec<&str> = lex(source).iter().map(|token| token.text).collect();
            assert_eq!(tokens.join(" "), expected, "{source}");
        }
    }

    #[test]
    fn a_token_knows_what_it_is_and_where() {
        let source = "é < 'a 1 'b' r\"\"";
        let kinds = [Kind::Word, Kind::Mark, Kind::Lifetime, Kind::Number, Kind::Text, Kind::Text];
        let tokens = lex(source);
        assert_eq!(tokens.iter().map(|token| token.kind).collect::<Vec<_>>(), kinds);
        for token in tokens {
            assert_eq!(&source[token.span()], token.text);
        }
    }
}
