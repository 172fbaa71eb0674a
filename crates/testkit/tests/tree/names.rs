//! One type name has one meaning.

use std::collections::BTreeMap;
use std::fs;

use crate::modules::{Flat, flat_tokens, group_len, is_test_attribute, item_len};
use crate::{crates, files};

/// Names that say what they are by their module.
const BY_MODULE: [&str; 3] = ["Builder", "Error", "Options"];

/// The same idea under the same name in more than one place, with the reason.
const SHARED: [(&str, &str); 3] = [
    ("Bucket", "the core's algorithm, and Spring Cloud Gateway's settings under Spring's name"),
    ("RateLimiter", "Redisson's and Spring's limiters, each under its own name"),
    ("Tls", "two builds of one type, with and without the feature `tls`"),
];

#[test]
fn no_two_types_share_a_name() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (_, folder) in crates() {
        let src = folder.join("src");
        let sources = if src.is_dir() { files(&src, &["rs"]) } else { Vec::new() };
        for file in sources.into_iter().filter(|file| !file.ends_with("tests.rs")) {
            for name in defined(&flat_tokens(&fs::read_to_string(&file).unwrap()).unwrap()) {
                places.entry(name.to_owned()).or_default().push(file.display().to_string());
            }
        }
    }
    assert!(places.len() > 500, "only {} types found", places.len());
    places.retain(|name, files| {
        let excused =
            BY_MODULE.contains(&&**name) || SHARED.iter().any(|(shared, _)| shared == name);
        files.len() > 1 && !excused
    });
    assert!(places.is_empty(), "types of one name: {places:#?}");
}

/// The types that a file defines, also inside macro calls such as `pin_project!`. Test code and the
/// associated types of traits are left out.
fn defined(tokens: &[Flat]) -> Vec<&str> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        at += match &tokens[at..] {
            item @ [Flat::Mark('#'), ..] if is_test_attribute(item) => item_len(item),
            [Flat::Mark('#'), Flat::Open('['), ..] => 1 + group_len(&tokens[at + 1..]),
            item @ [Flat::Name(keyword), Flat::Name(name), ..]
                if matches!(&**keyword, "struct" | "enum" | "trait" | "union" | "type") =>
            {
                found.push(&**name);
                item_len(item)
            }
            item @ [Flat::Name(keyword), ..]
                if matches!(&**keyword, "fn" | "impl" | "const" | "static" | "macro_rules") =>
            {
                item_len(item)
            }
            _ => 1,
        };
    }
    found
}

#[test]
fn types_are_found_in_macro_calls_and_behind_test_code() {
    let text = "
        #[cfg(test)] mod tests { struct InTest; }
        pin_project! { pub struct Projected<T> where T: Copy { #[pin] inner: T } }
        impl Iterator for Projected<u8> { type Item = u8; }
        fn f() { struct Local; }
        mod inner { pub(crate) enum Inner { A } pub type Alias = Inner; }";
    assert_eq!(defined(&flat_tokens(text).unwrap()), ["Projected", "Inner", "Alias"]);
}
