//! The attribute `#[rate_limit(..)]` of [`tidegate`](https://docs.rs/tidegate), which re-exports it
//! as `tidegate::rate_limit` under its feature `macros`. See [`macro@rate_limit`].
//!
//! ```
//! use tidegate::{Limited, rate_limit};
//!
//! #[rate_limit("5/min", key = author)]
//! async fn create_post(author: &str, body: String) -> Result<usize, Limited> {
//!     Ok(body.len())
//! }
//! ```
//!
//! # Layout
//!
//! Each module imports only modules above it in this list.
//!
//! - `errors`: several compile errors at once.
//! - `args`: the arguments as written. `notation`: limits, durations and names in them.
//!   `attribute`: the checked arguments.
//! - `function`: the item under the attribute. `expand`: the generated code.

mod args;
mod attribute;
mod errors;
mod expand;
mod function;
mod notation;

use proc_macro::TokenStream;
use quote::quote;
use syn::{Error, Result};

use crate::attribute::AttributeSpec;
use crate::errors::CompileErrors;
use crate::function::Function;

/// Limits an async function.
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
/// Before the body runs, the limiter is checked. If it denies the call, the function returns an
/// error made from `Limited`, which carries `retry_after`, and the body does not run. Limits are
/// parsed at compile time: `"100/s brust 20"` is an error that points at `brust` and has the
/// correction.
///
/// # Arguments
///
/// | argument | meaning | default |
/// |---|---|---|
/// | `"5/min"`, `"fixed-window 1000/d"` .. | limits, up to 16; all are charged, or none | a `rule` is required |
/// | `rule = "login"` | a rule of the limiter's policy, instead of limits | limits are required |
/// | `key = user.id`, `key = (tenant, ip)` | the key to count under: text, numbers, addresses, any `Display` type; a tuple of up to 16 parts | all calls count together |
/// | `cost = body.len()` | the cost, any integer; 0 charges nothing | 1 |
/// | `wait = "200ms"`, `wait = timeout` | waits at most this long, first come, first served; a text or a `Duration` | no waiting |
/// | `or = Vec::new()` | the value to return when limited; `limited` is the `tidegate::Limited` in it | the function returns a `Result<_, E>` with `E: From<Limited>` |
/// | `limiter = &self.limiter` | a `Limiter`, or a reference or an `Arc` of one | `Limiter::global()` |
/// | `name = "posts"` | the name of the function's rule; two functions of one name count together | its path, `shop.posts.create_post` |
/// | `crate = path` | the path of `tidegate` | `::tidegate` |
///
/// The arguments are expressions over the function's arguments and `self`. They are evaluated in
/// each call: the limiter first, then key, cost and wait. They do not move an argument out of the
/// body.
///
/// An address counts as its
/// [`ClientNetwork`](https://docs.rs/tidegate/latest/tidegate/struct.ClientNetwork.html): an IPv6
/// address as its /64, a socket address without its port. Text is used unchanged.
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
///     #[rate_limit("100/s", "fixed-window 1000/d", key = (tenant, ip), limiter = &self.limiter,
///         or = Vec::new())]
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
/// assert_eq!(search.index(b"spec").await?, 4);
/// # Ok(())
/// # }
/// ```
///
/// # Restrictions
///
/// - Only async functions can be limited; call `Limiter::check_now` in others. A function rewritten
///   by `async-trait` is no longer async.
/// - What happens while a store does not reply is a setting of a named `rule`, not of the
///   attribute. Waiting needs a Tokio runtime with its timer.
/// - Two attributes on one function are two decisions: one may be charged when the other denies.
///   The limits of one attribute are one decision.
/// - Time zones are looked up at run time. A limit in an unknown zone, a `rule` that the limiter
///   does not have, a negative cost and a key of more than 1,024 bytes each return
///   `Limited::NoAnswer`; the body does not run.
/// - A value of a generic type is used as printed, even if it is an address.
/// - The rule name of a trait's method contains a hash, which may differ between compiler versions.
///   If processes of different builds share a store, give such a function a `name`. The same
///   applies to functions of the same name in different blocks of one function, which would count
///   together.
/// - A `leaky-bucket .. queue` delays the call; dropped while it waits, the call loses its turn,
///   unless there is a `wait`.
#[proc_macro_attribute]
pub fn rate_limit(args: TokenStream, item: TokenStream) -> TokenStream {
    let item = proc_macro2::TokenStream::from(item);
    let limited = limited(args.into(), item.clone()).unwrap_or_else(|error| {
        // The function stays, so that its callers compile without further errors.
        let error = error.into_compile_error();
        quote!(#error #item)
    });
    limited.into()
}

fn limited(
    args: proc_macro2::TokenStream,
    item: proc_macro2::TokenStream,
) -> Result<proc_macro2::TokenStream> {
    let mut errors = CompileErrors::default();
    let spec = errors.record(syn::parse2(args).and_then(AttributeSpec::new));
    let function = errors.record(Function::new(item));
    if let (Some(spec), Some(function)) = (&spec, &function) {
        if spec.or.is_none() {
            errors.record(function.check_returns_result());
        }
        if function.has_attribute("rate_limit") && !spec.is_named() {
            let reason = "another rate_limit on the same function; give this one a `name`, so that \
                          they count apart, or write all limits into one";
            errors.record::<()>(Err(Error::new(proc_macro2::Span::call_site(), reason)));
        }
    }
    errors.finish()?;
    // A missing value has left an error, which was returned above.
    Ok(spec
        .zip(function)
        .map(|(spec, function)| expand::expand(&spec, &function))
        .unwrap_or_default())
}
