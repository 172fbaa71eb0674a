//! `TG.LIMIT` and `CL.THROTTLE`: limits that come with the call.
//!
//! A key has one state, whatever limits its calls have. A call under another limit fits if what is
//! used leaves room in that limit, and makes the state its own: `mode` "call" of the scripts.

use tidegate_core::{Cost, Holds, Limit, Micros, Moment, State, Verdict};

use crate::call::{CommandCall, NOT_AN_INTEGER, Reply, ReplyResult, SYNTAX, WRONG_TYPE, integer};
use crate::limit_cache::LimitCache;
use crate::store::{PendingState, WriteTime};
use crate::value::{Found, StoredLimit, StoredValue};

const ASK_SCRIPT: &str = "ERR TIDEGATE this key has a log, reservations or several limits, or was \
                          written by another version; use the scripts or a Tidegate server";
const BAD_NUMBERS: &str = "ERR count and period must be above 0, and the limit must be one that \
                           can be counted exactly";
const NOT_NATIVE: &str = "ERR TIDEGATE the module has no sliding-log, no sliding-window without \
                          approximate, no concurrency and no time zones; use the scripts or a \
                          Tidegate server";

/// `TG.LIMIT "5/min" key [COST n]`
pub fn limit<'a, C: CommandCall<'a>>(call: &mut C) -> ReplyResult {
    static LIMITS: LimitCache = LimitCache::new();
    let notation = call.argument(1).ok_or(SYNTAX)?;
    let cost = match (call.argument(3), call.argument(4), call.argument(5)) {
        (None, ..) => 1,
        (Some(word), Some(cost), None) if word.eq_ignore_ascii_case(b"COST") => integer(cost)?,
        _ => return Err(SYNTAX),
    };
    let limit = LIMITS.get(notation, || {
        let text = std::str::from_utf8(notation).map_err(|_| "ERR names must be UTF-8")?;
        let limit: Limit =
            text.parse().map_err(|_| "ERR invalid limit; write one such as 5/min")?;
        let is_zoned = limit.calendar().is_some_and(|(_, zone)| zone.is_some());
        StoredLimit::new(limit).filter(|_| !is_zoned).ok_or(NOT_NATIVE)
    })?;
    let cost = Cost::new(cost).map_err(|_| NOT_AN_INTEGER)?;
    let verdict = check(call, 2, &limit, cost)?;
    let retry_after = verdict.retry_after.span().map_or(-1, millis);
    Ok(Reply::Decision([
        verdict.allowed.into(),
        signed(verdict.limit),
        signed(verdict.remaining),
        retry_after,
        millis(verdict.reset_after),
        millis(verdict.delay),
    ]))
}

/// `CL.THROTTLE key max_burst count period [quantity]`
pub fn throttle<'a, C: CommandCall<'a>>(call: &mut C) -> ReplyResult {
    static LIMITS: LimitCache = LimitCache::new();
    let mut numbers = [0; 3];
    for (index, number) in numbers.iter_mut().enumerate() {
        *number = integer(call.argument(2 + index).ok_or(SYNTAX)?)?;
    }
    let quantity = call.argument(5).map_or(Ok(1), integer)?;
    if call.argument(6).is_some() {
        return Err(SYNTAX);
    }
    let [max_burst, count, period] = numbers;
    let limit = LIMITS.get(numbers.map(u64::to_le_bytes).as_flattened(), || {
        let built = Limit::per(count, Micros::from_secs(period)).burst(max_burst + 1).build();
        built.ok().filter(|_| count > 0).and_then(StoredLimit::new).ok_or(BAD_NUMBERS)
    })?;
    // A quantity above the limit, which is `max_burst` + 1, is never allowed. The smallest such
    // cost stands for all of them.
    let cost = Cost::new(quantity.min(max_burst + 2)).map_err(|_| NOT_AN_INTEGER)?;
    let verdict = check(call, 1, &limit, cost)?;
    // In redis-cell, a quantity of 0 is always allowed and charges nothing.
    let allowed = quantity == 0 || verdict.allowed;
    let retry_after = verdict.retry_after.span().filter(|_| !allowed).map_or(-1, seconds);
    Ok(Reply::Throttle([
        (!allowed).into(),
        signed(verdict.limit),
        signed(verdict.remaining),
        retry_after,
        seconds(verdict.reset_after),
    ]))
}

/// The state of a key, and the limit under which it was counted.
struct HeldState<'l> {
    holder: Holder<'l>,
    state: Option<State>,
    /// When the key expires, in us, if it has a value.
    expires: Option<u64>,
}

/// The limit of a state.
enum Holder<'l> {
    Same(&'l StoredLimit),
    Other(Box<StoredLimit>),
}

impl Holder<'_> {
    fn get(&self) -> &StoredLimit {
        match self {
            Self::Same(limit) => limit,
            Self::Other(limit) => limit,
        }
    }
}

/// Checks one key and charges it if `cost` fits.
fn check<'a, C: CommandCall<'a>>(
    call: &mut C,
    argument: usize,
    limit: &StoredLimit,
    cost: Cost,
) -> Result<Verdict, &'static str> {
    let time = WriteTime { now: call.now(), is_test: false };
    let at = Moment::new(Micros::new(time.now));
    let mut key = call.open(argument).ok_or(SYNTAX)?;
    let HeldState { holder, mut state, expires } = match call.read(&key) {
        Found::Missing => HeldState { holder: Holder::Same(limit), state: None, expires: None },
        Found::OtherType => return Err(WRONG_TYPE),
        Found::Value(value) => key_state(limit, &value, &at).ok_or(ASK_SCRIPT)?,
    };
    let held_by = holder.get();
    let is_rebased = held_by.limit.is_ahead(state.as_ref(), Holds::NONE, &at);
    held_by.limit.rebase(&mut state, &mut Holds::default(), &at);
    let capacity = limit.limit.capacity();
    let mut verdict = held_by.limit.look_within(capacity, state.as_ref(), Holds::NONE, &at, cost);
    let is_charged = verdict.allowed && !cost.is_zero();
    let mut written = held_by;
    if is_charged {
        if let Holder::Other(old) = &holder {
            state = state.and_then(|state| limit.limit.carry(&old.limit, &at, state, &at));
            written = limit;
        }
        verdict.delay = limit.limit.turn_after(state.as_ref(), Holds::NONE, &at);
        limit.limit.charge(&mut state, &at, cost, None);
        let standing = limit.limit.standing(state.as_ref(), Holds::NONE, &at);
        (verdict.remaining, verdict.reset_after) = (standing.remaining, standing.reset_after);
    }
    // After a step back of the clock, recovery begins now: this is stored even by a denial.
    if state.is_some() && (is_charged || is_rebased) {
        let expires = expires.filter(|_| std::ptr::eq(written, held_by));
        let pending = PendingState::new(written, state.as_ref(), &at).ok_or(ASK_SCRIPT)?;
        pending.write(call, &mut key, written, expires, time);
    }
    Ok(verdict)
}

/// `None` if only the scripts understand the value.
fn key_state<'l>(
    limit: &'l StoredLimit,
    value: &StoredValue,
    at: &Moment,
) -> Option<HeldState<'l>> {
    if let Some(found) = limit.state(value) {
        let state = found.state.as_ref();
        let is_current = || limit.limit.standing(state, Holds::NONE, at).used > 0;
        if limit.has_own_calendar() && !is_current() && !limit.has_ended(value, at.now().get()) {
            return None;
        }
        let (holder, expires) = (Holder::Same(limit), Some(found.expires));
        return Some(HeldState { holder, state: found.state, expires });
    }
    let other = StoredLimit::of_value(value)?;
    let found = other.state(value)?;
    let (holder, expires) = (Holder::Other(Box::new(other)), Some(found.expires));
    Some(HeldState { holder, state: found.state, expires })
}

/// Milliseconds, rounded up.
fn millis(span: Micros) -> i64 {
    signed(span.get().div_ceil(1_000))
}

/// Seconds, rounded up.
fn seconds(span: Micros) -> i64 {
    signed(span.get().div_ceil(1_000_000))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
