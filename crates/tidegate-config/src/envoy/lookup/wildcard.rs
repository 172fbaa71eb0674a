//! `*` patterns.

/// A pattern in which each `*` matches any text, also the empty one.
#[derive(Debug)]
pub(crate) struct Wildcard {
    first: Box<str>,
    middle: Box<[Box<str>]>,
    last: Box<str>,
}

pub(crate) fn is_wildcard(text: &str) -> bool {
    text.contains('*')
}

impl Wildcard {
    /// `None` if the text has no `*`.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let (first, rest) = text.split_once('*')?;
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middle = middle.split('*').filter(|part| !part.is_empty()).map(Box::from).collect();
        Some(Self { first: first.into(), middle, last: last.into() })
    }

    /// Matches each part at its first occurrence, which leaves the most text for the next parts.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let rest = text.strip_prefix(&*self.first).and_then(|rest| rest.strip_suffix(&*self.last));
        let Some(mut rest) = rest else { return false };
        self.middle.iter().all(|part| match rest.split_once(&**part) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_text_or_none() {
        let cases = [
            ("*", ["", "a", "a*b"].as_slice(), [].as_slice()),
            ("**", &["", "a"], &[]),
            ("value*", &["value", "value1", "value_x"], &["valu", "avalue"]),
            ("*value", &["value", "1value"], &["value1"]),
            (
                "/api/*/action",
                &["/api/123/action", "/api//action"],
                &["/api/action", "/api/1/other"],
            ),
            ("a*a", &["aa", "aba", "aaa"], &["a", "ab"]),
            ("/api/*/r/*/a", &["/api/v1/r/2/a", "/api//r/r/a"], &["/api/v1/r/a", "/api/r/2/a"]),
            ("a*b*b*c", &["abbc", "a-b-b-b-c"], &["abc", "acbb"]),
            ("ä*ß", &["äß", "ä→ß"], &["a→ß"]),
        ];
        for (text, fits, others) in cases {
            let wildcard = Wildcard::new(text).unwrap();
            fits.iter().for_each(|fit| assert!(wildcard.matches(fit), "{text} {fit}"));
            others.iter().for_each(|other| assert!(!wildcard.matches(other), "{text} {other}"));
        }
        assert!(Wildcard::new("plain").is_none());
    }
}
