//! Checks that a client has sent one after the other without waiting for the replies.

use tidegate::RuleCheck;

use super::args::CommandArgs;
use super::key_check::{KeyCheck, ReplyForm};
use super::permitted;
use super::table::{CommandId, CommandSpec};
use crate::check::CheckService;
use crate::transport::resp::frame::Command;
use crate::transport::resp::reply::ReplyEncoder;
use crate::transport::resp::session::RespSession;

/// The most checks that are decided together.
pub(crate) const MAX_CHECKS: usize = 64;

/// Whether a command is a check that may be decided together with its neighbours. Commands of a
/// transaction, and those that have a span of their own, run alone.
pub(crate) fn may_join(
    command: &Command<'_>,
    session: &RespSession,
    service: &CheckService,
) -> bool {
    let entry = CommandSpec::find(command.name);
    let is_check = entry.is_some_and(|entry| {
        matches!(entry.id, CommandId::Check | CommandId::Limit | CommandId::Throttle)
    });
    is_check
        && session.transaction.is_none()
        && !session.is_guessing()
        && service.tracer().is_none()
}

/// Decides such commands in their order, each as if alone, and encodes their replies. Returns
/// false, and has done nothing, if one of them is invalid or has an id: then each has to run alone.
pub(crate) async fn run_together(
    commands: &[Command<'_>],
    session: &RespSession,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> bool {
    let Some((checks, forms)) = read_all(commands, session, service) else { return false };
    let decided = service.check_many(&checks).await;
    for (form, decided) in forms.into_iter().zip(decided) {
        if let Err(error) = form.write(decided, reply) {
            reply.error(error);
        }
    }
    true
}

/// What each command checks, and how its reply is written.
fn read_all<'a>(
    commands: &'a [Command<'_>],
    session: &RespSession,
    service: &CheckService,
) -> Option<(Vec<RuleCheck<'a>>, Vec<ReplyForm<'a>>)> {
    let read = |command: &'a Command<'_>| {
        let id = permitted(command, session).ok()?;
        let check = KeyCheck::read(id, &mut CommandArgs::new(&command.arguments), service);
        let check = check.ok().flatten().filter(|check| check.id.is_none())?;
        Some((check.check, check.form))
    };
    commands.iter().map(read).collect()
}
