//! CL.THROTTLE of redis-cell, GCRA of Redis, and DEL.

use tidegate::{Key, Micros, RuleCheck};

use super::args::CommandArgs;
use super::encode::integer;
use super::errors::{ErrorText, error_text};
use crate::check::{CheckService, Operation, Throttle};
use crate::observe::metrics::ListenerKind;
use crate::transport::resp::reply::ReplyEncoder;
use crate::transport::resp::session::RespSession;

/// `CL.THROTTLE key max_burst count period [quantity]`, `GCRA key max_burst count period [TOKENS
/// quantity]`. Each accepts the other's way to write the quantity.
pub(crate) async fn throttle(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let key = Key::from(args.word()?);
    let throttle =
        Throttle { max_burst: args.integer()?, count: args.integer()?, period: args.integer()? };
    let quantity = if args.take("TOKENS") || args.len() > 0 { args.integer()? } else { 1 };
    args.end()?;
    let operation = if quantity == 0 { Operation::Peek } else { Operation::Check };
    // A quantity above the limit, which is `max_burst` + 1, is never allowed. The smallest such
    // cost stands for all of them.
    let cost = quantity.min(throttle.max_burst + 2);
    let target = service.throttle(throttle).map_err(error_text)?;
    let check = RuleCheck::of(target, key, cost);
    let result = service.run(operation, &[check], None).await;
    service.count_request(ListenerKind::Resp, operation, &result);
    let decision = result.map_err(error_text)?;
    let verdict = decision.decision.verdict();
    // In redis-cell, a quantity of 0 is always allowed and charges nothing.
    let allowed = quantity == 0 || verdict.allowed;
    let retry_after = verdict.retry_after.span().filter(|_| !allowed).map_or(-1, seconds);
    reply
        .array(5)
        .integer((!allowed).into())
        .integer(integer(verdict.limit))
        .integer(integer(verdict.remaining))
        .integer(retry_after)
        .integer(seconds(verdict.reset_after));
    Ok(())
}

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

/// Seconds, rounded up.
fn seconds(span: Micros) -> i64 {
    integer(span.get().div_ceil(1_000_000))
}
