//! AUTH, HELLO, RESET, PING, ECHO, SELECT, CLIENT, CONFIG, INFO and TG.INFO.

use tidegate::Circuit;

use super::args::CommandArgs;
use super::encode::integer;
use super::errors::{ErrorText, SYNTAX};
use crate::check::CheckService;
use crate::transport::auth::AccessLevel;
use crate::transport::resp::reply::{ReplyEncoder, RespVersion};
use crate::transport::resp::session::RespSession;

/// Version of Redis reported to clients.
const REDIS_VERSION: &str = "7.0.0";

/// `AUTH [user] token`
pub(crate) fn auth(
    args: &mut CommandArgs<'_>,
    session: &mut RespSession,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let first = args.word()?;
    let token = args.optional().unwrap_or(first);
    args.end()?;
    authenticate(token, session)?;
    reply.simple("OK");
    Ok(())
}

fn authenticate(token: &[u8], session: &mut RespSession) -> Result<(), ErrorText> {
    if !session.tokens().any() {
        return Err("ERR AUTH called, but no token is configured; set TIDEGATE_TOKEN".into());
    }
    if session.authenticate(token) { Ok(()) } else { Err("WRONGPASS invalid token".into()) }
}

/// `HELLO [2|3 [AUTH user token] [SETNAME name]]`
pub(crate) fn hello(
    args: &mut CommandArgs<'_>,
    session: &mut RespSession,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let protocol = match args.optional() {
        None => reply.protocol(),
        Some(b"2") => RespVersion::Resp2,
        Some(b"3") => RespVersion::Resp3,
        Some(_) => return Err("NOPROTO unsupported protocol version; use 2 or 3".into()),
    };
    let (mut token, mut name) = (None, None);
    while args.len() > 0 {
        if args.take("AUTH") {
            args.word()?;
            token = Some(args.word()?);
        } else if args.take("SETNAME") {
            name = Some(client_name(args)?);
        } else {
            return Err(SYNTAX.into());
        }
    }
    if let Some(token) = token {
        authenticate(token, session)?;
    }
    if session.access() == AccessLevel::Nothing {
        return Err("NOAUTH authentication required; send HELLO with AUTH and the token".into());
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

/// `RESET`: the connection is as it was at its start.
pub(crate) fn reset(session: &mut RespSession, reply: &mut ReplyEncoder) -> Result<(), ErrorText> {
    session.reset();
    reply.set_protocol(RespVersion::default());
    reply.simple("RESET");
    Ok(())
}

/// `PING [message]`
pub(crate) fn ping(args: &mut CommandArgs<'_>, reply: &mut ReplyEncoder) -> Result<(), ErrorText> {
    match args.optional() {
        Some(message) => {
            args.end()?;
            reply.bulk(message)
        }
        None => reply.simple("PONG"),
    };
    Ok(())
}

/// `ECHO message`
pub(crate) fn echo(args: &mut CommandArgs<'_>, reply: &mut ReplyEncoder) -> Result<(), ErrorText> {
    let message = args.word()?;
    args.end()?;
    reply.bulk(message);
    Ok(())
}

/// `SELECT 0`: there is one database.
pub(crate) fn select(
    args: &mut CommandArgs<'_>,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let database = args.integer()?;
    args.end()?;
    if database != 0 {
        return Err("ERR DB index is out of range; only 0 exists".into());
    }
    reply.simple("OK");
    Ok(())
}

/// `CLIENT ..`: the subcommands that client libraries send.
pub(crate) fn client(
    args: &mut CommandArgs<'_>,
    session: &mut RespSession,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    if args.take("SETNAME") {
        session.name = client_name(args)?.to_vec();
        reply.simple("OK");
    } else if args.take("GETNAME") {
        if session.name.is_empty() {
            reply.null();
        } else {
            reply.bulk(&session.name);
        }
    } else if args.take("ID") {
        reply.integer(session.id());
    } else if args.take("SETINFO") {
        args.word()?;
        args.word()?;
        reply.simple("OK");
    } else if args.take("NO-EVICT") || args.take("NO-TOUCH") {
        args.word()?;
        reply.simple("OK");
    } else if args.take("INFO") {
        reply.bulk(format!("id={} db=0", session.id()).as_bytes());
    } else {
        return Err("ERR unknown subcommand; use SETNAME, GETNAME, ID, SETINFO or INFO".into());
    }
    args.end()
}

fn client_name<'a>(args: &mut CommandArgs<'a>) -> Result<&'a [u8], ErrorText> {
    let name = args.word()?;
    let is_name = name.len() <= RespSession::MAX_NAME && name.iter().all(u8::is_ascii_graphic);
    is_name
        .then_some(name)
        .ok_or("ERR invalid client name; at most 64 printable characters without spaces".into())
}

/// `CONFIG GET name`: benchmarks read whether the server writes to disk.
pub(crate) fn config(
    args: &mut CommandArgs<'_>,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    if !args.take("GET") {
        return Err("ERR only CONFIG GET is supported; use the policy file".into());
    }
    let name = args.word()?;
    let known = [("save", ""), ("appendonly", "no")];
    match known.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name)) {
        Some((name, value)) => reply.map(1).bulk(name.as_bytes()).bulk(value.as_bytes()),
        None => reply.map(0),
    };
    Ok(())
}

/// `INFO [section]`
pub(crate) fn info(service: &CheckService, reply: &mut ReplyEncoder) -> Result<(), ErrorText> {
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
    if let Some(error) = &health.error {
        text += &format!("store_error:{}\r\n", error.replace(['\r', '\n'], " "));
    }
    if let Some(warning) = &health.warning {
        text += &format!("store_warning:{warning}\r\n");
    }
    reply.bulk(text.as_bytes());
    Ok(())
}

/// `TG.INFO`
pub(crate) fn tg_info(service: &CheckService, reply: &mut ReplyEncoder) -> Result<(), ErrorText> {
    let (health, active) = (service.health(), service.active());
    reply.map(11);
    reply.bulk(b"version").bulk(env!("CARGO_PKG_VERSION").as_bytes());
    reply.bulk(b"rules").integer(active.policy.rules().len() as i64);
    reply.bulk(b"store_up").integer(health.up.into());
    reply.bulk(b"tracked_keys");
    match health.tracked_keys {
        Some(keys) => reply.integer(integer(keys)),
        None => reply.null(),
    };
    reply.bulk(b"memory_bytes").integer(integer(health.memory_bytes));
    reply.bulk(b"store_error");
    text_or_null(health.error.as_deref(), reply);
    reply.bulk(b"store_error_since");
    match health.since {
        Some(since) => reply.integer(integer(since.get() / 1_000_000)),
        None => reply.null(),
    };
    reply.bulk(b"store_warning");
    text_or_null(health.warning.as_deref(), reply);
    reply.bulk(b"store_circuit");
    text_or_null(health.circuit.map(Circuit::name), reply);
    reply.bulk(b"store_resets").integer(integer(health.resets));
    reply.bulk(b"store_last_reset");
    text_or_null(health.last_reset.as_deref(), reply);
    Ok(())
}

fn text_or_null(text: Option<&str>, reply: &mut ReplyEncoder) {
    match text {
        Some(text) => reply.bulk(text.as_bytes()),
        None => reply.null(),
    };
}
