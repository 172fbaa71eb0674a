//! TG.CHECK, TG.LIMIT, TG.PEEK, TG.MCHECK, TG.RECORD, TG.REFUND and TG.RESET.

use smallvec::SmallVec;
use tidegate::policy::RuleTarget;
use tidegate::{Cost, Key, Rule, RuleCheck, RuleCost};

use super::args::CommandArgs;
use super::encode::{ReplyShape, write_decisions, write_one};
use super::errors::{ErrorText, SYNTAX, error_text};
use crate::check::{CheckService, Operation};
use crate::observe::metrics::ListenerKind;
use crate::transport::resp::reply::ReplyEncoder;
use crate::transport::resp::session::RespSession;

/// `TG.CHECK rule key [COST n] [ID id] [NAMED]`
pub(crate) async fn check(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let rule = args.text()?;
    check_one(RuleTarget::Named(rule), rule, args, service, reply).await
}

/// `TG.LIMIT "5/min" key [COST n] [ID id] [NAMED]`
pub(crate) async fn limit(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let limit = args.text()?;
    let target = service.adhoc_limit(limit).map_err(error_text)?;
    check_one(target, Rule::ADHOC, args, service, reply).await
}

async fn check_one(
    target: RuleTarget<'_>,
    name: &str,
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let key = Key::from(args.word()?);
    let (mut cost, mut id, mut shape) = (None, None, ReplyShape::Array);
    while args.len() > 0 {
        if cost.is_none() && args.take("COST") {
            cost = Some(args.integer()?);
        } else if id.is_none() && args.take("ID") {
            id = Some(args.text()?);
        } else if shape == ReplyShape::Array && args.take("NAMED") {
            shape = ReplyShape::Map;
        } else {
            return Err(SYNTAX.into());
        }
    }
    let cost = cost.unwrap_or(1);
    let operation = if cost == 0 { Operation::Peek } else { Operation::Check };
    let result = service.run(operation, &[RuleCheck::of(target, key, cost)], id).await;
    service.count_request(ListenerKind::Resp, operation, &result);
    let decision = result.map_err(error_text)?;
    write_one(&decision, name, shape, reply);
    Ok(())
}

/// `TG.PEEK rule key [NAMED]`
pub(crate) async fn peek(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let (rule, key) = (args.text()?, Key::from(args.word()?));
    let shape = if args.take("NAMED") { ReplyShape::Map } else { ReplyShape::Array };
    args.end()?;
    let check = RuleCheck::new(rule, key).cost(0);
    let decision = service.run(Operation::Peek, &[check], None).await.map_err(error_text)?;
    write_one(&decision, rule, shape, reply);
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
    let result = service.run(operation, &checks, None).await;
    service.count_request(ListenerKind::Resp, operation, &result);
    let decision = result.map_err(error_text)?;
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
        return Err("ERR the number of checks must be from 1 to 16".into());
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
