//! COMMAND.

use super::args::CommandArgs;
use super::errors::ErrorText;
use super::table::{COMMANDS, CommandSpec, KeyPositions};
use crate::transport::resp::reply::ReplyEncoder;

/// `COMMAND [COUNT | DOCS .. | INFO .. | LIST]`
pub(crate) fn command(
    args: &mut CommandArgs<'_>,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    if args.take("COUNT") {
        reply.integer(COMMANDS.len() as i64);
    } else if args.take("DOCS") {
        reply.map(0);
    } else if args.take("LIST") {
        reply.array(COMMANDS.len());
        for entry in COMMANDS {
            reply.bulk(entry.name.as_bytes());
        }
    } else if args.take("INFO") {
        reply.array(args.len());
        while let Some(name) = args.optional() {
            match CommandSpec::find(name) {
                Some(entry) => describe(entry, reply),
                None => reply.null(),
            };
        }
    } else if args.len() == 0 {
        reply.array(COMMANDS.len());
        for entry in &COMMANDS {
            describe(entry, reply);
        }
    } else {
        return Err("ERR unknown subcommand; use COUNT, DOCS, INFO or LIST".into());
    }
    Ok(())
}

/// The ten elements of Redis 7. Flags, ACL categories, tips and subcommands are empty.
fn describe<'a>(entry: &CommandSpec, reply: &'a mut ReplyEncoder) -> &'a mut ReplyEncoder {
    reply.array(10).bulk(entry.name.as_bytes()).integer(entry.arity).array(0);
    let keys = entry.keys.unwrap_or(KeyPositions { first: 0, last: 0, step: 0 });
    reply.integer(keys.first).integer(keys.last).integer(keys.step);
    reply.array(0).array(0);
    match entry.keys {
        Some(keys) => key_specification(keys, reply.array(1)),
        None => reply.array(0),
    };
    reply.array(0)
}

fn key_specification(keys: KeyPositions, reply: &mut ReplyEncoder) -> &mut ReplyEncoder {
    // In a key specification, a last key that is not counted from the end is counted from the
    // first key.
    let last = if keys.last < 0 { keys.last } else { keys.last - keys.first };
    reply.map(3).bulk(b"flags").array(0);
    reply.bulk(b"begin_search").map(2).bulk(b"type").bulk(b"index");
    reply.bulk(b"spec").map(1).bulk(b"index").integer(keys.first);
    reply.bulk(b"find_keys").map(2).bulk(b"type").bulk(b"range");
    reply.bulk(b"spec").map(3).bulk(b"lastkey").integer(last);
    reply.bulk(b"keystep").integer(keys.step).bulk(b"limit").integer(0)
}
