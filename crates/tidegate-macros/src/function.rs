//! The item under the attribute: an async function and its parts.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Error, Result, ReturnType, Signature, Token, Type, Visibility};

/// An async function. Everything before the body stays as written.
pub(crate) struct Function {
    pub(crate) head: TokenStream,
    /// `#![..]` at the start of the body.
    pub(crate) inner_attributes: TokenStream,
    pub(crate) body: Group,
    pub(crate) name: Ident,
    output: ReturnType,
    attributes: Vec<Attribute>,
}

impl Function {
    pub(crate) fn new(item: TokenStream) -> Result<Self> {
        let mut trees = flat(item);
        let body = trees.pop().and_then(braces);
        let is_function = trees.iter().any(|tree| matches!(tree, TokenTree::Ident(i) if i == "fn"));
        if !is_function {
            let reason = "only async functions can be rate limited; put this on an `async fn`";
            return Err(Error::new(Span::call_site(), reason));
        }
        let Some(body) = body else {
            let reason = "function has no body; use the attribute on the implementation";
            return Err(Error::new(Span::call_site(), reason));
        };
        let head: TokenStream = trees.into_iter().collect();
        let FnSignature { attributes, signature } = syn::parse2(head.clone())?;
        if signature.asyncness.is_none() {
            return Err(Error::new_spanned(
                signature.fn_token,
                "rate_limit needs an `async fn`, since a check may wait; make it async, or \
                 call `Limiter::check_now` in its body",
            ));
        }
        let (inner_attributes, body) = split(body);
        let Signature { ident: name, output, .. } = signature;
        Ok(Self { head, inner_attributes, body, name, output, attributes })
    }

    /// Whether the function has another attribute of this name.
    pub(crate) fn has_attribute(&self, name: &str) -> bool {
        let is = |attribute: &Attribute| {
            attribute.path().segments.last().is_some_and(|segment| segment.ident == name)
        };
        self.attributes.iter().any(is)
    }

    /// Refuses a function that clearly cannot return an error. A type that may be an alias of
    /// `Result` is left to the compiler.
    pub(crate) fn check_returns_result(&self) -> Result<()> {
        let advice = "without an `or` it has to return a Result<_, E> with \
                      E: From<tidegate::Limited>; add that, or what to return when limited: or = ..";
        match &self.output {
            ReturnType::Default => {
                let reason = format!("this function returns nothing; {advice}");
                Err(Error::new_spanned(&self.name, reason))
            }
            ReturnType::Type(_, output) if is_no_result(output) => {
                let reason = format!("this function returns no Result; {advice}");
                Err(Error::new_spanned(output, reason))
            }
            ReturnType::Type(..) => Ok(()),
        }
    }
}

/// Everything before the body.
struct FnSignature {
    attributes: Vec<Attribute>,
    signature: Signature,
}

impl Parse for FnSignature {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        input.parse::<Visibility>()?;
        if input.peek(Token![default]) {
            input.parse::<Token![default]>()?;
        }
        Ok(Self { attributes, signature: input.parse()? })
    }
}

/// The tokens, also of an item in an invisible group, as another macro produces it.
fn flat(item: TokenStream) -> Vec<TokenTree> {
    let trees: Vec<TokenTree> = item.into_iter().collect();
    match &trees[..] {
        [TokenTree::Group(all)] if all.delimiter() == Delimiter::None => flat(all.stream()),
        _ => trees,
    }
}

/// The block, also in an invisible group, as a macro argument has it.
fn braces(tree: TokenTree) -> Option<Group> {
    let TokenTree::Group(group) = tree else { return None };
    match group.delimiter() {
        Delimiter::Brace => Some(group),
        Delimiter::None => {
            let mut inside = group.stream().into_iter();
            inside.next().filter(|_| inside.next().is_none()).and_then(braces)
        }
        Delimiter::Parenthesis | Delimiter::Bracket => None,
    }
}

/// The body's inner attributes, and the rest of the body.
fn split(body: Group) -> (TokenStream, Group) {
    let mut trees: Vec<TokenTree> = body.stream().into_iter().collect();
    let mut end = 0;
    while let [TokenTree::Punct(hash), TokenTree::Punct(bang), TokenTree::Group(_), ..] =
        &trees[end..]
        && (hash.as_char(), bang.as_char()) == ('#', '!')
    {
        end += 3;
    }
    let rest = trees.split_off(end);
    let mut without = Group::new(Delimiter::Brace, rest.into_iter().collect());
    without.set_span(body.span());
    (trees.into_iter().collect(), without)
}

/// Whether the type is certainly not a `Result`.
fn is_no_result(output: &Type) -> bool {
    const OTHERS: [&str; 22] = [
        "bool", "char", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64",
        "i128", "isize", "f32", "f64", "String", "Vec", "Option", "Box", "HashMap", "HashSet",
    ];
    match output {
        Type::Paren(inner) => is_no_result(&inner.elem),
        Type::Group(inner) => is_no_result(&inner.elem),
        Type::Array(_) | Type::Never(_) | Type::Reference(_) | Type::Tuple(_) => true,
        Type::Path(path) => {
            let last = path.path.segments.last().filter(|_| path.qself.is_none());
            last.is_some_and(|last| OTHERS.iter().any(|name| last.ident == name))
        }
        _ => false,
    }
}
