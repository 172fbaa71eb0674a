//! `TG.DECIDE numkeys key .. checks limit ..`: plain checks, one after the other, each in one
//! atomic step. Keys, arguments and reply are those of `lean.lua`; what that leaves to the other
//! scripts is left to them here, too.

use std::sync::Arc;

use tidegate_core::{Cost, Holds, Micros, Moment, State};

use crate::call::{CommandCall, Reply, ReplyResult, SYNTAX, integer};
use crate::limit_cache::LimitCache;
use crate::store::{PendingState, WriteTime};
use crate::value::{Found, StoredLimit, StoredValue, packed, whole};

/// The protocol of the scripts that this version speaks.
const PROTOCOL: u8 = 1;
/// Instead of a number of checks: the general script decides; it will need the key of the holds.
const ASK: u16 = 65_535;
const ASK_HELD: u16 = 65_534;

const VERSION: &str = "ERR TIDEGATE unsupported protocol version; use a module of your version";
const MALFORMED: &str =
    "ERR TIDEGATE malformed checks; see the head of lean.lua for the arguments of TG.DECIDE";

/// `TG.DECIDE numkeys key .. checks limit ..`; without keys, the protocol.
pub fn decide<'a, C: CommandCall<'a>>(call: &mut C) -> ReplyResult {
    let keys = integer(call.argument(1).ok_or(SYNTAX)?)?;
    if keys == 0 && call.argument(2).is_none() {
        return Ok(Reply::Integer(PROTOCOL.into()));
    }
    let first_argument = usize::try_from(keys).ok().and_then(|keys| keys.checked_add(2));
    let mut words = Words(first_argument.and_then(|at| call.argument(at)).ok_or(MALFORMED)?);
    let first_argument = first_argument.ok_or(MALFORMED)?;
    let [protocol] = words.take().ok_or(MALFORMED)?;
    if protocol != PROTOCOL {
        return Err(VERSION);
    }
    let instant = words.take().ok_or(MALFORMED)?;
    let is_test = f64::from_le_bytes(instant) >= 0.0;
    let now = if is_test { whole(instant).ok_or(MALFORMED)? } else { call.now() };
    let checks = read_checks(words, call, first_argument)?;
    let time = WriteTime { now, is_test };
    let mut reply = Vec::with_capacity(10 + 24 * checks.parts.len());
    reply.extend_from_slice(&packed(now));
    let mut key = 2;
    let mut limits = LimitArguments { first: first_argument, known: Vec::new() };
    for (times, parts) in &checks.checks {
        let parts = &checks.parts[parts.clone()];
        let check = PlainCheck { times: *times, parts, first_key: key };
        check.decide(call, &mut limits, time, &mut reply);
        key += parts.len();
    }
    Ok(Reply::Bytes(reply))
}

/// The packed checks that were not read yet.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

/// All checks of a call.
struct Checks {
    /// Times, and the range of the parts.
    checks: Vec<(u16, std::ops::Range<usize>)>,
    parts: Vec<PartArgument>,
}

/// A part: the argument that has its limit, and its cost.
struct PartArgument {
    limit: usize,
    cost: f64,
}

/// Reads all checks before the first one is decided: malformed arguments write nothing.
fn read_checks<'a>(
    mut words: Words<'a>,
    call: &impl CommandCall<'a>,
    first_argument: usize,
) -> Result<Checks, &'static str> {
    let mut read = Checks { checks: Vec::new(), parts: Vec::new() };
    while !words.0.is_empty() || read.checks.is_empty() {
        let [count] = words.take().ok_or(MALFORMED)?;
        let times = words.take().map(u16::from_le_bytes).ok_or(MALFORMED)?;
        let start = read.parts.len();
        for _ in 0..count {
            let limit = words.take().map(u16::from_le_bytes).ok_or(MALFORMED)?;
            let cost = words.take().map(f64::from_le_bytes).ok_or(MALFORMED)?;
            // Arguments are counted from 1, and the first one has the checks.
            let limit = first_argument + usize::from(limit) - 1;
            if limit <= first_argument || call.argument(limit).is_none() {
                return Err(MALFORMED);
            }
            read.parts.push(PartArgument { limit, cost });
        }
        if count == 0 {
            return Err(MALFORMED);
        }
        read.checks.push((times, start..read.parts.len()));
    }
    let keys = first_argument - 2;
    if read.parts.len() == keys { Ok(read) } else { Err(MALFORMED) }
}

/// The limits of a call, each looked up once.
struct LimitArguments {
    first: usize,
    known: Vec<Option<Option<Arc<StoredLimit>>>>,
}

impl LimitArguments {
    /// `None` for a limit that the general script has to decide.
    fn get<'a>(
        &mut self,
        call: &impl CommandCall<'a>,
        argument: usize,
    ) -> Option<Arc<StoredLimit>> {
        static LIMITS: LimitCache = LimitCache::new();
        let index = argument - self.first;
        if self.known.len() <= index {
            self.known.resize(index + 1, None);
        }
        let known = &mut self.known[index];
        let read = || {
            let head = call.argument(argument)?;
            let limit = LIMITS.get(head, || StoredLimit::from_head(head).ok_or(())).ok()?;
            // Its states mean nothing to a client of this protocol.
            (limit.limit.stored_len().is_some()).then_some(limit)
        };
        known.get_or_insert_with(read).clone()
    }
}

/// One check: a number of times, limits that are charged all or none.
struct PlainCheck<'p> {
    times: u16,
    parts: &'p [PartArgument],
    /// The argument with the first key.
    first_key: usize,
}

/// A part with what is stored under its key.
struct Part<K> {
    key: K,
    limit: Arc<StoredLimit>,
    value: Option<StoredValue>,
    state: Option<State>,
    /// When the key expires, in us, if it has a value.
    expires: Option<u64>,
    cost: u64,
    at: Moment,
}

impl PlainCheck<'_> {
    /// Appends the reply.
    fn decide<'a, C: CommandCall<'a>>(
        &self,
        call: &mut C,
        limits: &mut LimitArguments,
        time: WriteTime,
        reply: &mut Vec<u8>,
    ) {
        let mut is_held = false;
        let decided = self
            .load(call, limits, time, &mut is_held)
            .and_then(|parts| Some((self.charge(&parts)?, parts)));
        let Some(((fitting, pending), mut parts)) = decided else {
            let ask = if is_held && self.parts.len() == 1 { ASK_HELD } else { ASK };
            return reply.extend_from_slice(&ask.to_le_bytes());
        };
        reply.extend_from_slice(&fitting.to_le_bytes());
        for (index, part) in parts.iter_mut().enumerate() {
            let limit = &part.limit;
            // The state before is what the delay of a queue is computed from.
            let mut bytes = limit.state_bytes(part.value.as_ref());
            if let Some(pending) = pending.get(index) {
                pending.write(call, &mut part.key, limit, part.expires, time);
                if !limit.limit.is_queue() {
                    bytes = pending.bytes;
                }
            }
            reply.extend_from_slice(&bytes[..limit.state_len()]);
        }
    }

    /// Reads the states. `None` if the general script has to decide; `is_held` if it will need the
    /// key of the holds.
    fn load<'a, C: CommandCall<'a>>(
        &self,
        call: &mut C,
        limits: &mut LimitArguments,
        time: WriteTime,
        is_held: &mut bool,
    ) -> Option<Vec<Part<C::Key>>> {
        let is_free = self.parts[0].cost == 0.0;
        let mut parts = Vec::with_capacity(self.parts.len());
        for (index, PartArgument { limit, cost }) in self.parts.iter().enumerate() {
            let name = self.first_key + index;
            let key = call.open(name)?;
            let value = match call.read(&key) {
                Found::Missing => None,
                Found::Value(value) => Some(value),
                Found::OtherType => return None,
            };
            *is_held = value.as_ref().is_some_and(StoredValue::has_holds);
            let is_known = |other| call.argument(self.first_key + other) == call.argument(name);
            let is_valid = *cost >= 0.0 && cost.fract() == 0.0 && is_free == (*cost == 0.0);
            if !is_valid || self.times == 0 || self.times >= ASK_HELD || (0..index).any(is_known) {
                return None;
            }
            let limit = limits.get(call, *limit)?;
            let at = limit.moment(Micros::new(time.now))?;
            let found = value.as_ref().map(|value| limit.state(value));
            let (state, expires) = match found {
                Some(found) => found.map(|found| (found.state, Some(found.expires)))?,
                None => (None, None),
            };
            let is_ahead = limit.limit.is_ahead(state.as_ref(), Holds::NONE, &at);
            if is_ahead || limit.is_of_other_zone(state.as_ref(), &at) {
                return None;
            }
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "whole; a larger one becomes the largest, which fits nowhere either"
            )]
            let cost = *cost as u64;
            parts.push(Part { key, limit, value, state, expires, cost, at });
        }
        Some(parts)
    }

    /// How many times fit, and the states after the last of them; none if nothing is charged.
    /// `None` if the general script has to decide.
    fn charge<K>(&self, parts: &[Part<K>]) -> Option<(u16, Vec<PendingState>)> {
        let mut fitting = self.times;
        for part in parts {
            if part.limit.limit.is_queue() && self.times > 1 {
                return None;
            }
            let standing = part.limit.limit.standing(part.state.as_ref(), Holds::NONE, &part.at);
            let fits = standing.remaining.checked_div(part.cost).unwrap_or(0);
            fitting = u16::try_from(fits).map_or(fitting, |fits| fits.min(fitting));
        }
        if fitting == 0 {
            return Some((0, Vec::new()));
        }
        let charged = parts.iter().map(|part| {
            let mut state = part.state.clone();
            let cost = Cost::total(part.cost * u64::from(fitting));
            part.limit.limit.charge(&mut state, &part.at, cost, None);
            PendingState::new(&part.limit, state.as_ref(), &part.at)
        });
        Some((fitting, charged.collect::<Option<_>>()?))
    }
}
