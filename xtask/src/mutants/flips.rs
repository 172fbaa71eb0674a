//! What to change in a file: one small edit at a time, each of which a test should notice.

use std::ops::Range;

use super::lexer::{Kind, Token, lex};

/// A piece of text and what to write instead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Edit {
    pub(super) span: Range<usize>,
    pub(super) old: String,
    pub(super) new: String,
}

impl Edit {
    fn new(token: &Token<'_>, new: impl Into<String>) -> Self {
        Self { span: token.span(), old: token.text.to_owned(), new: new.into() }
    }

    pub(super) fn apply(&self, source: &str) -> String {
        [&source[..self.span.start], &self.new, &source[self.span.end..]].concat()
    }
}

/// Binary operators. They count as such between spaces only: rustfmt puts spaces around
/// operators and none into generics.
const OPERATORS: &[(&str, &str)] = &[
    ("<", "<="),
    ("<=", "<"),
    (">", ">="),
    (">=", ">"),
    ("==", "!="),
    ("!=", "=="),
    ("+", "-"),
    ("-", "+"),
    ("*", "+"),
    ("/", "*"),
    ("%", "/"),
    ("+=", "-="),
    ("-=", "+="),
    ("*=", "+="),
    ("/=", "*="),
    ("%=", "/="),
    ("&&", "||"),
    ("||", "&&"),
];

/// Functions, when they are called by `.name(` or `::name(`.
const CALLS: &[(&str, &str)] = &[
    ("div_ceil", "div_euclid"),
    ("min", "max"),
    ("max", "min"),
    ("is_some", "is_none"),
    ("is_none", "is_some"),
    ("is_ok", "is_err"),
    ("is_err", "is_ok"),
];

/// Every edit worth trying in `source`.
pub(super) fn edits(source: &str) -> Vec<Edit> {
    let tokens = lex(source);
    let mut edits = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match quiet_len(&tokens[at..]) {
            0 => {
                edits.extend(edit(source, &tokens, at));
                at += 1;
            }
            len => at += len,
        }
    }
    edits
}

/// The modules that `source` declares for tests only and keeps in files of their own.
pub(super) fn test_modules(source: &str) -> Vec<&str> {
    let tokens = lex(source);
    let declared = |at: usize| {
        let attribute = &tokens[at..at + group_len(&tokens[at..])];
        let item = &tokens[at + attribute.len()..];
        match &item[..item_len(item)] {
            [.., keyword, name, end] if keyword.is("mod") && end.is(";") => {
                is_for_tests(attribute).then_some(name.text)
            }
            _ => None,
        }
    };
    (0..tokens.len()).filter(|&at| tokens[at].is("[")).filter_map(declared).collect()
}

/// How many tokens from the first on are no code that a test could judge: attributes, imports,
/// what exists for tests only, and debug assertions, which state what never happens.
fn quiet_len(tokens: &[Token<'_>]) -> usize {
    match tokens {
        [hash, bang, open, ..] if hash.is("#") && bang.is("!") && open.is("[") => {
            let len = 2 + group_len(&tokens[2..]);
            if is_for_tests(&tokens[2..len]) { tokens.len() } else { len }
        }
        [hash, open, ..] if hash.is("#") && open.is("[") => {
            let len = 1 + group_len(&tokens[1..]);
            if is_for_tests(&tokens[1..len]) { len + item_len(&tokens[len..]) } else { len }
        }
        // `use<'a>` in a return type is no import.
        [import, next, ..] if import.is("use") && !next.is("<") => item_len(tokens),
        [name, bang, _, ..] if bang.is("!") && name.text.starts_with("debug_assert") => {
            2 + group_len(&tokens[2..])
        }
        _ => 0,
    }
}

fn is_for_tests(attribute: &[Token<'_>]) -> bool {
    let text: Vec<&str> = attribute.iter().map(|token| token.text).collect();
    matches!(text.concat().as_str(), "[cfg(test)]" | "[test]")
}

/// The tokens up to the end of an item: a `;`, or a pair of braces, outside of brackets.
fn item_len(tokens: &[Token<'_>]) -> usize {
    let mut at = 0;
    while at < tokens.len() {
        let is_body = tokens[at].is("{");
        let is_import = tokens[0].is("use");
        let end = tokens[at].is(";") || is_body && !is_import;
        at += group_len(&tokens[at..]);
        if end {
            break;
        }
    }
    at
}

/// One token, or all up to the bracket that closes the first.
fn group_len(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth <= 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The edit of the token at `at`, if it is one to edit.
fn edit(source: &str, tokens: &[Token<'_>], at: usize) -> Option<Edit> {
    let token = &tokens[at];
    let before = at.checked_sub(1).map(|before| &tokens[before])?;
    let after = tokens.get(at + 1)?;
    match token.kind {
        Kind::Mark if token.is("!") => negation(before, token, after),
        Kind::Mark => {
            let is_spaced = before.end() < token.start && token.end() < after.start;
            let is_binary = is_spaced && ends_operand(before) && !is_bound(&tokens[at..]);
            let new = replacement(OPERATORS, token.text).filter(|_| is_binary)?;
            Some(Edit::new(token, new))
        }
        Kind::Word if token.is("true") => Some(Edit::new(token, "false")),
        Kind::Word if token.is("false") => Some(Edit::new(token, "true")),
        Kind::Word => {
            let is_call = (before.is(".") || before.is("::")) && after.is("(");
            let new = replacement(CALLS, token.text).filter(|_| is_call)?;
            Some(Edit::new(token, new))
        }
        Kind::Number if before.is(".") => None,
        Kind::Number => Some(Edit::new(token, flipped_bit(&source[token.span()])?)),
        Kind::Lifetime | Kind::Text => None,
    }
}

fn replacement(table: &[(&'static str, &'static str)], old: &str) -> Option<&'static str> {
    table.iter().find(|(from, _)| *from == old).map(|(_, to)| *to)
}

/// `!x` becomes `x`. The `!` of a macro follows its name, and that of `-> !` precedes nothing.
fn negation(before: &Token<'_>, bang: &Token<'_>, after: &Token<'_>) -> Option<Edit> {
    let is_macro = before.kind == Kind::Word && before.end() == bang.start;
    let is_unary = bang.end() == after.start && (after.kind == Kind::Word || after.is("("));
    if is_macro || !is_unary {
        return None;
    }
    let old = format!("!{}", after.text);
    Some(Edit { span: bang.start..after.end(), old, new: after.text.to_owned() })
}

/// An operator behind one of these is binary; behind anything else it begins a closure or a sign.
fn ends_operand(token: &Token<'_>) -> bool {
    match token.kind {
        Kind::Number | Kind::Text => true,
        Kind::Lifetime => false,
        Kind::Mark => matches!(token.text, ")" | "]" | "}" | "?"),
        Kind::Word => {
            !matches!(token.text, "return" | "break" | "in" | "if" | "while" | "match" | "move")
        }
    }
}

/// `+ 'a`, `+ use<'a>` and `+ Send` join bounds. A constant is upper case throughout, and a type
/// in an expression goes on with `::` or `(`.
fn is_bound(from_plus: &[Token<'_>]) -> bool {
    let [plus, name, after, ..] = from_plus else { return false };
    let is_type = name.text.starts_with(char::is_uppercase)
        && name.text.contains(char::is_lowercase)
        && !after.is("::")
        && !after.is("(");
    plus.is("+") && (name.kind == Kind::Lifetime || name.is("use") || is_type)
}

/// 0 for 1 and 1 for 0, with the suffix kept.
fn flipped_bit(number: &str) -> Option<String> {
    let is_suffix = |suffix: &str| suffix.is_empty() || suffix.starts_with(['_', 'u', 'i']);
    let (bit, suffix) = number.split_at_checked(1)?;
    let has_digits = suffix.trim_start_matches('_').starts_with(|next: char| next.is_ascii_digit());
    match bit {
        _ if has_digits || !is_suffix(suffix) => None,
        "0" => Some(format!("1{suffix}")),
        "1" => Some(format!("0{suffix}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Edit, edits, test_modules};

    fn flips(source: &str) -> String {
        let flips =
            edits(source).into_iter().map(|Edit { old, new, .. }| format!("{old} -> {new}"));
        flips.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn what_a_test_could_judge_is_flipped() {
        for (source, expected) in [
            ("a < b", "< -> <="),
            ("a <= b", "<= -> <"),
            ("a > b", "> -> >="),
            ("a >= b", ">= -> >"),
            ("a == b", "== -> !="),
            ("a != b", "!= -> =="),
            ("a + b", "+ -> -"),
            ("a - b", "- -> +"),
            ("a * b", "* -> +"),
            ("a / b", "/ -> *"),
            ("a % b", "% -> /"),
            ("a += b;", "+= -> -="),
            ("a + 1;", "+ -> -, 1 -> 0"),
            ("a - 1_u64;", "- -> +, 1_u64 -> 0_u64"),
            ("f(0, 1u8, 0usize)", "0 -> 1, 1u8 -> 0u8, 0usize -> 1usize"),
            ("a.div_ceil(b)", "div_ceil -> div_euclid"),
            ("a.min(b).max(c)", "min -> max, max -> min"),
            ("u64::min(a, b)", "min -> max"),
            ("a.is_some() && b.is_none()", "is_some -> is_none, && -> ||, is_none -> is_some"),
            ("a\n    || b", "|| -> &&"),
            ("x = true;", "true -> false"),
            ("x = false;", "false -> true"),
            ("if !x {}", "!x -> x"),
            ("if !(a < b) {}", "!( -> (, < -> <="),
            ("a && !matches!(b, C)", "&& -> ||, !matches -> matches"),
            ("a + Self::MAX.0 + Cost(2) + EPOCH;", "+ -> -, + -> -, + -> -"),
            ("for i in 0..1 {}", "0 -> 1, 1 -> 0"),
        ] {
            assert_eq!(flips(source), expected, "{source}");
        }
    }

    #[test]
    fn what_only_looks_like_an_operator_stays() {
        for source in [
            "fn f<'a>(x: Option<Micros>) -> Vec<Vec<u8>> {}",
            "match x { A => b, C | D => e }",
            "let x: &'static str = y;",
            "impl<T: Copy + Send + 'static> X for Y<T> {}",
            "fn f() -> impl A + 'a {}",
            "a << 2 >> b",
            "a..=b",
            "*x = -y;",
            "&&x",
            "let f = || x;",
            "thread(move || x)",
            "self.0.1 = x.0;",
            "f(10, 100, 1_000, 0x1, 0b1, 1.0)",
            "vec![x]; write!(f, x)",
            "fn f() -> ! {}",
            "x.min; min(a, b); is_some",
            "true_north; r#true",
            "a & b | c ^ d",
        ] {
            assert_eq!(flips(source), "", "{source}");
        }
    }

    #[test]
    fn what_is_not_code_under_test_stays() {
        for (source, expected) in [
            ("// a < b\nx", ""),
            ("/// a < b\nx", ""),
            ("f(\"a < b\", '0', b\"1\")", ""),
            ("#[expect(x, reason = true)]\na < b", "< -> <="),
            ("#![allow(true)]\na < b", "< -> <="),
            ("use a::{b, c::*};\na < b", "< -> <="),
            ("fn f() -> impl X + use<'a> { a < b }", "< -> <="),
            ("debug_assert!(a < b, \"{}\", c + 1);\na < b", "< -> <="),
            ("debug_assert_eq!(a, 1); a > b", "> -> >="),
            ("#[cfg(test)]\nmod tests {\n    fn f() { a < b }\n}\na > b", "> -> >="),
            ("#[cfg(test)]\nmod tests;\na > b", "> -> >="),
            ("#[cfg(test)]\n#[path = \"x\"]\nmod tests { a < b }\na > b", "> -> >="),
            ("#[cfg(test)]\nfn f(x: [u8; 1]) { a < b }\na > b", "> -> >="),
            ("#[cfg(test)]\nuse a::{b};\na > b", "> -> >="),
            ("#[cfg(not(test))]\nfn f() { a < b }", "< -> <="),
            ("#![cfg(test)]\na < b", ""),
        ] {
            assert_eq!(flips(source), expected, "{source}");
        }
    }

    #[test]
    fn a_module_for_tests_in_a_file_of_its_own_is_known() {
        for (source, expected) in [
            ("mod a;\n#[cfg(test)]\nmod b;\nmod c;", "b"),
            ("#[cfg(test)]\n#[path = \"x\"]\npub(crate) mod a;\n#[cfg(test)]\nmod b;", "a b"),
            ("#[cfg(test)]\nmod a {\n    mod b;\n}\nmod c;", ""),
            ("#[cfg(unix)]\nmod a;\n#[cfg(test)]\nuse b;\nmod c;", ""),
        ] {
            assert_eq!(test_modules(source).join(" "), expected, "{source}");
        }
    }

    #[test]
    fn an_edit_changes_its_own_place_and_no_other() {
        let source = "é < b && a < b";
        let edited: Vec<String> = edits(source).iter().map(|edit| edit.apply(source)).collect();
        assert_eq!(edited, ["é <= b && a < b", "é < b || a < b", "é < b && a <= b"]);
    }
}
