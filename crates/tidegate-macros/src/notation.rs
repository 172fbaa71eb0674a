//! Limits, durations and names in the attribute, checked at compile time.

use std::ops::Range;

use proc_macro2::Span;
use syn::{Error, LitStr, Result};
use tidegate_core::{Limit, Micros, ParseLimitError, Span as TimeSpan};

/// Checks a limit and returns its text.
pub(crate) fn limit(text: &LitStr) -> Result<String> {
    let written = plain(text)?;
    let parsed = written.parse::<Limit>();
    parsed.map_err(|error| pointing(text, &written, &error))?;
    Ok(written)
}

/// Parses the longest wait of a call.
pub(crate) fn wait(text: &LitStr) -> Result<Micros> {
    let written = plain(text)?;
    let span: TimeSpan = written.parse().map_err(|error| pointing(text, &written, &error))?;
    let month = || Error::new(text.span(), "a month has no fixed length; write 30d");
    span.length().ok_or_else(month)
}

/// Checks a rule name.
pub(crate) fn rule_name(text: &LitStr) -> Result<String> {
    let name = plain(text)?;
    let is_valid = name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    let reason = if !is_valid {
        format!("rule name {name:?}; use 1 to 64 of A-Z a-z 0-9 _ . - with a letter or digit first")
    } else if ["adhoc", "throttle"].contains(&&*name) {
        format!("the name {name:?} is reserved for ad-hoc limits; use another")
    } else {
        return Ok(name);
    };
    Err(Error::new(text.span(), reason))
}

/// The text of a literal without a suffix.
fn plain(text: &LitStr) -> Result<String> {
    match text.suffix() {
        "" => Ok(text.value()),
        suffix => Err(Error::new(text.span(), format!("remove the {suffix:?} after the quotes"))),
    }
}

/// The error at the invalid characters. Stable compilers can only point at the whole literal, so
/// the message has carets as well.
fn pointing(text: &LitStr, written: &str, error: &ParseLimitError) -> Error {
    let underlined = error.underline(written);
    let message = format!("{error}\n\n  {}\n", underlined.replace('\n', "\n  "));
    Error::new(within(text, written, error.position()).unwrap_or_else(|| text.span()), message)
}

/// The span of some bytes of a literal. Only nightly compilers have it.
fn within(text: &LitStr, written: &str, bytes: Range<usize>) -> Option<Span> {
    let source = text.token().to_string();
    let start = start_of(&source, written)?;
    // If something is missing, the next character is marked.
    let end = bytes.end.max(bytes.start + 1);
    text.token().subspan(start + bytes.start..start + end)
}

/// Start of `written` in the source of its literal; `None` if the source differs because of
/// escapes.
fn start_of(source: &str, written: &str) -> Option<usize> {
    let start = source.find('"')? + 1;
    let opening = source.get(..start)?;
    let closing: String = opening.trim_start_matches('r').chars().rev().collect();
    (source == format!("{opening}{written}{closing}")).then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(source: &str) -> LitStr {
        syn::parse_str(source).unwrap()
    }

    #[test]
    fn a_text_is_located_in_its_literal_only_without_escapes() {
        for (source, start) in [
            (r#""5/s""#, Some(1)),
            (r##"r"5/s""##, Some(2)),
            (r###"r#"5/s"#"###, Some(3)),
            (r#""5\u{2f}s""#, None),
            (r#""\\""#, None),
            (r#""""#, Some(1)),
        ] {
            let literal = text(source);
            assert_eq!(start_of(&literal.token().to_string(), &literal.value()), start, "{source}");
        }
    }

    #[test]
    fn an_error_has_the_text_carets_and_a_correction() {
        let error = limit(&text(r#""100/sec0nds""#)).unwrap_err().to_string();
        let expected = "unknown unit \"sec0nds\"; write 100/s\n\n  100/sec0nds\n      ^^^^^^^\n";
        assert_eq!(error, expected);
    }

    #[test]
    fn a_wait_is_a_duration_of_fixed_length() {
        for (source, micros) in [
            (r#""200ms""#, Some(200_000)),
            (r#""d""#, Some(86_400_000_000)),
            (r#""1month""#, None),
            (r#""0s""#, None),
            (r#""200""#, None),
            (r#""1s"u8"#, None),
        ] {
            assert_eq!(wait(&text(source)).ok().map(Micros::get), micros, "{source}");
        }
    }

    #[test]
    fn a_rule_name_is_checked_as_in_the_library() {
        let longest = "n".repeat(64);
        for name in ["login", "9", "a_b.c-d", "default", &longest] {
            assert!(rule_name(&text(&format!("{name:?}"))).is_ok(), "{name}");
        }
        for name in ["", "_a", ".a", "a b", "a/b", "\u{e9}", "adhoc", "throttle", &(longest + "n")]
        {
            assert!(rule_name(&text(&format!("{name:?}"))).is_err(), "{name}");
        }
    }
}
