//! SPDX licence expressions: `(MIT OR Apache-2.0) AND Unicode-3.0`.

/// Whether `expression` can be satisfied with allowed terms. A term is a licence, or a licence
/// with its exception as one string: `Apache-2.0 WITH LLVM-exception`.
///
/// `/` is read as `OR`, as crates.io once wrote it.
pub(super) fn permits(expression: &str, allowed: impl Fn(&str) -> bool) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut parser = Parser { words: spaced.split_whitespace().peekable(), allowed };
    let verdict = parser.any()?;
    match parser.words.next() {
        None => Ok(verdict),
        Some(word) => Err(format!("`{word}` is not expected")),
    }
}

struct Parser<'a, W: Iterator<Item = &'a str>, A> {
    words: std::iter::Peekable<W>,
    allowed: A,
}

impl<'a, W: Iterator<Item = &'a str>, A: Fn(&str) -> bool> Parser<'a, W, A> {
    /// Alternatives: `all { OR all }`.
    fn any(&mut self) -> Result<bool, String> {
        let mut verdict = self.all()?;
        while self.words.next_if_eq(&"OR").is_some() {
            verdict |= self.all()?;
        }
        Ok(verdict)
    }

    /// Demands: `term { AND term }`. `AND` binds tighter than `OR`.
    fn all(&mut self) -> Result<bool, String> {
        let mut verdict = self.term()?;
        while self.words.next_if_eq(&"AND").is_some() {
            verdict &= self.term()?;
        }
        Ok(verdict)
    }

    /// `( any )`, or a licence with or without an exception.
    fn term(&mut self) -> Result<bool, String> {
        if self.words.next_if_eq(&"(").is_some() {
            let verdict = self.any()?;
            return match self.words.next() {
                Some(")") => Ok(verdict),
                _ => Err("a `)` is missing".to_owned()),
            };
        }
        let licence = self.name()?;
        if self.words.next_if_eq(&"WITH").is_some() {
            let exception = self.name()?;
            return Ok((self.allowed)(&format!("{licence} WITH {exception}")));
        }
        Ok((self.allowed)(licence))
    }

    fn name(&mut self) -> Result<&'a str, String> {
        match self.words.next() {
            None => Err("a licence is missing at the end".to_owned()),
            Some(word @ ("AND" | "OR" | "WITH" | "(" | ")")) => {
                Err(format!("a licence is missing before `{word}`"))
            }
            Some(word) => Ok(word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::permits;

    fn allowed(term: &str) -> bool {
        ["MIT", "ISC", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].contains(&term)
    }

    #[test]
    fn an_expression_holds_when_allowed_terms_satisfy_it() {
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("mit", false),
            ("MIT OR GPL-3.0-only", true),
            ("GPL-3.0-only OR MIT", true),
            ("GPL-2.0-only OR GPL-3.0-only", false),
            ("MIT AND ISC", true),
            ("MIT AND GPL-3.0-only", false),
            ("GPL-3.0-only AND MIT", false),
            // AND first: ISC alone satisfies it.
            ("ISC OR MIT AND GPL-3.0-only", true),
            ("GPL-3.0-only AND MIT OR ISC", true),
            ("(ISC OR MIT) AND GPL-3.0-only", false),
            ("GPL-3.0-only AND (ISC OR MIT)", false),
            ("(MIT OR GPL-3.0-only) AND ISC", true),
            ("((MIT))", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("Apache-2.0 WITH Classpath-exception-2.0", false),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
            ("GPL-3.0-only WITH GCC-exception-3.1 AND MIT", false),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0-only / MIT", true),
            ("GPL-2.0-only/GPL-3.0-only", false),
        ] {
            assert_eq!(permits(expression, allowed), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn a_broken_expression_is_refused_with_what_is_missing() {
        for (expression, expected) in [
            ("", "a licence is missing at the end"),
            ("MIT OR", "a licence is missing at the end"),
            ("MIT WITH", "a licence is missing at the end"),
            ("OR MIT", "a licence is missing before `OR`"),
            ("MIT AND OR ISC", "a licence is missing before `OR`"),
            ("()", "a licence is missing before `)`"),
            ("(MIT", "a `)` is missing"),
            ("MIT)", "`)` is not expected"),
            ("MIT ISC", "`ISC` is not expected"),
        ] {
            assert_eq!(permits(expression, allowed), Err(expected.to_owned()), "{expression}");
        }
    }
}
