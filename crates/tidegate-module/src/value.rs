//! A stored value: version, algorithm, flags, the numbers of the limit and of the state, and when
//! the key expires. `docs/reference/redis-scripts.md` describes it.

use tidegate_core::{Limit, Micros, Moment, State};

/// The version that is written, and the only one that is read.
const STATE_VERSION: u8 = 2;
/// The flags of a value that has a state and nothing else.
const HAS_STATE: u8 = 1;
/// The flag of a value with holds.
const HAS_HOLDS: u8 = 2;
const STAMP_LEN: usize = 8;
/// Where the length of a fixed window is, in a value.
const LENGTH_AT: usize = 12;

/// The longest beginning of a value: a bucket's.
const MAX_HEAD: usize = 36;
/// The longest value that has one state and nothing else.
pub(crate) const MAX_VALUE: usize = MAX_HEAD + 24 + STAMP_LEN;

/// What is stored under a key.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// The key does not exist.
    Missing,
    /// A string.
    Value(StoredValue),
    /// A value of another type.
    OtherType,
}

/// A string, as far as it may be a plain state.
#[derive(Clone, Copy, Debug)]
pub struct StoredValue {
    bytes: [u8; MAX_VALUE],
    /// Of the whole string.
    len: usize,
}

impl StoredValue {
    /// The string, or the beginning of a longer one.
    pub fn new(string: &[u8]) -> Self {
        let mut bytes = [0; MAX_VALUE];
        let kept = string.len().min(MAX_VALUE);
        bytes[..kept].copy_from_slice(&string[..kept]);
        Self { bytes, len: string.len() }
    }

    /// Whether its flags name holds, which only the scripts count.
    pub(crate) fn has_holds(&self) -> bool {
        self.len > 2 && self.bytes[2] & HAS_HOLDS != 0
    }

    /// Of a value of [`StoredLimit::value_len`]: the string.
    fn of_len(&self, len: usize) -> Option<&[u8]> {
        self.bytes.get(..len).filter(|_| self.len == len)
    }
}

/// A limit, and how values of it begin.
#[derive(Clone, Debug)]
pub(crate) struct StoredLimit {
    pub(crate) limit: Limit,
    head: [u8; MAX_HEAD],
    head_len: usize,
    /// How many numbers a state has.
    numbers: usize,
    /// The largest consumption of a state, in the unit of its numbers: a debt of one more limit.
    max_used: u64,
    /// The window that a client named, for a limit that follows the calendar.
    window: Option<(Micros, Micros)>,
}

/// A state as a value has it.
#[derive(Debug)]
pub(crate) struct StoredState {
    pub(crate) state: Option<State>,
    /// When the key expires, in us.
    pub(crate) expires: u64,
}

impl StoredLimit {
    /// `None` for a log and for `concurrency`, whose states are not a few numbers.
    pub(crate) fn new(limit: Limit) -> Option<Self> {
        let (algorithm, numbers) = limit.numbers();
        let states = state_numbers(algorithm)?;
        let max_used = max_used(&limit, &numbers);
        let mut head = ValueHead { bytes: [0; MAX_HEAD], len: 0 };
        head.push(&[STATE_VERSION, algorithm, HAS_STATE]);
        for (index, number) in numbers.into_iter().enumerate() {
            match is_byte(algorithm, index) {
                true => head.push(&[u8::try_from(number).ok()?]),
                false => head.push(&packed(number)),
            }
        }
        let ValueHead { bytes, len } = head;
        Some(Self { limit, head: bytes, head_len: len, numbers: states, max_used, window: None })
    }

    /// The limit with which a value of one state begins. A client adds the start of the present
    /// window to one that follows the calendar.
    pub(crate) fn from_head(bytes: &[u8]) -> Option<Self> {
        let (&[STATE_VERSION, algorithm, HAS_STATE], mut rest) = bytes.split_first_chunk()? else {
            return None;
        };
        let mut numbers = Vec::with_capacity(5);
        for index in 0..number_count(algorithm)? {
            if is_byte(algorithm, index) {
                let (byte, after) = rest.split_first()?;
                numbers.push(u64::from(*byte));
                rest = after;
            } else {
                let (number, after) = rest.split_first_chunk()?;
                numbers.push(whole(*number)?);
                rest = after;
            }
        }
        let limit = Limit::from_numbers(algorithm, &numbers)?;
        let window = match (limit.calendar(), rest) {
            (Some(_), _) => {
                let start = whole(rest.try_into().ok()?)?;
                let end = start.checked_add(numbers[2])?;
                Some((Micros::new(start), Micros::new(end)))
            }
            (None, []) => None,
            _ => return None,
        };
        let head_len = bytes.len() - if window.is_some() { 8 } else { 0 };
        let mut head = [0; MAX_HEAD];
        head[..head_len].copy_from_slice(&bytes[..head_len]);
        let max_used = max_used(&limit, &numbers);
        Some(Self { limit, head, head_len, numbers: state_numbers(algorithm)?, max_used, window })
    }

    /// The limit of a value that has one state and nothing else; not that of a calendar window.
    pub(crate) fn of_value(value: &StoredValue) -> Option<Self> {
        let algorithm = value.bytes[1];
        let state_len = 8 * state_numbers(algorithm)? + STAMP_LEN;
        let head_len = value.len.checked_sub(state_len)?;
        Self::from_head(value.bytes.get(..head_len)?)
    }

    /// The instant, in the calendar window that the client named; `None` if it is another one.
    pub(crate) fn moment(&self, now: Micros) -> Option<Moment> {
        match self.window {
            Some((start, end)) => Moment::within(now, start, end),
            None => Some(Moment::new(now)),
        }
    }

    /// Whether a state was counted in a calendar window that has not ended, and is not the one that
    /// the client named.
    pub(crate) fn is_of_other_zone(&self, state: Option<&State>, at: &Moment) -> bool {
        let (Some((start, end)), Some(state)) = (self.window, state) else { return false };
        let began = state.stored_numbers().map_or(0, |numbers| numbers[1]);
        let length = end.saturating_sub(start).get();
        began != start.get() && at.now().get().saturating_sub(began) < length
    }

    /// As a value of this limit begins.
    fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }

    pub(crate) fn head_len(&self) -> usize {
        self.head_len
    }

    pub(crate) fn is_bucket(&self) -> bool {
        self.head[1] == 1
    }

    /// Whether the calendar is that of the server, in UTC: a client that names its window may have
    /// another zone.
    pub(crate) fn has_own_calendar(&self) -> bool {
        self.window.is_none() && self.limit.calendar().is_some()
    }

    /// The state of a value of this limit; `None` if it is of another limit, or malformed.
    pub(crate) fn state(&self, value: &StoredValue) -> Option<StoredState> {
        let bytes = self.numbers_in(value)?;
        let mut numbers = [0; 3];
        for (index, number) in numbers[..self.numbers].iter_mut().enumerate() {
            *number = whole(*bytes.get(8 * index..)?.first_chunk()?)?;
        }
        let expires = whole(*bytes.get(8 * self.numbers..)?.first_chunk()?)?;
        let numbers = &numbers[..self.numbers];
        // What no charge can have left is not counted with: the arithmetic would overflow.
        let counts = match self.head[1] {
            1 => [numbers[0], numbers[2]],
            5 => [numbers[0], numbers[1]],
            _ => [numbers[0]; 2],
        };
        let is_possible = counts.into_iter().all(|count| count <= self.max_used);
        let state = self.limit.stored_state(numbers);
        is_possible.then_some(StoredState { state, expires })
    }

    /// The bytes of the state in a value of this limit; of an unused key if there is none.
    pub(crate) fn state_bytes(&self, value: Option<&StoredValue>) -> [u8; 24] {
        let mut bytes = [0; 24];
        if let Some(found) = value.and_then(|value| self.numbers_in(value)) {
            let len = self.state_len();
            bytes[..len].copy_from_slice(&found[..len]);
        }
        bytes
    }

    pub(crate) fn state_len(&self) -> usize {
        8 * self.numbers
    }

    /// The numbers of the state, and when the key expires.
    fn numbers_in<'v>(&self, value: &'v StoredValue) -> Option<&'v [u8]> {
        let bytes = value.of_len(self.head_len + self.state_len() + STAMP_LEN)?;
        let (head, rest) = bytes.split_at(self.head_len);
        let compared = if self.has_own_calendar() { LENGTH_AT } else { self.head_len };
        (head[..compared] == self.head()[..compared]).then_some(rest)
    }

    /// Whether a calendar window in the value has ended, if it is not the present one: that of
    /// another time zone has not.
    pub(crate) fn has_ended(&self, value: &StoredValue, now: u64) -> bool {
        let number = |at: usize| value.bytes[at..].first_chunk().copied().and_then(whole);
        let window = (number(LENGTH_AT), number(self.head_len + 8));
        matches!(window, (Some(length), Some(start)) if now.saturating_sub(start) >= length)
    }

    /// A value of this limit. `ends` is when the window of a calendar ends, in us.
    pub(crate) fn value(&self, state: &[u8], expires: u64, ends: u64) -> Vec<u8> {
        let mut value = Vec::with_capacity(MAX_VALUE);
        value.extend_from_slice(self.head());
        if let (true, Some(start)) = (self.has_own_calendar(), state[8..].first_chunk()) {
            let length = ends.saturating_sub(whole(*start).unwrap_or(0));
            value[LENGTH_AT..].copy_from_slice(&packed(length));
        }
        value.extend_from_slice(state);
        value.extend_from_slice(&packed(expires));
        value
    }

    /// The bytes of a state.
    pub(crate) fn packed_state(&self, state: Option<&State>) -> [u8; 24] {
        let numbers = state.and_then(State::stored_numbers).unwrap_or_default();
        let mut bytes = [0; 24];
        for (index, number) in numbers[..self.numbers].iter().enumerate() {
            bytes[8 * index..][..8].copy_from_slice(&packed(*number));
        }
        bytes
    }
}

/// The beginning of a value while it is written.
struct ValueHead {
    bytes: [u8; MAX_HEAD],
    len: usize,
}

impl ValueHead {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// A bucket counts in units, all others in permits.
fn max_used(limit: &Limit, numbers: &[u64]) -> u64 {
    let unit = if let &[_, permit, _, _, _] = numbers { permit } else { 1 };
    limit.capacity().saturating_mul(2).saturating_mul(unit)
}

/// How many numbers a limit of this algorithm has.
fn number_count(algorithm: u8) -> Option<usize> {
    match algorithm {
        1 => Some(5),
        2 | 3 | 5 => Some(3),
        _ => None,
    }
}

/// How many numbers a state of this algorithm has.
fn state_numbers(algorithm: u8) -> Option<usize> {
    match algorithm {
        1 | 5 => Some(3),
        2 | 3 => Some(2),
        _ => None,
    }
}

/// Small numbers are stored as one byte: the first of a fixed window, the last of a bucket.
fn is_byte(algorithm: u8, index: usize) -> bool {
    matches!((algorithm, index), (1, 4) | (3, 0))
}

/// A number as the scripts store it. All are below 2^53.
pub(crate) fn packed(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

/// A whole number that is stored as a double.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, and in range")]
pub(crate) fn whole(bytes: [u8; 8]) -> Option<u64> {
    let number = f64::from_le_bytes(bytes);
    let is_whole = (0.0..=Micros::MAX.get() as f64).contains(&number) && number.fract() == 0.0;
    is_whole.then_some(number as u64)
}
