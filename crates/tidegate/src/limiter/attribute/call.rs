//! Key, cost and timeout of one function call.

use std::fmt::{self, Display, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::Cost;

use crate::engine::Refusal;
use crate::{ClientNetwork, Key};

/// Key, cost and timeout of one call. It owns its key, so that no argument of the function is
/// borrowed while it waits; a key of usual length needs no allocation.
#[derive(Debug)]
pub struct FunctionCall {
    /// The parts of the key, concatenated, and the end of each.
    text: SmallVec<[u8; 64]>,
    ends: SmallVec<[usize; 4]>,
    cost: Cost,
    wait: Option<Duration>,
    refusal: Option<Refusal>,
}

impl FunctionCall {
    /// A call with an empty key, a cost of 1 and no waiting.
    #[expect(clippy::new_without_default, reason = "only called by generated code")]
    pub fn new() -> Self {
        let (text, ends) = (SmallVec::new(), SmallVec::new());
        Self { text, ends, cost: Cost::ONE, wait: None, refusal: None }
    }

    /// Sets the cost. A negative or too large cost is refused when the call is sent.
    #[must_use]
    pub fn cost(mut self, permits: impl TryInto<u64>) -> Self {
        let permits = permits.try_into().map_err(|_| Refusal::CostRange);
        match permits.and_then(|permits| Cost::new(permits).map_err(Refusal::from)) {
            Ok(cost) => self.cost = cost,
            Err(refusal) => self.refuse(refusal),
        }
        self
    }

    /// Waits for permits, at most this long.
    #[must_use]
    pub fn wait(mut self, timeout: Duration) -> Self {
        self.wait = Some(timeout);
        self
    }

    pub(crate) fn permits(&self) -> Cost {
        self.cost
    }

    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.wait
    }

    /// The parts of the key, or the refusal.
    pub(crate) fn parts(&self) -> Result<SmallVec<[&str; 4]>, Refusal> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        let parts = starts.zip(&self.ends).map(|(start, &end)| self.text.get(start..end));
        let text = |part: Option<_>| std::str::from_utf8(part?).ok();
        parts.map(text).collect::<Option<_>>().ok_or(Refusal::KeyNotWritten)
    }

    fn with(mut self, part: &(impl Display + ?Sized)) -> Self {
        // A truncated key would be counted together with other keys.
        if write!(self, "{part}").is_err() {
            self.refuse(Refusal::KeyNotWritten);
        }
        self.ends.push(self.text.len());
        self
    }

    /// Keeps the first refusal.
    fn refuse(&mut self, refusal: Refusal) {
        self.refusal.get_or_insert(refusal);
    }
}

/// Stops at [`Key::MAX_LEN`], however much a `Display` implementation writes.
impl Write for FunctionCall {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len().saturating_add(text.len()) > Key::MAX_LEN {
            self.refuse(Refusal::KeyTooLong);
            return Err(fmt::Error);
        }
        self.text.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// A part of a key. An address is added as its [`ClientNetwork`], by the method below. Other types
/// lack that method, so that of [`DisplayArg`] is found by dereferencing.
#[derive(Debug)]
pub struct KeyArg<'a, T: ?Sized>(DisplayArg<'a, T>);

/// A part of a key that is added as printed.
#[derive(Debug)]
pub struct DisplayArg<'a, T: ?Sized>(&'a T);

impl<'a, T: ?Sized> KeyArg<'a, T> {
    /// The part with this value.
    pub const fn of(value: &'a T) -> Self {
        Self(DisplayArg(value))
    }
}

impl<T: IpArg + ?Sized> KeyArg<'_, T> {
    /// Adds this part to the key.
    #[must_use]
    pub fn add_to(&self, call: FunctionCall) -> FunctionCall {
        call.with(&ClientNetwork::from(self.0.0.address()))
    }
}

impl<'a, T: ?Sized> Deref for KeyArg<'a, T> {
    type Target = DisplayArg<'a, T>;

    fn deref(&self) -> &DisplayArg<'a, T> {
        &self.0
    }
}

impl<T: ?Sized> DisplayArg<'_, T> {
    /// Adds this part to the key.
    #[must_use]
    pub fn add_to(&self, call: FunctionCall) -> FunctionCall
    where
        T: DisplayKey,
    {
        self.0.add_to(call)
    }
}

/// A type that can be a part of a key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key",
    label = "not text, a number or an address, nor anything else that is `Display`",
    note = "several parts are written as a tuple: `key = (tenant, user.id)`"
)]
pub trait DisplayKey {
    /// Adds this part to the key.
    #[must_use]
    fn add_to(&self, call: FunctionCall) -> FunctionCall;
}

impl<T: Display + ?Sized> DisplayKey for T {
    fn add_to(&self, call: FunctionCall) -> FunctionCall {
        call.with(self)
    }
}

/// An address. The port is ignored: every connection has another.
pub trait IpArg {
    /// The address.
    fn address(&self) -> IpAddr;
}

impl IpArg for IpAddr {
    fn address(&self) -> IpAddr {
        *self
    }
}

macro_rules! addresses {
    ($($type:ty: $address:ident => $ip:expr;)*) => {
        $(impl IpArg for $type {
            fn address(&self) -> IpAddr {
                let $address = self;
                $ip
            }
        })*
    };
}

addresses! {
    Ipv4Addr: address => IpAddr::V4(*address);
    Ipv6Addr: address => IpAddr::V6(*address);
    SocketAddr: address => address.ip();
    SocketAddrV4: address => IpAddr::V4(*address.ip());
    SocketAddrV6: address => IpAddr::V6(*address.ip());
}

macro_rules! pointers {
    ($($type:ty),*) => {
        $(impl<T: IpArg + ?Sized> IpArg for $type {
            fn address(&self) -> IpAddr {
                (**self).address()
            }
        })*
    };
}

pointers!(&T, &mut T, Box<T>, Rc<T>, Arc<T>);

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a key of this one value, or the refusal.
    macro_rules! key {
        ($value:expr) => {
            KeyArg::of(&$value).add_to(FunctionCall::new()).parts().map(|parts| parts.join("|"))
        };
    }

    struct Endless;

    impl Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            loop {
                f.write_str("more and ")?;
            }
        }
    }

    /// Writes a prefix and fails.
    struct Broken;

    impl Display for Broken {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("alice")?;
            Err(fmt::Error)
        }
    }

    /// Ignores write errors.
    struct IgnoresErrors;

    impl Display for IgnoresErrors {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let _ = f.write_str(&"x".repeat(Key::MAX_LEN));
            let _ = f.write_str("y");
            Ok(())
        }
    }

    #[test]
    fn text_is_unchanged_and_an_address_becomes_its_client_network() {
        let v6: IpAddr = "2001:db8:1:2:3:4:5:6".parse().unwrap();
        let socket: SocketAddr = "[2001:db8:1:2::9]:443".parse().unwrap();
        for (key, expected) in [
            (key!("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2:3:4:5:6"),
            (key!(String::from("::ffff:1.2.3.4")), "::ffff:1.2.3.4"),
            (key!(*"str"), "str"),
            (key!(""), ""),
            (key!(7_u8), "7"),
            (key!(-7), "-7"),
            (key!('c'), "c"),
            (key!(v6), "2001:db8:1:2::/64"),
            (key!(&&v6), "2001:db8:1:2::/64"),
            (key!(Arc::new(v6)), "2001:db8:1:2::/64"),
            (key!(socket), "2001:db8:1:2::/64"),
            (key!(Ipv4Addr::LOCALHOST), "127.0.0.1"),
            (key!(SocketAddr::from(([1, 2, 3, 4], 5))), "1.2.3.4"),
            (key!(ClientNetwork::from(v6)), "2001:db8:1:2::/64"),
        ] {
            assert_eq!(key.as_deref(), Ok(expected));
        }
    }

    #[test]
    fn a_key_that_is_too_long_or_partly_written_is_refused() {
        let longest = "k".repeat(Key::MAX_LEN);
        assert_eq!(key!(longest), Ok(longest.clone()));
        for (key, refusal) in [
            (key!(format!("{longest}k")), Refusal::KeyTooLong),
            (key!(Endless), Refusal::KeyTooLong),
            (key!(IgnoresErrors), Refusal::KeyTooLong),
            (key!(Broken), Refusal::KeyNotWritten),
        ] {
            assert_eq!(key, Err(refusal));
        }
        let call = KeyArg::of("k").add_to(KeyArg::of(&longest).add_to(FunctionCall::new()));
        assert_eq!(call.parts(), Err(Refusal::KeyTooLong), "all parts together");
    }

    #[test]
    fn a_cost_is_any_integer_in_range() {
        let cost_of = |call: FunctionCall| call.parts().map(|_| call.permits().get());
        let call = FunctionCall::new;
        assert_eq!(cost_of(call().cost(5)), Ok(5));
        assert_eq!(cost_of(call().cost(5_u8)), Ok(5));
        assert_eq!(cost_of(call().cost(0_usize)), Ok(0));
        assert_eq!(cost_of(call().cost(Cost::MAX.get())), Ok(1 << 32));
        let large = Refusal::from(Cost::new(u64::MAX).unwrap_err());
        assert_eq!(cost_of(call().cost(u64::MAX)), Err(large));
        assert_eq!(cost_of(call().cost(-1)), Err(Refusal::CostRange));
        assert_eq!(cost_of(call().cost(i64::MIN)), Err(Refusal::CostRange));
        assert_eq!(cost_of(call().cost(u128::MAX)), Err(Refusal::CostRange));
    }
}
