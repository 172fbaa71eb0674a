//! DEL.

use tidegate::RuleCheck;

use super::args::CommandArgs;
use super::errors::{ErrorText, error_text};
use crate::check::{CheckService, Operation, Throttle};
use crate::transport::resp::reply::ReplyEncoder;
use crate::transport::resp::session::RespSession;

/// `DEL key ..`: resets keys of `CL.THROTTLE`, and replies with the number of keys that had state.
pub(crate) async fn del(
    args: &mut CommandArgs<'_>,
    session: &RespSession,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    // The state is stored under the key alone, so that any limit finds it.
    let any = Throttle { max_burst: 0, count: 1, period: 1 };
    let target = service.throttle(any).map_err(error_text)?;
    let mut deleted = 0;
    let mut next = Some(args.word()?);
    while let Some(key) = next {
        let reset = [RuleCheck::of(target.clone(), key, 0)];
        let found = service.inspect(reset[0].clone()).await.map_err(error_text)?;
        if found.iter().any(|(_, inspection)| inspection.standing.used > 0) {
            service.run(Operation::Reset, &reset, None).await.map_err(error_text)?;
            session.actor().log_reset(&reset[0]);
            deleted += 1;
        }
        next = args.optional();
    }
    reply.integer(deleted);
    Ok(())
}
