//! What an error of a node says about the way.

use redis::RedisError;

use crate::address::Place;
use crate::classify::Meaning;
use crate::slot::Slot;

/// What to do about an error. Nothing was done by any command that was answered with one of these.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// The slot is there now.
    Moved(Place),
    /// The slot is on its way there, and these keys are there already.
    Ask(Place),
    /// The slot is on its way, and some of the keys are here, some there.
    TryAgain,
    /// The node does not do it at the moment: another has its slots, perhaps, or will have them. It
    /// `serves` others, or the Cluster is down for it.
    Unsettled { serves: bool },
    /// It is about the command, and no other node would say anything else. So is a redirect that
    /// cannot be read.
    Final,
}

impl Turn {
    /// What `error` says that `from` has given to a command on `slot`.
    pub(super) fn of(error: &RedisError, slot: Slot, from: &Place) -> Self {
        let to = || target(error.detail()?, slot, from);
        match Meaning::of(error) {
            Meaning::Moved => to().map_or(Self::Final, Self::Moved),
            Meaning::Ask => to().map_or(Self::Final, Self::Ask),
            Meaning::Split => Self::TryAgain,
            Meaning::Down => Self::Unsettled { serves: false },
            meaning if meaning.passes() => Self::Unsettled { serves: true },
            _ => Self::Final,
        }
    }
}

/// Where `1234 host:port` leads.
fn target(detail: &str, slot: Slot, from: &Place) -> Option<Place> {
    let (number, place) = detail.split_once(' ')?;
    // A node that speaks of another slot has another idea of where keys lie.
    if number.parse() != Ok(slot.get()) {
        return None;
    }
    // An IPv6 address has colons of its own, and seldom brackets.
    let (host, port) = place.trim_end().rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    place_of(Some(host), port.parse().ok()?, from)
}

/// A node that does not know its name, or does not tell it, is at the host that was asked.
pub(super) fn place_of(host: Option<&str>, port: u16, asked: &Place) -> Option<Place> {
    let host = match (host, asked) {
        (Some(host), _) if !host.is_empty() && host != "?" => host,
        (_, Place::Tcp { host, .. }) => host,
        (_, Place::Unix(_)) => return None,
    };
    let readable = !host.contains(|c: char| c.is_whitespace() || c.is_control());
    (port > 0 && readable).then(|| Place::Tcp { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use redis::ErrorKind;

    use super::*;

    fn turn(kind: ErrorKind, detail: &str) -> Turn {
        let from = Place::Tcp { host: "10.0.0.1".to_owned(), port: 6379 };
        let error = RedisError::from((kind, "said", detail.to_owned()));
        Turn::of(&error, Slot::of("foo"), &from)
    }

    #[test]
    fn a_redirect_leads_where_it_says() {
        let slot = Slot::of("foo").get();
        for (place, host, port) in [
            ("10.0.0.2:6380", "10.0.0.2", 6380),
            (":6380", "10.0.0.1", 6380),
            ("?:6380", "10.0.0.1", 6380),
            ("redis-2.example:6380", "redis-2.example", 6380),
            ("fe80::2:6380", "fe80::2", 6380),
            ("[fe80::2]:6380", "fe80::2", 6380),
        ] {
            let expected = Place::Tcp { host: host.to_owned(), port };
            let detail = format!("{slot} {place}");
            assert_eq!(turn(ErrorKind::Moved, &detail), Turn::Moved(expected.clone()), "{place}");
            assert_eq!(turn(ErrorKind::Ask, &detail), Turn::Ask(expected), "{place}");
        }
    }

    #[test]
    fn a_redirect_that_cannot_be_read_is_an_error_like_any_other() {
        let slot = Slot::of("foo").get();
        for detail in [
            String::new(),
            format!("{slot}"),
            format!("{slot} "),
            format!("{slot} 10.0.0.2"),
            format!("{slot} 10.0.0.2:"),
            format!("{slot} 10.0.0.2:0"),
            format!("{slot} 10.0.0.2:65536"),
            format!("{slot} 10.0.0.2:-1"),
            format!("{slot} 10.0.0.2 x:6380"),
            "1 10.0.0.2:6380".to_owned(),
            "99999 10.0.0.2:6380".to_owned(),
            "x 10.0.0.2:6380".to_owned(),
        ] {
            assert_eq!(turn(ErrorKind::Moved, &detail), Turn::Final, "{detail:?}");
            assert_eq!(turn(ErrorKind::Ask, &detail), Turn::Final, "{detail:?}");
        }
    }
}
