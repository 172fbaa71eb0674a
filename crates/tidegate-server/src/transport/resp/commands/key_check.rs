//! TG.CHECK, TG.LIMIT and CL.THROTTLE of redis-cell: each checks one key.

use tidegate::policy::RuleTarget;
use tidegate::{Key, Micros, Rule, RuleCheck};

use super::args::CommandArgs;
use super::encode::{integer, write_decision};
use super::errors::{ErrorText, SYNTAX, error_text};
use super::table::CommandId;
use crate::check::{CheckDecision, CheckError, CheckService, Operation, Throttle};
use crate::transport::resp::reply::ReplyEncoder;

/// What such a command checks, and how its reply is written.
pub(super) struct KeyCheck<'a> {
    pub(super) check: RuleCheck<'a>,
    /// The idempotency key.
    pub(super) id: Option<&'a str>,
    pub(super) form: ReplyForm<'a>,
}

/// How a decision is written.
#[derive(Clone, Copy)]
pub(super) enum ReplyForm<'a> {
    /// Of eight elements. The name is that of the rule if no limit applies.
    Tidegate { name: &'a str },
    /// Of redis-cell, where a peek is always allowed.
    Throttle { is_peek: bool },
}

impl<'a> KeyCheck<'a> {
    /// Reads the arguments; `None` if the command is another one.
    pub(super) fn read(
        command: CommandId,
        args: &mut CommandArgs<'a>,
        service: &CheckService,
    ) -> Result<Option<Self>, ErrorText> {
        match command {
            CommandId::Check => {
                let name = args.text()?;
                Self::with_options(RuleTarget::Named(name), name, args).map(Some)
            }
            CommandId::Limit => {
                let target = service.adhoc_limit(args.text()?).map_err(error_text)?;
                Self::with_options(target, Rule::ADHOC, args).map(Some)
            }
            CommandId::Throttle => Self::throttle(args, service).map(Some),
            _ => Ok(None),
        }
    }

    /// `key [COST n] [ID id]`
    fn with_options(
        target: RuleTarget<'a>,
        name: &'a str,
        args: &mut CommandArgs<'a>,
    ) -> Result<Self, ErrorText> {
        let key = Key::from(args.word()?);
        let (mut cost, mut id) = (None, None);
        while args.len() > 0 {
            if cost.is_none() && args.take("COST") {
                cost = Some(args.integer()?);
            } else if id.is_none() && args.take("ID") {
                id = Some(args.text()?);
            } else {
                return Err(SYNTAX);
            }
        }
        let check = RuleCheck::of(target, key, cost.unwrap_or(1));
        Ok(Self { check, id, form: ReplyForm::Tidegate { name } })
    }

    /// `key max_burst count period [quantity]`
    fn throttle(args: &mut CommandArgs<'a>, service: &CheckService) -> Result<Self, ErrorText> {
        let key = Key::from(args.word()?);
        let throttle = Throttle {
            max_burst: args.integer()?,
            count: args.integer()?,
            period: args.integer()?,
        };
        let quantity = if args.len() > 0 { args.integer()? } else { 1 };
        args.end()?;
        // A quantity above the limit, which is `max_burst` + 1, is never allowed. The smallest such
        // cost stands for all of them.
        let cost = quantity.min(throttle.max_burst + 2);
        let target = service.throttle(throttle).map_err(error_text)?;
        let check = RuleCheck::of(target, key, cost);
        Ok(Self { check, id: None, form: ReplyForm::Throttle { is_peek: quantity == 0 } })
    }

    pub(super) async fn run(
        &self,
        service: &CheckService,
        reply: &mut ReplyEncoder,
    ) -> Result<(), ErrorText> {
        let operation = if self.check.cost == 0 { Operation::Peek } else { Operation::Check };
        let checks = std::slice::from_ref(&self.check);
        self.form.write(service.run(operation, checks, self.id).await, reply)
    }
}

impl ReplyForm<'_> {
    /// Writes the reply to a decision, or returns the text of the error.
    pub(super) fn write(
        self,
        decided: Result<CheckDecision, CheckError>,
        reply: &mut ReplyEncoder,
    ) -> Result<(), ErrorText> {
        let decision = decided.map_err(error_text)?;
        match self {
            Self::Tidegate { name } => {
                reply.array(8);
                write_decision(&decision, name, reply);
            }
            Self::Throttle { is_peek } => write_throttle(&decision, is_peek, reply),
        }
        Ok(())
    }
}

fn write_throttle(decision: &CheckDecision, is_peek: bool, reply: &mut ReplyEncoder) {
    let verdict = decision.decision.verdict();
    let allowed = is_peek || verdict.allowed;
    let retry_after = verdict.retry_after.span().filter(|_| !allowed).map_or(-1, seconds);
    reply
        .array(5)
        .integer((!allowed).into())
        .integer(integer(verdict.limit))
        .integer(integer(verdict.remaining))
        .integer(retry_after)
        .integer(seconds(verdict.reset_after));
}

/// Seconds, rounded up.
fn seconds(span: Micros) -> i64 {
    integer(span.get().div_ceil(1_000_000))
}
