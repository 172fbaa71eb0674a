//! TG.PEEK, TG.MCHECK, TG.RECORD, TG.REFUND and TG.RESET.

use smallvec::SmallVec;
use tidegate::{Cost, Key, RuleCheck, RuleCost};

use super::args::CommandArgs;
use super::encode::{write_decision, write_decisions};
use super::errors::{ErrorText, SYNTAX, error_text};
use crate::check::{CheckService, Operation};
use crate::transport::resp::reply::ReplyEncoder;
use crate::transport::resp::session::RespSession;

/// `TG.PEEK rule key`
pub(crate) async fn peek(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let (rule, key) = (args.text()?, Key::from(args.word()?));
    args.end()?;
    let check = RuleCheck::new(rule, key).cost(0);
    let decision = service.run(Operation::Peek, &[check], None).await.map_err(error_text)?;
    reply.array(8);
    write_decision(&decision, rule, reply);
    Ok(())
}

/// `TG.MCHECK n rule key cost ..`: charges all or none.
pub(crate) async fn check_many(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let named = rule_costs(args)?;
    args.end()?;
    let checks = rule_checks(&named);
    let peeks = checks.iter().all(|check| check.cost == 0);
    let operation = if peeks { Operation::Peek } else { Operation::Check };
    let decision = service.run(operation, &checks, None).await.map_err(error_text)?;
    reply.array(9);
    write_decisions(&decision, named[0].rule, reply);
    Ok(())
}

/// A rule, a key and a cost for each.
pub(super) type RuleCosts<'a> = SmallVec<[RuleCost<'a>; 4]>;

/// `n rule key cost ..`
pub(super) fn rule_costs<'a>(args: &mut CommandArgs<'a>) -> Result<RuleCosts<'a>, ErrorText> {
    let count = usize::try_from(args.integer()?).map_err(|_| SYNTAX)?;
    if count == 0 || count > CheckService::MAX_CHECKS {
        return Err("ERR the number of checks must be from 1 to 16");
    }
    let mut one = || {
        let (rule, key) = (args.text()?, Key::from(args.word()?));
        Ok(RuleCost { rule, key: Some(key), cost: Cost::total(args.integer()?), if_held: false })
    };
    (0..count).map(|_| one()).collect()
}

pub(super) fn rule_checks<'a>(named: &[RuleCost<'a>]) -> SmallVec<[RuleCheck<'a>; 4]> {
    let check = |RuleCost { rule, key, cost, .. }: &RuleCost<'a>| {
        RuleCheck::new(rule, key.unwrap_or(Key::of(&[]))).cost(cost.get())
    };
    named.iter().map(check).collect()
}

/// `TG.RECORD rule key cost`
pub(crate) async fn record(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    run_undenied(Operation::Record, args, service, reply).await
}

/// `TG.REFUND rule key cost`
pub(crate) async fn refund(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    run_undenied(Operation::Refund, args, service, reply).await
}

/// `TG.RESET rule key`
pub(crate) async fn reset(
    args: &mut CommandArgs<'_>,
    session: &RespSession,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let (rule, key) = (args.text()?, Key::from(args.word()?));
    args.end()?;
    let reset = [RuleCheck::new(rule, key).cost(0)];
    service.run(Operation::Reset, &reset, None).await.map_err(error_text)?;
    session.actor().log_reset(&reset[0]);
    reply.integer(1);
    Ok(())
}

/// Record or refund, which are never denied.
async fn run_undenied(
    operation: Operation,
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let (rule, key) = (args.text()?, Key::from(args.word()?));
    let cost = args.integer()?;
    args.end()?;
    let check = RuleCheck::new(rule, key).cost(cost);
    service.run(operation, &[check], None).await.map_err(error_text)?;
    reply.integer(1);
    Ok(())
}
