//! What the function becomes: a few statements before its body, which stays as it was.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::Expr;
use syn::ext::IdentExt;
use syn::spanned::Spanned;

use crate::function::Function;
use crate::gate::{Gate, Under, Wait};

/// The function behind its gate.
///
/// The body is a block of its own behind the check, neither a closure nor an async block: types are
/// inferred, values borrowed and `?` and `return` understood as without the attribute.
pub(crate) fn expand(gate: &Gate, function: &Function) -> TokenStream {
    let Function { head, inner_attributes, body, .. } = function;
    let pass = pass(gate, function);
    // The braces that were written are those of the function now; a lint would find a block in a
    // block one too many.
    let body = braces(body.stream(), here().located_at(body.span()));
    let inside = quote_spanned! {here()=>
        #inner_attributes
        let __tidegate_pass = { #pass };
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

/// Asks, and leaves the function if the answer is no.
///
/// Every argument is a statement, so that what it borrows or locks is free again before anybody
/// waits. Variables here are out of sight for the arguments. Items are not, and a constant of the
/// user's could be taken for a variable of ours, hence the names.
fn pass(gate: &Gate, function: &Function) -> TokenStream {
    let tidegate = &gate.tidegate;
    let visit = Ident::new("__tidegate_visit", here());
    // What does not fit is told where it is written.
    let at = |expression: &Expr| here().located_at(expression.span());
    let key = gate.key.iter().map(|part| {
        let part_of = quote_spanned!(at(part)=> #tidegate::__site::Part::of(&(#part)));
        quote_spanned!(at(part)=> let #visit = #part_of.add_to(#visit);)
    });
    let cost =
        gate.cost.iter().map(|cost| quote_spanned!(at(cost)=> let #visit = #visit.cost(#cost);));
    let wait = gate.wait.iter().map(|wait| match wait {
        Wait::Known(span) => {
            let micros = span.get();
            let span = quote_spanned!(here()=> ::core::time::Duration::from_micros(#micros));
            quote_spanned!(here()=> let #visit = #visit.wait(#span);)
        }
        Wait::Computed(wait) => quote_spanned!(at(wait)=> let #visit = #visit.wait(#wait);),
    });
    // A clone is the same limiter: the expression may have found it behind a lock.
    let limiter = match &gate.limiter {
        Some(limiter) => quote_spanned! {at(limiter)=>
            <#tidegate::Limiter as ::core::clone::Clone>::clone(&(#limiter))
        },
        None => quote_spanned!(here()=> #tidegate::Limiter::global()),
    };
    let site = site(gate, function);
    let limited = limited(gate);
    quote_spanned! {here()=>
        #site
        let __tidegate_limiter = #limiter;
        let #visit = #tidegate::__site::Visit::new();
        #(#key)*
        #(#cost)*
        #(#wait)*
        match __TIDEGATE_SITE.pass(&__tidegate_limiter, #visit).await {
            ::core::result::Result::Ok(__tidegate_pass) => __tidegate_pass,
            #limited
        }
    }
}

/// What the function is under, in a static: it is made once, for all its types if it is generic.
fn site(gate: &Gate, function: &Function) -> TokenStream {
    let tidegate = &gate.tidegate;
    let place = quote_spanned!(here()=> #tidegate::__site::Place);
    let site = match &gate.under {
        Under::Rule(rule) => quote_spanned!(here()=> named(#rule)),
        Under::Limits { limits, name: Some(name) } => {
            quote_spanned!(here()=> limited(#place::Given(#name), &[#(#limits),*]))
        }
        Under::Limits { limits, name: None } => {
            let function = function.name.unraw().to_string();
            let path = quote_spanned! {here()=> #place::Path {
                module: ::core::module_path!(),
                function: #function,
                inside: ::core::any::type_name::<__TidegateHere>,
            }};
            quote_spanned!(here()=> limited(#path, &[#(#limits),*]))
        }
    };
    // The type stands in the function itself, for the sake of its path.
    let here_type = (!gate.is_named()).then(|| quote_spanned!(here()=> enum __TidegateHere {}));
    quote_spanned! {here()=>
        #here_type
        static __TIDEGATE_SITE: #tidegate::__site::Site = #tidegate::__site::Site::#site;
    }
}

/// The arm for whoever is limited. `or` is to see the reason, so this one name is the caller's.
fn limited(gate: &Gate) -> TokenStream {
    let reason = match gate.or {
        Some(_) => Ident::new("limited", Span::call_site()),
        None => Ident::new("__tidegate_limited", here()),
    };
    let answer = match &gate.or {
        // Written out, it would be one more than a lint likes.
        Some(Expr::Tuple(unit)) if unit.elems.is_empty() => TokenStream::new(),
        Some(or) => or.to_token_stream(),
        None => quote_spanned! {here()=>
            ::core::result::Result::Err(::core::convert::From::from(#reason))
        },
    };
    quote_spanned!(here()=> ::core::result::Result::Err(#reason) => return #answer,)
}

/// Names are looked up as if written by the user, variables are ours alone.
fn here() -> Span {
    Span::mixed_site()
}
