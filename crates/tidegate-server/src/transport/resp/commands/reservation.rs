//! TG.RESERVE, TG.MRESERVE, TG.COMMIT, TG.CANCEL, TG.RENEW and TG.EXTEND.

use tidegate::{Cost, Costs, Extension, HoldId, Key, RuleCost};

use super::args::CommandArgs;
use super::check::{rule_checks, rule_costs};
use super::encode::{integer, write_decision, write_decisions, write_extension, write_settlement};
use super::errors::{ErrorText, SYNTAX, error_text, refusal_text};
use crate::check::{
    CheckDecision, CheckService, Operation, QuantityRange, ReserveOptions, SettleAction,
};
use crate::observe::metrics::ListenerKind;
use crate::transport::resp::reply::ReplyEncoder;

/// `TG.RESERVE rule key cost [TTL ms] [ID id] [EXPIRY CHARGE] [MIN cost]`
pub(crate) async fn reserve(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let (rule, key) = (args.text()?, Some(Key::from(args.word()?)));
    let cost = RuleCost { key, ..RuleCost::new(rule, Cost::total(args.integer()?)) };
    let (decision, has_min) = reserve_each(args, &[cost], service).await?;
    reply.array(9 + usize::from(has_min));
    write_id(&decision, reply);
    write_decision(&decision, rule, reply);
    write_granted(&decision, has_min, reply);
    Ok(())
}

/// `TG.MRESERVE n rule key cost .. [TTL ms] [ID id] [EXPIRY CHARGE] [MIN cost]`: reserves all or
/// none.
pub(crate) async fn reserve_many(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let named = rule_costs(args)?;
    let (decision, has_min) = reserve_each(args, &named, service).await?;
    reply.array(10 + usize::from(has_min));
    write_id(&decision, reply);
    write_decisions(&decision, named[0].rule, reply);
    write_granted(&decision, has_min, reply);
    Ok(())
}

/// Reads the options of a reservation, and makes it. Whether there is a minimum: what costs more
/// than that is reserved as far as it fits.
async fn reserve_each(
    args: &mut CommandArgs<'_>,
    costs: &[RuleCost<'_>],
    service: &CheckService,
) -> Result<(CheckDecision, bool), ErrorText> {
    let (mut options, mut id, mut min) = (ReserveOptions::default(), None, None);
    while args.len() > 0 {
        if options.ttl.is_none() && args.take("TTL") {
            options.ttl = Some(args.millis()?);
        } else if id.is_none() && args.take("ID") {
            id = Some(args.text()?);
        } else if !options.charge_on_expiry && args.take("EXPIRY") && args.take("CHARGE") {
            options.charge_on_expiry = true;
        } else if min.is_none() && args.take("MIN") {
            min = Some(args.integer()?);
        } else {
            return Err(SYNTAX.into());
        }
    }
    let mut checks = rule_checks(costs);
    if let Some(min) = min {
        // What costs less is fixed.
        let least = if costs.iter().any(|one| one.cost.get() > min) { min + 1 } else { min };
        let range = QuantityRange::of_checks(&mut checks, min, |_, check| check.cost >= least);
        options.quantity = Some(range.map_err(|refusal| refusal_text(&refusal))?);
    }
    let operation = Operation::Reserve(options);
    let decided = service.run(operation, &checks, id).await;
    service.count_request(ListenerKind::Resp, operation, &decided);
    Ok((decided.map_err(error_text)?, min.is_some()))
}

/// The quantity that a reservation with a minimum was granted; 0 if it was denied.
fn write_granted(decision: &CheckDecision, has_min: bool, reply: &mut ReplyEncoder) {
    if has_min {
        reply.integer(integer(decision.granted.map_or(0, Cost::get)));
    }
}

fn write_id(decision: &CheckDecision, reply: &mut ReplyEncoder) {
    match decision.decision.hold() {
        Some(id) => reply.bulk(id.to_string().as_bytes()),
        None => reply.null(),
    };
}

/// `TG.COMMIT id [cost]`, `TG.COMMIT id COSTS n rule key cost ..`. What has no cost is charged as
/// reserved.
pub(crate) async fn commit(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let id = id(args)?;
    if args.take("COSTS") {
        let costs = rule_costs(args)?;
        args.end()?;
        let action = SettleAction::Commit(Costs::Each(&costs));
        let settled = service.settle(id, action).await.map_err(error_text)?;
        write_settlement(&settled, reply);
        return Ok(());
    }
    let costs = match args.len() {
        0 => Costs::AsHeld,
        _ => Costs::All(Cost::total(args.integer()?)),
    };
    settle(id, SettleAction::Commit(costs), args, service, reply).await
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

/// `TG.EXTEND id n rule key total .. [TTL ms] [MIN total]`
pub(crate) async fn extend(
    args: &mut CommandArgs<'_>,
    service: &CheckService,
    reply: &mut ReplyEncoder,
) -> Result<(), ErrorText> {
    let (id, totals) = (id(args)?, rule_costs(args)?);
    let mut to = Extension { totals: &totals, min: None, ttl: None };
    while args.len() > 0 {
        if to.ttl.is_none() && args.take("TTL") {
            to.ttl = Some(args.millis()?.into());
        } else if to.min.is_none() && args.take("MIN") {
            to.min = Some(Cost::total(args.integer()?));
        } else {
            return Err(SYNTAX.into());
        }
    }
    let extended = service.settle(id, SettleAction::Extend(to)).await.map_err(error_text)?;
    write_extension(&extended, reply);
    Ok(())
}

async fn settle(
    id: HoldId,
    action: SettleAction<'_>,
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
