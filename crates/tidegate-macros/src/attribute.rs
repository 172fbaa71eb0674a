//! The attribute's arguments, checked.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{Error, Expr, Lit, LitStr, Path, Result};
use tidegate_core::Micros;

use crate::args::Args;
use crate::errors::CompileErrors;
use crate::notation;

/// Largest number of key parts, and of limits in a rule: `Key::MAX_PARTS` and `Rule::MAX_LIMITS` of
/// `tidegate`, which this crate cannot depend on.
const MAX_PARTS: usize = 16;

pub(crate) struct AttributeSpec {
    pub(crate) source: LimitSource,
    pub(crate) key: Vec<Expr>,
    pub(crate) cost: Option<Expr>,
    pub(crate) wait: Option<WaitFor>,
    pub(crate) or: Option<Expr>,
    pub(crate) limiter: Option<Expr>,
    /// The path of `tidegate`.
    pub(crate) tidegate: TokenStream,
}

/// The limits of the function.
pub(crate) enum LimitSource {
    /// A rule of the limiter's policy.
    Rule(String),
    /// Limits in the attribute, under a given name or one made of the function's path.
    Limits { limits: Vec<String>, name: Option<String> },
}

/// Longest wait of a call.
pub(crate) enum WaitFor {
    Known(Micros),
    Computed(Expr),
}

impl AttributeSpec {
    /// Reports all errors at once.
    pub(crate) fn new(args: Args) -> Result<Self> {
        let Args { limits, key, cost, wait, or, limiter, rule, name, krate } = args;
        let mut errors = CompileErrors::default();
        let source = errors.record(limit_source(limits, rule, name));
        let key = errors.record(key.map_or(Ok(Vec::new()), parts));
        let wait = errors.record(wait.map(wait_for).transpose());
        errors.finish()?;
        let (Some(source), Some(key), Some(wait)) = (source, key, wait) else {
            return Err(Error::new(Span::call_site(), "invalid attribute"));
        };
        let tidegate = krate.map_or(quote!(::tidegate), Path::into_token_stream);
        Ok(Self { source, key, cost, wait, or, limiter, tidegate })
    }

    /// Whether the rule has an explicit name, which no other attribute on the same function gets by
    /// default.
    pub(crate) fn is_named(&self) -> bool {
        !matches!(self.source, LimitSource::Limits { name: None, .. })
    }
}

fn limit_source(
    limits: Vec<LitStr>,
    rule: Option<LitStr>,
    name: Option<LitStr>,
) -> Result<LimitSource> {
    match (rule, limits.get(MAX_PARTS)) {
        (None, _) if limits.is_empty() => Err(Error::new(
            Span::call_site(),
            "missing limit; write one, as in #[rate_limit(\"5/min\")], or name a rule of the \
             limiter: #[rate_limit(rule = \"login\")]",
        )),
        (Some(rule), _) if !limits.is_empty() => Err(Error::new(
            rule.span(),
            "either limits or a rule; leave out `rule`, or write the limits into the rule",
        )),
        (Some(rule), _) => match name {
            Some(name) => {
                Err(Error::new(name.span(), "`rule` already names the rule; remove `name`"))
            }
            None => notation::rule_name(&rule).map(LimitSource::Rule),
        },
        (None, Some(one_more)) => Err(Error::new(
            one_more.span(),
            format!("more than {MAX_PARTS} limits; leave some out"),
        )),
        (None, None) => {
            let mut errors = CompileErrors::default();
            let limits =
                limits.iter().filter_map(|text| errors.record(notation::limit(text))).collect();
            let name = name.and_then(|name| errors.record(notation::rule_name(&name)));
            errors.finish()?;
            Ok(LimitSource::Limits { limits, name })
        }
    }
}

/// A tuple is a key of several parts, anything else is a key of one.
fn parts(key: Expr) -> Result<Vec<Expr>> {
    let Expr::Tuple(tuple) = key else { return Ok(vec![key]) };
    let at = |reason: String| Err(Error::new_spanned(&tuple, reason));
    match tuple.elems.len() {
        0 => at("an empty key; leave out `key` to count all callers together".into()),
        1..=MAX_PARTS => Ok(tuple.elems.into_iter().collect()),
        count => at(format!("a key of {count} parts; use at most {MAX_PARTS}")),
    }
}

fn wait_for(wait: Expr) -> Result<WaitFor> {
    match wait {
        Expr::Lit(literal) => match literal.lit {
            Lit::Str(text) => notation::wait(&text).map(WaitFor::Known),
            other => Err(Error::new_spanned(other, "write how long in quotes: \"200ms\"")),
        },
        computed => Ok(WaitFor::Computed(computed)),
    }
}
