//! The generated code: a few statements before the body, which is unchanged.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::Expr;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use crate::attribute::{AttributeSpec, LimitSource, WaitFor};
use crate::function::Function;

/// The function with the check before its body.
///
/// The body is a block after the check, neither a closure nor an async block: type inference,
/// borrows, `?` and `return` work as without the attribute.
pub(crate) fn expand(spec: &AttributeSpec, function: &Function) -> TokenStream {
    let Function { head, inner_attributes, body, .. } = function;
    let check = check(spec, function);
    // The outer braces keep the span of the written ones; a lint would report the inner block as
    // redundant otherwise.
    let body = braces(body.stream(), here().located_at(body.span()));
    let inside = quote_spanned! {here()=>
        #inner_attributes
        let __tidegate_permit = { #check };
        #body
    };
    let whole = braces(inside, function.body.span());
    quote!(#head #whole)
}

fn braces(inside: TokenStream, span: Span) -> Group {
    let mut group = Group::new(Delimiter::Brace, inside);
    group.set_span(span);
    group
}

/// The check, which returns from the function if it is denied.
///
/// Every argument is a statement, so that its borrows and locks end before the call waits.
/// Variables here are invisible to the arguments. Items are not, and a user's constant could be
/// taken for one of these variables; hence the long names.
fn check(spec: &AttributeSpec, function: &Function) -> TokenStream {
    let tidegate = &spec.tidegate;
    let call = Ident::new("__tidegate_call", here());
    // Type errors are reported at the argument.
    let at = |expression: &Expr| here().located_at(expression.span());
    let key = spec.key.iter().map(|part| {
        let part_of = quote_spanned!(at(part)=> #tidegate::__attribute::KeyArg::of(&(#part)));
        quote_spanned!(at(part)=> let #call = #part_of.add_to(#call);)
    });
    let cost =
        spec.cost.iter().map(|cost| quote_spanned!(at(cost)=> let #call = #call.cost(#cost);));
    let wait = spec.wait.iter().map(|wait| match wait {
        WaitFor::Known(span) => {
            let micros = span.get();
            let span = quote_spanned!(here()=> ::core::time::Duration::from_micros(#micros));
            quote_spanned!(here()=> let #call = #call.wait(#span);)
        }
        WaitFor::Computed(wait) => quote_spanned!(at(wait)=> let #call = #call.wait(#wait);),
    });
    // A clone is the same limiter; the expression may have found it behind a lock.
    let limiter = match &spec.limiter {
        Some(limiter) => quote_spanned! {at(limiter)=>
            <#tidegate::Limiter as ::core::clone::Clone>::clone(&(#limiter))
        },
        None => quote_spanned!(here()=> #tidegate::Limiter::global()),
    };
    let limited_function = limited_function(spec, function);
    let limited = limited(spec);
    quote_spanned! {here()=>
        #limited_function
        let __tidegate_limiter = #limiter;
        let #call = #tidegate::__attribute::FunctionCall::new();
        #(#key)*
        #(#cost)*
        #(#wait)*
        match __TIDEGATE_LIMIT.enter(&__tidegate_limiter, #call).await {
            ::core::result::Result::Ok(__tidegate_permit) => __tidegate_permit,
            #limited
        }
    }
}

/// The function's limits, in a static: made once, also for all types of a generic function.
fn limited_function(spec: &AttributeSpec, function: &Function) -> TokenStream {
    let tidegate = &spec.tidegate;
    let path_type = quote_spanned!(here()=> #tidegate::__attribute::FunctionPath);
    let constructor = match &spec.source {
        LimitSource::Rule(rule) => quote_spanned!(here()=> named(#rule)),
        LimitSource::Limits { limits, name: Some(name) } => {
            quote_spanned!(here()=> limited(#path_type::Given(#name), &[#(#limits),*]))
        }
        LimitSource::Limits { limits, name: None } => {
            let function = function.name.unraw().to_string();
            let path = quote_spanned! {here()=> #path_type::Path {
                module: ::core::module_path!(),
                function: #function,
                inside: ::core::any::type_name::<__TidegateHere>,
            }};
            quote_spanned!(here()=> limited(#path, &[#(#limits),*]))
        }
    };
    // The type is defined in the function, because its path is needed.
    let here_type = (!spec.is_named()).then(|| quote_spanned!(here()=> enum __TidegateHere {}));
    quote_spanned! {here()=>
        #here_type
        static __TIDEGATE_LIMIT: #tidegate::__attribute::LimitedFunction = #tidegate::__attribute::LimitedFunction::#constructor;
    }
}

/// The match arm of a denied call. `or` uses the reason, so its name is resolved at the call site.
fn limited(spec: &AttributeSpec) -> TokenStream {
    let reason = match spec.or {
        Some(_) => Ident::new("limited", Span::call_site()),
        None => Ident::new("__tidegate_limited", here()),
    };
    let value = match &spec.or {
        // Printed, the unit value would trigger a lint.
        Some(Expr::Tuple(unit)) if unit.elems.is_empty() => TokenStream::new(),
        Some(or) => or.to_token_stream(),
        None => quote_spanned! {here()=>
            ::core::result::Result::Err(::core::convert::From::from(#reason))
        },
    };
    quote_spanned!(here()=> ::core::result::Result::Err(#reason) => return #value,)
}

/// Items resolve at the call site, local variables at the definition.
fn here() -> Span {
    Span::mixed_site()
}
