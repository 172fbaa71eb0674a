//! One call of a function: whom it concerns, how much it asks for, how long it would wait.

use std::fmt::{self, Display, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::Cost;

use crate::engine::Refusal;
use crate::{Client, Key};

/// What one call asks for. It owns its key, so that nothing of the function's arguments is borrowed
/// while it waits; a key of usual length is kept without an allocation.
#[derive(Debug)]
pub struct Visit {
    /// The parts of the key, one behind the other, and where each ends.
    text: SmallVec<[u8; 64]>,
    ends: SmallVec<[usize; 4]>,
    cost: Cost,
    wait: Option<Duration>,
    refusal: Option<Refusal>,
}

impl Visit {
    /// A call at a cost of 1 that concerns everybody and does not wait.
    #[expect(clippy::new_without_default, reason = "called by its name from generated code alone")]
    pub fn new() -> Self {
        let (text, ends) = (SmallVec::new(), SmallVec::new());
        Self { text, ends, cost: Cost::ONE, wait: None, refusal: None }
    }

    /// Asks for this much. What is negative or too large is refused when it is asked for.
    #[must_use]
    pub fn cost(mut self, permits: impl TryInto<u64>) -> Self {
        let permits = permits.try_into().map_err(|_| Refusal::CostRange);
        match permits.and_then(|permits| Cost::new(permits).map_err(Refusal::from)) {
            Ok(cost) => self.cost = cost,
            Err(refusal) => self.refuse(refusal),
        }
        self
    }

    /// Waits for its turn, at most this long.
    #[must_use]
    pub fn wait(mut self, timeout: Duration) -> Self {
        self.wait = Some(timeout);
        self
    }

    pub(super) fn asked_for(&self) -> Cost {
        self.cost
    }

    pub(super) fn patience(&self) -> Option<Duration> {
        self.wait
    }

    /// The parts of the key, unless something about the call is refused.
    pub(super) fn parts(&self) -> Result<SmallVec<[&str; 4]>, Refusal> {
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        let parts = starts.zip(&self.ends).map(|(start, &end)| self.text.get(start..end));
        let text = |part: Option<_>| std::str::from_utf8(part?).ok();
        parts.map(text).collect::<Option<_>>().ok_or(Refusal::KeyNotWritten)
    }

    fn with(mut self, part: &(impl Display + ?Sized)) -> Self {
        // A key that was cut short would count somebody together with others.
        if write!(self, "{part}").is_err() {
            self.refuse(Refusal::KeyNotWritten);
        }
        self.ends.push(self.text.len());
        self
    }

    /// The first reason counts.
    fn refuse(&mut self, refusal: Refusal) {
        self.refusal.get_or_insert(refusal);
    }
}

/// Stops at the longest key there is, however much somebody has to say.
impl Write for Visit {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len().saturating_add(text.len()) > Key::MAX_LEN {
            self.refuse(Refusal::KeyTooLong);
            return Err(fmt::Error);
        }
        self.text.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// A part of a key. An address is added as the client that it counts as, by the method below. For
/// every other type that method is not there, and the one of [`Text`] is found behind it.
#[derive(Debug)]
pub struct Part<'a, T: ?Sized>(Text<'a, T>);

/// A part of a key that is added as it is printed.
#[derive(Debug)]
pub struct Text<'a, T: ?Sized>(&'a T);

impl<'a, T: ?Sized> Part<'a, T> {
    /// The part that has this value.
    pub const fn of(value: &'a T) -> Self {
        Self(Text(value))
    }
}

impl<T: Address + ?Sized> Part<'_, T> {
    /// Adds it to the key.
    #[must_use]
    pub fn add_to(&self, visit: Visit) -> Visit {
        visit.with(&Client::from(self.0.0.address()))
    }
}

impl<'a, T: ?Sized> Deref for Part<'a, T> {
    type Target = Text<'a, T>;

    fn deref(&self) -> &Text<'a, T> {
        &self.0
    }
}

impl<T: ?Sized> Text<'_, T> {
    /// Adds it to the key.
    #[must_use]
    pub fn add_to(&self, visit: Visit) -> Visit
    where
        T: KeyPart,
    {
        self.0.add_to(visit)
    }
}

/// What can be a part of a key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key",
    label = "not text, a number or an address, nor anything else that is `Display`",
    note = "several parts are written as a tuple: `key = (tenant, user.id)`"
)]
pub trait KeyPart {
    /// Adds it to the key.
    #[must_use]
    fn add_to(&self, visit: Visit) -> Visit;
}

impl<T: Display + ?Sized> KeyPart for T {
    fn add_to(&self, visit: Visit) -> Visit {
        visit.with(self)
    }
}

/// What is known by an address. A port is left out: every connection has another.
pub trait Address {
    /// The address.
    fn address(&self) -> IpAddr;
}

impl Address for IpAddr {
    fn address(&self) -> IpAddr {
        *self
    }
}

macro_rules! addresses {
    ($($type:ty: $address:ident => $ip:expr;)*) => {
        $(impl Address for $type {
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
        $(impl<T: Address + ?Sized> Address for $type {
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

    /// The parts of a key of this one value, or why there are none.
    macro_rules! key {
        ($value:expr) => {
            Part::of(&$value).add_to(Visit::new()).parts().map(|parts| parts.join("|"))
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

    /// Begins and gives up.
    struct Broken;

    impl Display for Broken {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("alice")?;
            Err(fmt::Error)
        }
    }

    /// Does not care whether anybody listens.
    struct Deaf;

    impl Display for Deaf {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let _ = f.write_str(&"x".repeat(Key::MAX_LEN));
            let _ = f.write_str("y");
            Ok(())
        }
    }

    #[test]
    fn text_is_taken_as_it_is_and_an_address_as_its_client() {
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
            (key!(Client::from(v6)), "2001:db8:1:2::/64"),
        ] {
            assert_eq!(key.as_deref(), Ok(expected));
        }
    }

    #[test]
    fn a_key_that_is_too_long_or_half_written_is_no_key() {
        let longest = "k".repeat(Key::MAX_LEN);
        assert_eq!(key!(longest), Ok(longest.clone()));
        for (key, refusal) in [
            (key!(format!("{longest}k")), Refusal::KeyTooLong),
            (key!(Endless), Refusal::KeyTooLong),
            (key!(Deaf), Refusal::KeyTooLong),
            (key!(Broken), Refusal::KeyNotWritten),
        ] {
            assert_eq!(key, Err(refusal));
        }
        let visit = Part::of("k").add_to(Part::of(&longest).add_to(Visit::new()));
        assert_eq!(visit.parts(), Err(Refusal::KeyTooLong), "all parts together");
    }

    #[test]
    fn a_cost_is_any_whole_number_that_is_one() {
        let asked = |visit: Visit| visit.parts().map(|_| visit.asked_for().get());
        let visit = Visit::new;
        assert_eq!(asked(visit().cost(5)), Ok(5));
        assert_eq!(asked(visit().cost(5_u8)), Ok(5));
        assert_eq!(asked(visit().cost(0_usize)), Ok(0));
        assert_eq!(asked(visit().cost(Cost::MAX.get())), Ok(1 << 32));
        let large = Refusal::from(Cost::new(u64::MAX).unwrap_err());
        assert_eq!(asked(visit().cost(u64::MAX)), Err(large));
        assert_eq!(asked(visit().cost(-1)), Err(Refusal::CostRange));
        assert_eq!(asked(visit().cost(i64::MIN)), Err(Refusal::CostRange));
        assert_eq!(asked(visit().cost(u128::MAX)), Err(Refusal::CostRange));
    }
}
