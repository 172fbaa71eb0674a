//! The attribute `#[rate_limit(..)]` of [`tidegate`](https://docs.rs/tidegate), which has it as
//! `tidegate::rate_limit` under its feature `macros`. See [`macro@rate_limit`].
//!
//! # Layout
//!
//! - `args`: what is written in the attribute. `gate`: what it means, checked. `notation`: the
//!   texts among it.
//! - `function`: what it is written on. `expand`: what becomes of that.
//! - `faults`: errors that tell all.

mod args;
mod expand;
mod faults;
mod function;
mod gate;
mod notation;

use proc_macro::TokenStream;
use quote::quote;
use syn::{Error, Result};

use crate::faults::Faults;
use crate::function::Function;
use crate::gate::Gate;

/// Puts a limit on an async function.
///
/// ```
/// use tidegate::{Limited, rate_limit};
///
/// #[rate_limit("5/min", key = author)]
/// async fn create_post(author: &str, body: String) -> Result<usize, Limited> {
///     Ok(body.len())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// for attempt in 1..=6 {
///     let posted = create_post("alice", "hello".to_string()).await;
///     assert_eq!(posted.is_ok(), attempt <= 5);
/// }
/// assert!(create_post("bob", String::new()).await.is_ok());
/// # }
/// ```
///
/// In `Cargo.toml`: `tidegate = { version = "0.1", features = ["macros"] }`.
///
/// Before the body runs, the limiter is asked. If it says no, the function returns an error made
/// from `Limited`, which tells when to come back, and the body does not run. Limits are checked when
/// the program is compiled: `"100/s brust 20"` is an error that points at `brust` and says what to
/// write.
///
/// # Arguments
///
/// | argument | what it says | without it |
/// |---|---|---|
/// | `"5/min"`, `"fixed-window 1000/d"` .. | limits, up to 16; all are charged, or none | a `rule` has to be named |
/// | `rule = "login"` | a rule of the limiter's policy, in the place of limits | limits have to be written |
/// | `key = user.id`, `key = (tenant, ip)` | who is counted: text, numbers, addresses, anything that is `Display`; a tuple of up to 16 parts | all callers count together |
/// | `cost = body.len()` | how much it takes, any integer; 0 takes nothing | 1 |
/// | `wait = "200ms"`, `wait = timeout` | waits for its turn, first come first served, at most this long; a text or a `Duration` | it is decided at once |
/// | `or = Vec::new()` | what to return when limited; `limited` is the `tidegate::Limited` in it | the function returns a `Result<_, E>` with `E: From<Limited>` |
/// | `limiter = &self.limiter` | who is asked: a `Limiter`, or a reference or an `Arc` of one | `Limiter::global()` |
/// | `name = "posts"` | the name of the function's rule; two functions of one name count together | its path, `shop.posts.create_post` |
/// | `crate = path` | where `tidegate` is, if not at `::tidegate` | |
///
/// They are expressions over the function's arguments, and over `self`. They are evaluated in each
/// call: the limiter first, then key, cost and wait. None takes an argument away from the body.
///
/// An address counts as [`Client`](https://docs.rs/tidegate/latest/tidegate/struct.Client.html): an
/// IPv6 address as its /64, a socket address without its port. Text is taken as it is.
///
/// ```
/// use std::net::IpAddr;
/// use tidegate::{Limit, Limited, Limiter, Memory, rate_limit};
///
/// struct Search {
///     limiter: Limiter,
/// }
///
/// impl Search {
///     #[rate_limit("100/s", "fixed-window 1000/d", key = (tenant, ip), limiter = &self.limiter, or = Vec::new())]
///     async fn find(&self, tenant: &str, ip: IpAddr, words: &[&str]) -> Vec<String> {
///         words.iter().map(|word| word.to_uppercase()).collect()
///     }
///
///     #[rate_limit(rule = "default", cost = body.len(), wait = "200ms", limiter = &self.limiter)]
///     async fn index(&self, body: &[u8]) -> Result<usize, Limited> {
///         Ok(body.len())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let search = Search { limiter: Limiter::new(Memory::default(), "1000/s".parse::<Limit>()?) };
/// assert_eq!(search.find("acme", "::1".parse()?, &["tide"]).await, ["TIDE"]);
/// assert_eq!(search.index(b"gate").await?, 4);
/// # Ok(())
/// # }
/// ```
///
/// # What it does not do
///
/// - It does not limit functions that are not async; call `Limiter::check_now` in those. What
///   `async-trait` has rewritten is not async any more.
/// - It does not choose what happens while a store does not answer; a named `rule` does. Waiting
///   needs a Tokio runtime with its timer.
/// - Two attributes on one function are two decisions: the one may be charged when the other
///   denies. The limits of one attribute are one decision.
/// - Time zones are looked up at run time. A limit in an unknown zone, a `rule` that the limiter
///   does not have, a negative cost and a key of more than 1,024 bytes are each answered with
///   `Limited::NoAnswer`; the body does not run.
/// - A value of a generic type is taken as it prints, be it an address or not.
/// - The name of a trait's method has a hash in it, which another compiler may make another. Where
///   processes that are built differently share a store, give such a function a `name`. The same
///   goes for functions of one name in different blocks of one function, which would count
///   together.
/// - A `leaky-bucket .. queue` delays the call by itself; dropped while it waits, its turn is lost
///   unless there is a `wait`.
#[proc_macro_attribute]
pub fn rate_limit(args: TokenStream, item: TokenStream) -> TokenStream {
    let item = proc_macro2::TokenStream::from(item);
    let limited = limited(args.into(), item.clone()).unwrap_or_else(|error| {
        // The function stays, so that nobody who calls it is blamed as well.
        let error = error.into_compile_error();
        quote!(#error #item)
    });
    limited.into()
}

fn limited(
    args: proc_macro2::TokenStream,
    item: proc_macro2::TokenStream,
) -> Result<proc_macro2::TokenStream> {
    let mut faults = Faults::default();
    let gate = faults.note(syn::parse2(args).and_then(Gate::new));
    let function = faults.note(Function::new(item));
    if let (Some(gate), Some(function)) = (&gate, &function) {
        if gate.or.is_none() {
            faults.note(function.check_returns_result());
        }
        if function.has_attribute("rate_limit") && !gate.is_named() {
            let reason = "another rate_limit on the same function; give this one a `name`, so that \
                          they count apart, or write all limits into one";
            faults.note::<()>(Err(Error::new(proc_macro2::Span::call_site(), reason)));
        }
    }
    faults.none()?;
    // Whatever is missing has left a fault.
    Ok(gate
        .zip(function)
        .map(|(gate, function)| expand::expand(&gate, &function))
        .unwrap_or_default())
}
