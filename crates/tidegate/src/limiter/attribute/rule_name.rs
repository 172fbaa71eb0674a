//! Rule name of a function.

use std::borrow::Cow;

/// The path of a function, for the name of its rule.
#[derive(Clone, Copy, Debug)]
pub enum FunctionPath {
    /// The name was given.
    Given(&'static str),
    /// The name is made of the path.
    Path {
        /// The path of the module.
        module: &'static str,
        /// The name of the function.
        function: &'static str,
        /// Returns the path of a type inside the function. Only the compiler knows the other parts
        /// of the path: an enclosing function, or the type of a method.
        inside: fn() -> &'static str,
    },
}

impl FunctionPath {
    /// A valid rule name, the same in every process.
    ///
    /// It is the path, if that is a valid name. The compiler may change how it prints other paths,
    /// such as that of a trait's method; such a path enters the name as a hash, after the stable
    /// part.
    pub(crate) fn rule_name(&self) -> Cow<'static, str> {
        match *self {
            Self::Given(name) => Cow::Borrowed(name),
            Self::Path { module, function, inside } => {
                Cow::Owned(name_of(&format!("{module}::{function}"), inside()))
            }
        }
    }
}

/// Longest name of a rule.
const MAX_LEN: usize = 64;

/// `known` is the path as far as it is known without the compiler; `inside` is the path of an item
/// in the function's body.
fn name_of(known: &str, inside: &str) -> String {
    // The last segment is the type itself. Blocks and closures, `{{closure}}`, are skipped.
    let around = inside.rsplit_once("::").map_or("", |(around, _)| around);
    let segments: Vec<&str> = around.split("::").filter(|part| !part.starts_with('{')).collect();
    let path = segments.join("::");
    match dotted(&path) {
        (name, true) if name.len() <= MAX_LEN => name,
        (name, true) => with_hash(name, &path),
        (_, false) => with_hash(dotted(known).0, &path),
    }
}

/// The path with dots, and whether the conversion was lossless.
fn dotted(path: &str) -> (String, bool) {
    let name: String = path
        .replace("::", ".")
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "_.".contains(c) { c } else { '_' })
        .collect();
    let lossless =
        name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.replace('.', "::") == path;
    (name, lossless)
}

/// The name truncated, followed by the hash of the whole path.
fn with_hash(mut name: String, path: &str) -> String {
    let hash = format!("-{:08x}", fnv1a(path.as_bytes()));
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        name.insert_str(0, "fn");
    }
    name.truncate(MAX_LEN - hash.len());
    name + &hash
}

/// A hash that is the same on every platform and version, which the hashers of the standard library
/// do not guarantee. Collisions by attackers are not a concern for function names.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use std::any::type_name;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::Rule;

    fn named(module: &str, function: &str, inside: &str) -> String {
        let name = name_of(&format!("{module}::{function}"), inside);
        assert!(Rule::new(&name, ["5/m".parse().unwrap()]).is_ok(), "{name}");
        name
    }

    #[test]
    fn a_plain_path_is_the_name() {
        for (inside, name) in [
            ("shop::posts::create::{{closure}}::Here", "shop.posts.create"),
            ("shop::posts::create::Here", "shop.posts.create"),
            ("shop::posts::create::{closure#0}::Here", "shop.posts.create"),
            ("shop::posts::Blog::create::{{closure}}::Here", "shop.posts.Blog.create"),
            (
                "shop::posts::outer::{{closure}}::create::{{closure}}::Here",
                "shop.posts.outer.create",
            ),
        ] {
            assert_eq!(named("shop::posts", "create", inside), name);
        }
    }

    #[test]
    fn any_other_path_is_the_functions_name_and_a_hash() {
        for (module, function, inside) in [
            ("shop", "get", "<shop::Blog as shop::Store>::get::{{closure}}::Here"),
            ("shop", "get", "<shop::Shelf as shop::Store>::get::{{closure}}::Here"),
            ("shop", "get", "shop::Blog<T>::get::{{closure}}::Here"),
            ("shop", "get", ""),
            ("shop", "get", "Here"),
        ] {
            let name = named(module, function, inside);
            assert!(name.len() == 17 && name.starts_with("shop.get-"), "{name}");
        }
        let unlike = |inside| named("shop", "get", inside);
        assert_ne!(unlike("<shop::A as S>::get::Here"), unlike("<shop::B as S>::get::Here"));
        let letters = |inside| named("shop", "\u{e9}", inside);
        assert_ne!(letters("shop::\u{e9}::Here"), letters("shop::\u{e8}::Here"));
        assert!(named("_shop", "get", "_shop::get::Here").starts_with("fn_shop.get-"));
    }

    #[test]
    fn a_name_that_is_too_long_is_truncated_and_stays_distinct() {
        let long = |end: &str| format!("shop::{}::{end}::Here", "m".repeat(70));
        let (one, other) = (long("one"), long("other"));
        let (one, other) = (named("shop", "one", &one), named("shop", "other", &other));
        assert_eq!((one.len(), other.len()), (MAX_LEN, MAX_LEN));
        assert!(one.starts_with("shop.mmm") && one != other, "{one} and {other}");
        let fits = format!("shop::{}::Here", "m".repeat(MAX_LEN - 5));
        assert_eq!(named("shop", "m", &fits), format!("shop.{}", "m".repeat(MAX_LEN - 5)));
        // Values of the published hash.
        assert_eq!(
            (fnv1a(b""), fnv1a(b"a"), fnv1a(b"foobar")),
            (0x811c_9dc5, 0xe40c_292c, 0xbf9c_f968)
        );
    }

    async fn here() -> &'static str {
        enum Here {}
        type_name::<Here>()
    }

    #[test]
    fn the_compiler_prints_paths_in_the_expected_form() {
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(inside) = pin!(here()).poll(&mut cx) else {
            unreachable!("it never waits")
        };
        let name = named(module_path!(), "here", inside);
        assert_eq!(name, "tidegate.limiter.attribute.rule_name.tests.here");
    }
}
