//! KEYS and ARGV of `decide.lua` and `checks.lua`.

use std::sync::Arc;

use redis::Cmd;
use tidegate::{Expiry, Micros, RuleLimit};

use crate::protocol::keys::KeyNames;
use crate::protocol::request::{ExtraKeys, LimitCharge, PartHold, ScriptRequest};

/// The protocol, in ARGV 1.
const PROTOCOL: u8 = 1;

/// The time of a script call.
pub(crate) struct ScriptTime {
    /// Replaces the clock of Redis; for tests.
    pub(crate) instant: Option<Micros>,
    /// About the time of Redis; the windows of calendars around it are sent.
    pub(crate) guess: Micros,
}

/// One call, for `decide.lua`.
pub(crate) fn encode_call(
    cmd: &mut Cmd,
    names: &KeyNames,
    request: &ScriptRequest,
    time: &ScriptTime,
) {
    let ScriptRequest { hold, once, earlier, .. } = request;
    let records = [
        hold.map(|id| names.hold(id)),
        once.as_ref().map(|once| names.once(once.subject, once.name)),
        earlier.map(|id| names.hold(id)),
    ];
    push_keys(cmd, std::iter::once(request), &records.into_iter().flatten().collect::<Vec<_>>());
    cmd.arg(PROTOCOL).arg(request.op.name());
    push_or_empty(cmd, time.instant.map(Micros::get));
    push_or_empty(cmd, hold.map(|id| format!("{:032x}", id.get())));
    cmd.arg(request.ttl.get());
    push_or_empty(cmd, once.as_ref().map(|once| once.request.to_string()));
    cmd.arg(&request.record).arg(request.parts.len());
    for (part, extra) in request.parts.iter().zip(&request.extra_keys) {
        cmd.arg(extra.bits());
        push_limit(cmd, &part.limit, request.guess.unwrap_or(time.guess));
        cmd.arg(part.cost.get());
        match part.hold {
            PartHold::None => cmd.arg(""),
            PartHold::Made(expiry) => cmd.arg(u8::from(expiry == Expiry::Charge)),
            PartHold::Ended => cmd.arg("held"),
            PartHold::Settled(cost) => cmd.arg(cost.get()),
        };
        cmd.arg(&part.caller).arg(mode(&part.limit));
    }
}

/// Groups of equal checks, each with their number, for `checks.lua`. A limit of several checks is
/// sent once.
pub(crate) fn encode_checks<'a>(
    cmd: &mut Cmd,
    groups: impl ExactSizeIterator<Item = (u64, &'a ScriptRequest)> + Clone,
    time: &ScriptTime,
) {
    push_keys(cmd, groups.clone().map(|(_, request)| request), &[]);
    let mut limits: Vec<(&Arc<RuleLimit>, Micros)> = Vec::new();
    let mut limit_of = |part: &'a LimitCharge, guess: Micros| {
        let same = |(limit, at): &(&Arc<RuleLimit>, Micros)| {
            Arc::ptr_eq(limit, &part.limit) && *at == guess
        };
        limits.iter().position(same).unwrap_or_else(|| {
            limits.push((&part.limit, guess));
            limits.len() - 1
        })
    };
    let parts = groups.clone().flat_map(|(_, request)| {
        let guess = request.guess.unwrap_or(time.guess);
        request.parts.iter().map(move |part| (part, guess))
    });
    let limit_indexes: Vec<usize> = parts.map(|(part, guess)| limit_of(part, guess)).collect();
    cmd.arg(PROTOCOL).arg("checks");
    push_or_empty(cmd, time.instant.map(Micros::get));
    cmd.arg(limits.len());
    for (limit, guess) in limits {
        push_limit(cmd, limit, guess);
        cmd.arg(mode(limit));
    }
    cmd.arg(groups.len());
    let mut limit_indexes = limit_indexes.into_iter();
    for (times, ScriptRequest { parts, extra_keys, .. }) in groups {
        cmd.arg(times).arg(parts.len());
        for ((part, extra), limit) in parts.iter().zip(extra_keys).zip(&mut limit_indexes) {
            cmd.arg(limit + 1).arg(extra.bits()).arg(part.cost.get()).arg(&part.caller);
        }
    }
}

/// The number of keys and the keys: the states of these requests with their extra keys, then
/// `records`.
fn push_keys<'a>(
    cmd: &mut Cmd,
    requests: impl Iterator<Item = &'a ScriptRequest> + Clone,
    records: &[String],
) {
    let states = requests.flat_map(|request| request.parts.iter().zip(&request.extra_keys));
    let count: usize = states.clone().map(|(_, extra)| extra.key_count()).sum();
    cmd.arg(count + records.len());
    for (LimitCharge { state, .. }, extra) in states {
        cmd.arg(state);
        if extra.has(ExtraKeys::LOG) {
            cmd.arg(format!("{state}:log"));
        }
        if extra.has(ExtraKeys::HOLDS) {
            cmd.arg(format!("{state}:holds"));
        }
    }
    cmd.arg(records);
}

/// The algorithm, its numbers, and the boundaries of calendar windows around `guess`.
fn push_limit(cmd: &mut Cmd, limit: &RuleLimit, guess: Micros) {
    let (algorithm, numbers) = limit.limit().numbers();
    let boundaries: Vec<u64> = limit.boundaries(guess).into_iter().map(Micros::get).collect();
    cmd.arg(algorithm).arg(numbers).arg(boundaries.len()).arg(boundaries);
}

fn mode(limit: &RuleLimit) -> &'static str {
    match (limit.is_shadow(), limit.is_per_call()) {
        (true, _) => "shadow",
        (false, true) => "call",
        (false, false) => "",
    }
}

fn push_or_empty(cmd: &mut Cmd, argument: Option<impl redis::ToRedisArgs>) {
    match argument {
        Some(argument) => cmd.arg(argument),
        None => cmd.arg(""),
    };
}
