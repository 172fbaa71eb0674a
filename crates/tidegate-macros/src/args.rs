//! The attribute's arguments as written.

use proc_macro2::{Ident, Span};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::{Error, Expr, LitStr, Path, Result, Token};

/// Argument names, in the order of the error message that lists them.
const NAMES: [&str; 8] = ["key", "cost", "wait", "or", "limiter", "rule", "name", "crate"];

/// The text between the parentheses.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) limits: Vec<LitStr>,
    pub(crate) key: Option<Expr>,
    pub(crate) cost: Option<Expr>,
    pub(crate) wait: Option<Expr>,
    pub(crate) or: Option<Expr>,
    pub(crate) limiter: Option<Expr>,
    pub(crate) rule: Option<LitStr>,
    pub(crate) name: Option<LitStr>,
    pub(crate) krate: Option<Path>,
}

impl Parse for Args {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut args = Self::default();
        while !input.is_empty() {
            if input.peek(LitStr) {
                args.limits.push(input.parse()?);
            } else {
                args.parse_named(input)?;
            }
            if !input.is_empty() {
                comma(input)?;
            }
        }
        Ok(args)
    }
}

impl Args {
    fn parse_named(&mut self, input: ParseStream<'_>) -> Result<()> {
        let is_named = input.peek(Ident::peek_any) && input.peek2(Token![=]);
        if !is_named || input.peek2(Token![==]) {
            return Err(input.error(
                "expected a limit in quotes, like \"5/min\", or an argument, like key = user.id",
            ));
        }
        let name = input.call(Ident::parse_any)?;
        let spelled = name.to_string();
        if !NAMES.contains(&&*spelled) {
            return Err(unknown(&name, &spelled));
        }
        input.parse::<Token![=]>()?;
        if input.is_empty() || input.peek(Token![,]) {
            return Err(Error::new(name.span(), format!("`{spelled}` has no value")));
        }
        match &*spelled {
            "key" => set(&mut self.key, &name, input.parse()?),
            "cost" => set(&mut self.cost, &name, input.parse()?),
            "wait" => set(&mut self.wait, &name, input.parse()?),
            "or" => set(&mut self.or, &name, input.parse()?),
            "limiter" => set(&mut self.limiter, &name, input.parse()?),
            "rule" => set(&mut self.rule, &name, literal(input, "login", &name)?),
            "name" => set(&mut self.name, &name, literal(input, "posts", &name)?),
            _ => set(&mut self.krate, &name, input.call(Path::parse_mod_style)?),
        }
    }
}

/// Names the missing comma, instead of the tokens that a parser expects.
fn comma(input: ParseStream<'_>) -> Result<()> {
    if !input.peek(Token![,]) {
        return Err(input.error("expected a comma between arguments"));
    }
    input.parse::<Token![,]>().map(|_| ())
}

fn set<T>(slot: &mut Option<T>, name: &Ident, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::new(name.span(), format!("duplicate argument `{name}`"))),
    }
}

/// A name must be a literal, so that it is known at compile time.
fn literal(input: ParseStream<'_>, example: &str, name: &Ident) -> Result<LitStr> {
    let invalid = |at: Span| Error::new(at, format!("write the {name} in quotes: \"{example}\""));
    input.parse().map_err(|error: Error| invalid(error.span()))
}

fn unknown(name: &Ident, spelled: &str) -> Error {
    let advice = match (spelled, tidegate_core::did_you_mean(spelled, NAMES.into_iter())) {
        ("limit" | "limits" | "rate", _) => "write the limit by itself, as in \"5/min\"".into(),
        (_, Some(known)) => format!("did you mean `{known}`?"),
        (_, None) => format!("use one of {}", NAMES.join(", ")),
    };
    Error::new(name.span(), format!("unknown argument `{spelled}`; {advice}"))
}
