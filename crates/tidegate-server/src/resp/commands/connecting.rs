//! What clients send when they connect, and what people type.

use tidegate::Circuit;

use super::table::{COMMANDS, Entry};
use super::words::Words;
use super::{Encoder, Error, SYNTAX, integer};
use crate::resp::reply::Protocol;
use crate::resp::session::Session;
use crate::service::Service;
use crate::tokens::Access;

/// The version of Redis whose protocol is spoken.
const REDIS_VERSION: &str = "7.0.0";

/// `AUTH [user] token`
pub(super) fn auth(
    words: &mut Words<'_>,
    session: &mut Session,
    reply: &mut Encoder,
) -> Result<(), Error> {
    let first = words.word()?;
    let token = words.optional().unwrap_or(first);
    words.end()?;
    authenticate(token, session)?;
    reply.simple("OK");
    Ok(())
}

fn authenticate(token: &[u8], session: &mut Session) -> Result<(), Error> {
    if !session.tokens().any() {
        return Err("ERR AUTH was sent, but the server has no token; set TIDEGATE_TOKEN");
    }
    if session.authenticate(token) { Ok(()) } else { Err("WRONGPASS this is not the token") }
}

/// `HELLO [2|3 [AUTH user token] [SETNAME name]]`
pub(super) fn hello(
    words: &mut Words<'_>,
    session: &mut Session,
    reply: &mut Encoder,
) -> Result<(), Error> {
    let protocol = match words.optional() {
        None => reply.protocol(),
        Some(b"2") => Protocol::Resp2,
        Some(b"3") => Protocol::Resp3,
        Some(_) => return Err("NOPROTO this speaks protocol 2 and 3"),
    };
    let (mut token, mut name) = (None, None);
    while words.len() > 0 {
        if words.take("AUTH") {
            words.word()?;
            token = Some(words.word()?);
        } else if words.take("SETNAME") {
            name = Some(client_name(words)?);
        } else {
            return Err(SYNTAX);
        }
    }
    if let Some(token) = token {
        authenticate(token, session)?;
    }
    if session.access() == Access::Nothing {
        return Err("NOAUTH authentication required; send HELLO with AUTH and the token");
    }
    if let Some(name) = name {
        session.name = name.to_vec();
    }
    reply.set_protocol(protocol);
    reply.map(7);
    reply.bulk(b"server").bulk(b"redis");
    reply.bulk(b"version").bulk(REDIS_VERSION.as_bytes());
    reply.bulk(b"proto").integer(protocol.number());
    reply.bulk(b"id").integer(session.id());
    reply.bulk(b"mode").bulk(b"standalone");
    reply.bulk(b"role").bulk(b"master");
    reply.bulk(b"modules").array(0);
    Ok(())
}

/// `PING [message]`
pub(super) fn ping(words: &mut Words<'_>, reply: &mut Encoder) -> Result<(), Error> {
    match words.optional() {
        Some(message) => {
            words.end()?;
            reply.bulk(message)
        }
        None => reply.simple("PONG"),
    };
    Ok(())
}

/// `ECHO message`
pub(super) fn echo(words: &mut Words<'_>, reply: &mut Encoder) -> Result<(), Error> {
    let message = words.word()?;
    words.end()?;
    reply.bulk(message);
    Ok(())
}

/// `SELECT 0`: there is one database.
pub(super) fn select(words: &mut Words<'_>, reply: &mut Encoder) -> Result<(), Error> {
    let database = words.integer()?;
    words.end()?;
    if database != 0 {
        return Err("ERR DB index is out of range; there is only 0");
    }
    reply.simple("OK");
    Ok(())
}

/// `CLIENT ..`: what client libraries tell and ask.
pub(super) fn client(
    words: &mut Words<'_>,
    session: &mut Session,
    reply: &mut Encoder,
) -> Result<(), Error> {
    if words.take("SETNAME") {
        session.name = client_name(words)?.to_vec();
        reply.simple("OK");
    } else if words.take("GETNAME") {
        if session.name.is_empty() {
            reply.null();
        } else {
            reply.bulk(&session.name);
        }
    } else if words.take("ID") {
        reply.integer(session.id());
    } else if words.take("SETINFO") {
        words.word()?;
        words.word()?;
        reply.simple("OK");
    } else if words.take("NO-EVICT") || words.take("NO-TOUCH") {
        words.word()?;
        reply.simple("OK");
    } else if words.take("INFO") {
        reply.bulk(format!("id={} db=0", session.id()).as_bytes());
    } else {
        return Err("ERR unknown subcommand; use SETNAME, GETNAME, ID, SETINFO or INFO");
    }
    words.end()
}

fn client_name<'a>(words: &mut Words<'a>) -> Result<&'a [u8], Error> {
    let name = words.word()?;
    let is_name = name.len() <= Session::MAX_NAME && name.iter().all(u8::is_ascii_graphic);
    is_name.then_some(name).ok_or("ERR a name has at most 64 visible characters and no spaces")
}

/// `COMMAND [COUNT | DOCS .. | INFO .. | LIST]`
pub(super) fn command(words: &mut Words<'_>, reply: &mut Encoder) -> Result<(), Error> {
    if words.take("COUNT") {
        reply.integer(COMMANDS.len() as i64);
    } else if words.take("DOCS") {
        reply.map(0);
    } else if words.take("LIST") {
        reply.array(COMMANDS.len());
        for entry in COMMANDS {
            reply.bulk(entry.name.as_bytes());
        }
    } else if words.take("INFO") {
        reply.array(words.len());
        while let Some(name) = words.optional() {
            match Entry::find(name) {
                Some(entry) => describe(entry, reply),
                None => reply.null(),
            };
        }
    } else if words.len() == 0 {
        reply.array(COMMANDS.len());
        for entry in &COMMANDS {
            describe(entry, reply);
        }
    } else {
        return Err("ERR unknown subcommand; use COUNT, DOCS, INFO or LIST");
    }
    Ok(())
}

fn describe<'a>(entry: &Entry, reply: &'a mut Encoder) -> &'a mut Encoder {
    reply.array(6).bulk(entry.name.as_bytes()).integer(entry.arity).array(0);
    // No key of Redis's: clients must not hash any argument to a slot.
    reply.integer(0).integer(0).integer(0)
}

/// `CONFIG GET name`: benchmarks ask whether the server writes to disk.
pub(super) fn config(words: &mut Words<'_>, reply: &mut Encoder) -> Result<(), Error> {
    if !words.take("GET") {
        return Err("ERR the policy file configures this server; there is only CONFIG GET");
    }
    let name = words.word()?;
    let known = [("save", ""), ("appendonly", "no")];
    match known.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name)) {
        Some((name, value)) => reply.map(1).bulk(name.as_bytes()).bulk(value.as_bytes()),
        None => reply.map(0),
    };
    Ok(())
}

/// `INFO [section]`
pub(super) fn info(service: &Service, reply: &mut Encoder) -> Result<(), Error> {
    let (health, active) = (service.health(), service.active());
    let mut text = format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\ntidegate_version:{}\r\nredis_mode:standalone\r\n\
         process_id:{}\r\n# Memory\r\nused_memory:{}\r\n# Replication\r\nrole:master\r\n\
         # Tidegate\r\nrules:{}\r\nstore_up:{}\r\nstore_resets:{}\r\n",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        health.memory_bytes,
        active.policy.rules().len(),
        u8::from(health.up),
        health.resets,
    );
    if let Some(circuit) = health.circuit {
        text += &format!("store_circuit:{}\r\n", circuit.name());
    }
    if let Some(warning) = &health.warning {
        text += &format!("store_warning:{warning}\r\n");
    }
    reply.bulk(text.as_bytes());
    Ok(())
}

/// `TG.INFO`
pub(super) fn tg_info(service: &Service, reply: &mut Encoder) -> Result<(), Error> {
    let (health, active) = (service.health(), service.active());
    reply.map(9);
    reply.bulk(b"version").bulk(env!("CARGO_PKG_VERSION").as_bytes());
    reply.bulk(b"rules").integer(active.policy.rules().len() as i64);
    reply.bulk(b"store_up").integer(health.up.into());
    reply.bulk(b"tracked_keys");
    match health.tracked_keys {
        Some(keys) => reply.integer(integer(keys)),
        None => reply.null(),
    };
    reply.bulk(b"memory_bytes").integer(integer(health.memory_bytes));
    reply.bulk(b"store_warning");
    text_or_null(health.warning.as_deref(), reply);
    reply.bulk(b"store_circuit");
    text_or_null(health.circuit.map(Circuit::name), reply);
    reply.bulk(b"store_resets").integer(integer(health.resets));
    reply.bulk(b"store_last_reset");
    text_or_null(health.last_reset.as_deref(), reply);
    Ok(())
}

fn text_or_null(text: Option<&str>, reply: &mut Encoder) {
    match text {
        Some(text) => reply.bulk(text.as_bytes()),
        None => reply.null(),
    };
}
