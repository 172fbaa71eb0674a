//! What the attribute means: its arguments, checked.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{Error, Expr, Lit, LitStr, Path, Result};
use tidegate_core::Micros;

use crate::args::Args;
use crate::faults::Faults;
use crate::notation;

/// The most parts of a key, and the most limits of a rule. Both are numbers of `tidegate`.
const MOST: usize = 16;

/// A checked attribute.
pub(crate) struct Gate {
    pub(crate) under: Under,
    pub(crate) key: Vec<Expr>,
    pub(crate) cost: Option<Expr>,
    pub(crate) wait: Option<Wait>,
    pub(crate) or: Option<Expr>,
    pub(crate) limiter: Option<Expr>,
    /// The path of `tidegate`.
    pub(crate) tidegate: TokenStream,
}

/// What the function is under.
pub(crate) enum Under {
    /// A rule of the limiter's policy.
    Rule(String),
    /// Limits of its own, under a name that was given or is still to be made.
    Limits { limits: Vec<String>, name: Option<String> },
}

/// How long a call waits at most.
pub(crate) enum Wait {
    Known(Micros),
    Computed(Expr),
}

impl Gate {
    /// All faults at once, so that nobody has to compile once for each.
    pub(crate) fn new(args: Args) -> Result<Self> {
        let Args { limits, key, cost, wait, or, limiter, rule, name, krate } = args;
        let mut faults = Faults::default();
        let under = faults.note(under(limits, rule, name));
        let key = faults.note(key.map_or(Ok(Vec::new()), parts));
        let wait = faults.note(wait.map(patience).transpose());
        faults.none()?;
        let (Some(under), Some(key), Some(wait)) = (under, key, wait) else {
            return Err(Error::new(Span::call_site(), "the attribute cannot be read"));
        };
        let tidegate = krate.map_or(quote!(::tidegate), Path::into_token_stream);
        Ok(Self { under, key, cost, wait, or, limiter, tidegate })
    }

    /// Has its rule a name that no other attribute on the same function gets by itself?
    pub(crate) fn is_named(&self) -> bool {
        !matches!(self.under, Under::Limits { name: None, .. })
    }
}

fn under(limits: Vec<LitStr>, rule: Option<LitStr>, name: Option<LitStr>) -> Result<Under> {
    match (rule, limits.get(MOST)) {
        (None, _) if limits.is_empty() => Err(Error::new(
            Span::call_site(),
            "no limit; begin with one, as in #[rate_limit(\"5/min\")], or name a rule of the \
             limiter: #[rate_limit(rule = \"login\")]",
        )),
        (Some(rule), _) if !limits.is_empty() => Err(Error::new(
            rule.span(),
            "either limits or a rule; leave out `rule`, or write the limits into the rule",
        )),
        (Some(rule), _) => match name {
            Some(name) => {
                Err(Error::new(name.span(), "a rule has its name already; leave out `name`"))
            }
            None => notation::rule_name(&rule).map(Under::Rule),
        },
        (None, Some(one_more)) => {
            Err(Error::new(one_more.span(), format!("more than {MOST} limits; leave some out")))
        }
        (None, None) => {
            let mut faults = Faults::default();
            let limits =
                limits.iter().filter_map(|text| faults.note(notation::limit(text))).collect();
            let name = name.and_then(|name| faults.note(notation::rule_name(&name)));
            faults.none()?;
            Ok(Under::Limits { limits, name })
        }
    }
}

/// A tuple is a key of several parts, anything else is a key of one.
fn parts(key: Expr) -> Result<Vec<Expr>> {
    let Expr::Tuple(tuple) = key else { return Ok(vec![key]) };
    let at = |reason: String| Err(Error::new_spanned(&tuple, reason));
    match tuple.elems.len() {
        0 => at("an empty key; leave out `key` to count all callers together".into()),
        1..=MOST => Ok(tuple.elems.into_iter().collect()),
        count => at(format!("a key of {count} parts; use at most {MOST}")),
    }
}

fn patience(wait: Expr) -> Result<Wait> {
    match wait {
        Expr::Lit(literal) => match literal.lit {
            Lit::Str(text) => notation::wait(&text).map(Wait::Known),
            other => Err(Error::new_spanned(other, "write how long in quotes: \"200ms\"")),
        },
        computed => Ok(Wait::Computed(computed)),
    }
}
