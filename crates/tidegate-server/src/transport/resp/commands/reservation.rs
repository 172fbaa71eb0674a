//! TG.RESERVE, TG.COMMIT, TG.CANCEL and TG.RENEW.

use tidegate::{HoldId, Key, RuleCheck};

use super::args::CommandArgs;
use super::encode::write_decision;
use super::errors::{ErrorText, error_text, refusal_text};
use crate::check::{CheckService, Operation, SettleAction};
use crate::transport::resp::reply::ReplyEncoder;

/// `TG.RESERVE rule key cost [TTL ms]`
pub(crate) async fn reserve(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let (rule, key) = (args.text()?, Key::from(args.word()?));
    let check = RuleCheck::new(rule, key).cost(args.integer()?);
    let ttl = if args.take("TTL") { Some(args.millis()?) } else { None };
    args.end()?;
    let decision =
        service.run(Operation::Reserve(ttl), &[check], None).await.map_err(error_text)?;
    reply.array(9);
    match decision.decision.hold() {
        Some(id) => reply.bulk(id.to_string().as_bytes()),
        None => reply.null(),
    };
    write_decision(&decision, rule, reply);
    Ok(())
}

/// `TG.COMMIT id [cost]`. Without a cost, the reserved cost is charged.
pub(crate) async fn commit(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let id = id(args)?;
    let cost = if args.len() > 0 { Some(args.integer()?) } else { None };
    settle(id, SettleAction::Commit(cost), args, service, reply).await
}

/// `TG.CANCEL id`
pub(crate) async fn cancel(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    settle(id(args)?, SettleAction::Cancel, args, service, reply).await
}

/// `TG.RENEW id ms`
pub(crate) async fn renew(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let (id, ttl) = (id(args)?, args.millis()?);
    settle(id, SettleAction::Renew(ttl), args, service, reply).await
}

async fn settle(
    id: HoldId,
    action: SettleAction,
    args: &CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    args.end()?;
    let decision = service.settle(id, action).await.map_err(error_text)?;
    reply.integer((!decision.decision.expired()).into());
    Ok(())
}

fn id(args: &mut CommandArgs<'_>) -> Result<HoldId, ErrorText> {
    args.text()?.parse().map_err(|refusal| refusal_text(&refusal))
}
