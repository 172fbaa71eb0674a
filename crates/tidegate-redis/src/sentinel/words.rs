//! What sentinels and the servers that they watch say, read.

use redis::{ErrorKind, PushInfo, PushKind, RedisResult, Value};

use super::opinions::Word;
use crate::address::Place;
use crate::dial::Connection;

/// What a sentinel publishes about a failover.
pub(super) enum Event {
    /// This replica is to become the primary.
    Chosen(Place),
    /// The primary was there, and is here now.
    Moved { from: Place, to: Place },
}

impl Event {
    pub(super) const CHOSEN: &str = "+selected-slave";
    pub(super) const MOVED: &str = "+switch-master";
}

/// The event that the message is about, if it concerns this master.
pub(super) fn event(message: &PushInfo, master: &str) -> Option<Event> {
    if message.kind != PushKind::Message {
        return None;
    }
    let channel = text(message.data.first()?)?;
    let words: Vec<&str> = text(message.data.get(1)?)?.split(' ').collect();
    match (channel, &*words) {
        (Event::MOVED, [of, old_host, old_port, host, port]) if *of == master => {
            Some(Event::Moved { from: place(old_host, old_port)?, to: place(host, port)? })
        }
        (Event::CHOSEN, ["slave", _, host, port, "@", of, ..]) if *of == master => {
            place(host, port).map(Event::Chosen)
        }
        _ => None,
    }
}

/// What a sentinel answers when it is asked where the primary is.
pub(super) fn word(answer: Value) -> RedisResult<Word> {
    let place = match answer.extract_error()? {
        Value::Nil => return Ok(Word::Unknown),
        Value::Array(words) => match &*words {
            [host, port] => text(host).zip(text(port)).and_then(|(host, port)| place(host, port)),
            _ => None,
        },
        _ => None,
    };
    let what = "what answers there is not a sentinel";
    place.map(Word::At).ok_or_else(|| (ErrorKind::ClientError, what).into())
}

/// Does the server say that it is a primary? `HELLO` tells those too who may do nothing else.
pub(crate) async fn is_primary(mut connection: Connection) -> RedisResult<bool> {
    let answer = connection.send_packed_command(&redis::cmd("HELLO")).await?;
    let role = match &answer.extract_error()? {
        Value::Map(pairs) => {
            let role = pairs.iter().find(|(name, _)| text(name) == Some("role"));
            role.and_then(|(_, role)| text(role)).map(|role| role == "master")
        }
        Value::Array(words) => {
            let role = words.chunks(2).find(|pair| pair.first().and_then(text) == Some("role"));
            role.and_then(|pair| text(pair.get(1)?)).map(|role| role == "master")
        }
        _ => None,
    };
    let what = "it does not say whether it is a primary";
    role.ok_or_else(|| (ErrorKind::ClientError, what).into())
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

fn place(host: &str, port: &str) -> Option<Place> {
    let port = port.parse().ok().filter(|port| *port != 0)?;
    (!host.is_empty()).then(|| Place::Tcp { host: host.into(), port })
}
