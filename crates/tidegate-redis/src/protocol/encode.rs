//! KEYS and ARGV of `decide.lua`, `checks.lua`, `lean.lua` and `lean_log.lua`.

use std::sync::Arc;

use redis::Cmd;
use tidegate::{Expiry, Micros, RuleLimit};

use crate::protocol::keys::KeyNames;
use crate::protocol::request::{CheckScript, ExtraKeys, LimitCharge, PartHold, ScriptRequest};

/// The protocol, in ARGV 1.
const PROTOCOL: u8 = 1;

/// The first bytes of a stored value: the version that this one writes, and the flag of a value
/// that has a state and nothing else.
const STATE_VERSION: u8 = 2;
const HAS_STATE: u8 = 1;

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
            PartHold::Made(expiry) => {
                let expiry = u8::from(expiry == Expiry::Charge);
                match request.quantity {
                    Some((min, want)) => {
                        let (num, den) = part.per_unit.parts();
                        cmd.arg(format!("{expiry} {num} {den} {min} {want}"))
                    }
                    None => cmd.arg(expiry),
                }
            }
            PartHold::Ended => cmd.arg("held"),
            PartHold::At(cost) => cmd.arg(cost.get()),
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
    let (limits, limit_indexes) = distinct_limits(groups.clone().map(|(_, r)| r), time);
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

/// Groups of equal checks, each with their number, for `lean.lua` or `lean_log.lua`.
pub(crate) fn encode_lean<'a>(
    cmd: &mut Cmd,
    groups: impl ExactSizeIterator<Item = (u64, &'a ScriptRequest)> + Clone,
    time: &ScriptTime,
) {
    push_keys(cmd, groups.clone().map(|(_, request)| request), &[]);
    let (limits, limit_indexes) = distinct_limits(groups.clone().map(|(_, r)| r), time);
    let mut checks = vec![PROTOCOL];
    checks.extend(time.instant.map_or((-1_f64).to_le_bytes(), |instant| packed(instant.get())));
    let word = |number: usize| u16::try_from(number).unwrap_or(0).to_le_bytes();
    let mut limit_indexes = limit_indexes.into_iter();
    for (times, ScriptRequest { parts, script, .. }) in groups {
        let is_log = *script == CheckScript::LeanLog;
        if !is_log {
            checks.push(u8::try_from(parts.len()).unwrap_or(0));
        }
        checks.extend(u16::try_from(times).unwrap_or(0).to_le_bytes());
        for (part, limit) in parts.iter().zip(&mut limit_indexes) {
            // The first argument has the checks, and they are counted from 1.
            checks.extend(word(limit + 2));
            checks.extend(packed(part.cost.get()));
            if is_log {
                checks.extend(word(part.caller.len()));
                checks.extend(part.caller.as_bytes());
            }
        }
    }
    cmd.arg(checks);
    for (limit, guess) in limits {
        cmd.arg(value_head(limit, guess));
    }
}

/// As a value of this limit begins, without holds. Of a calendar window, its start follows.
fn value_head(limit: &RuleLimit, guess: Micros) -> Vec<u8> {
    const CALENDAR: u64 = 1;
    let (algorithm, mut numbers) = limit.limit().numbers();
    let mut start = None;
    let mut head = vec![STATE_VERSION, algorithm, HAS_STATE];
    // Small numbers are stored as one byte: the first of a fixed window, the last of a bucket.
    let bytes = match algorithm {
        3 => {
            let boundaries = limit.boundaries(guess);
            let mut windows = boundaries.windows(2).filter(|window| guess < window[1]);
            if let (CALENDAR, Some([from, to])) = (numbers[0], windows.next()) {
                numbers[2] = to.saturating_sub(*from).get();
                start = Some(from.get());
            }
            0..1
        }
        1 => 4..5,
        _ => 0..0,
    };
    for (index, number) in numbers.into_iter().chain(start).enumerate() {
        match bytes.contains(&index) {
            true => head.push(u8::try_from(number).unwrap_or(u8::MAX)),
            false => head.extend(packed(number)),
        }
    }
    head
}

/// A number as the scripts store it. All are below 2^53.
fn packed(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

/// The limits of these requests, each with the time its calendar is needed for, and for each part
/// which of them it has.
fn distinct_limits<'a>(
    requests: impl Iterator<Item = &'a ScriptRequest>,
    time: &ScriptTime,
) -> (Vec<(&'a Arc<RuleLimit>, Micros)>, Vec<usize>) {
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
    let parts = requests.flat_map(|request| {
        let guess = request.guess.unwrap_or(time.guess);
        request.parts.iter().map(move |part| (part, guess))
    });
    let indexes = parts.map(|(part, guess)| limit_of(part, guess)).collect();
    (limits, indexes)
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
