//! What the client is told about its limits.

use std::borrow::Cow;

use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate::{Decision, Micros, RuleLimit, Verdict, Wait};

/// `RateLimit-Policy`: the limits as they stand in the policy.
pub static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// `RateLimit`: what is left of each.
pub static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// `X-RateLimit-Limit`: the most that fits at once, of the limit that speaks.
pub static X_RATELIMIT_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// `X-RateLimit-Remaining`: what it has left.
pub static X_RATELIMIT_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// `X-RateLimit-Reset`: the seconds until it is as if unused.
pub static X_RATELIMIT_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The headers that tell a client what was decided.
///
/// ```text
/// RateLimit-Policy: "login.1";q=5;w=60, "login.2";q=100;w=86400
/// RateLimit: "login.1";r=0;t=12, "login.2";r=71;t=40000
/// Retry-After: 12
/// X-RateLimit-Limit: 5
/// X-RateLimit-Remaining: 0
/// X-RateLimit-Reset: 60
/// Cache-Control: no-store
/// ```
///
/// `RateLimit-Policy` and `RateLimit` follow draft-ietf-httpapi-ratelimit-headers, from -08 on:
///
/// - `q` is the most that fits at once; `w` the seconds after which all of it is there again, left
///   out unless it is a whole number and always the same ([`tidegate::Limit::recovery`]).
/// - `r` is what remains; `t` the seconds until the limit allows what it denied, or else until it
///   is as if unused. A limit that can never allow the request has no `t`.
///
/// The `X-RateLimit-*` headers are about the one limit that speaks ([`Decision::speaker`]). Seconds
/// are rounded up. There are no headers about limits if there are no limits.
#[derive(Clone, Debug)]
pub struct RateLimitHeaders {
    limits: Option<Limits>,
    denial: Option<Denial>,
}

#[derive(Clone, Debug)]
struct Limits {
    policy: HeaderValue,
    state: HeaderValue,
    speaker: Speaker,
}

/// The limit that speaks for all.
#[derive(Clone, Debug)]
struct Speaker {
    limit: HeaderValue,
    remaining: u64,
    /// In seconds.
    reset_after: u64,
}

#[derive(Clone, Debug)]
struct Denial {
    /// In seconds; `None` if the request can never pass.
    retry_after: Option<u64>,
}

impl RateLimitHeaders {
    /// How many are about limits.
    const ADDED: usize = 5;

    /// The headers for a decision. The items are the limits to tell of, in order, each with its
    /// verdict in that decision.
    pub fn new<'a>(
        items: impl IntoIterator<Item = (&'a RuleLimit, &'a Verdict)>,
        decision: &Decision,
    ) -> Self {
        let denial = (!decision.allowed()).then(|| Denial {
            retry_after: decision.retry_after().span().map(|wait| seconds(wait).max(1)),
        });
        Self { limits: Limits::new(items, decision.speaker()), denial }
    }

    /// Writes them all over what was there: for a request that passed, or was denied.
    pub fn write(&self, headers: &mut HeaderMap) {
        self.write_standing(headers);
        self.write_denial(headers);
    }

    /// Adds those about limits to what others have said about theirs: both lists go on, and the
    /// `X-RateLimit-*` headers are about whichever limit has the least remaining.
    pub fn add(self, headers: &mut HeaderMap) {
        let Some(limits) = self.limits else { return };
        // All at once, where there is room for so many at all.
        let _ = headers.try_reserve(Self::ADDED);
        headers.append(&RATELIMIT_POLICY, limits.policy);
        headers.append(&RATELIMIT, limits.state);
        let told = headers.get(&X_RATELIMIT_REMAINING);
        let told = told.and_then(|told| told.to_str().ok()?.parse::<u64>().ok());
        if told.is_none_or(|told| limits.speaker.remaining < told) {
            limits.speaker.write(headers);
        }
    }

    /// Writes only `Retry-After` and `Cache-Control`, if it was denied.
    pub fn write_denial(&self, headers: &mut HeaderMap) {
        let Some(denial) = &self.denial else { return };
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match denial.retry_after {
            Some(seconds) => headers.insert(RETRY_AFTER, seconds.into()),
            None => headers.remove(RETRY_AFTER),
        };
    }

    /// Writes only those about limits, without `Retry-After` and `Cache-Control`: for a peek, which
    /// is answered even where there is nothing left.
    pub fn write_standing(&self, headers: &mut HeaderMap) {
        let Some(limits) = &self.limits else { return };
        headers.insert(&RATELIMIT_POLICY, limits.policy.clone());
        headers.insert(&RATELIMIT, limits.state.clone());
        limits.speaker.clone().write(headers);
    }
}

impl Speaker {
    fn write(self, headers: &mut HeaderMap) {
        headers.insert(&X_RATELIMIT_LIMIT, self.limit);
        headers.insert(&X_RATELIMIT_REMAINING, Digits::of(self.remaining).value());
        headers.insert(&X_RATELIMIT_RESET, Digits::of(self.reset_after).value());
    }
}

impl Limits {
    /// `None` for no items. The one at `speaker` speaks for all.
    fn new<'a>(
        items: impl IntoIterator<Item = (&'a RuleLimit, &'a Verdict)>,
        speaker: usize,
    ) -> Option<Self> {
        let (mut policy, mut state) = (Line::None, List::new());
        let mut speaks = None;
        for (place, (limit, verdict)) in items.into_iter().enumerate() {
            let told = limit.memo(Told::new);
            let (item, value) = match told.filter(|told| told.limit == verdict.limit) {
                Some(told) => (Cow::Borrowed(told), told.value.clone()),
                // Less is granted than the limit says, or somebody else has the place of the memo.
                None => {
                    let told = Told::granting(limit, verdict.limit);
                    let value = told.value.clone();
                    (Cow::Owned(told), value)
                }
            };
            policy.add(&item.item);
            state.item(limit.policy());
            state.parameter(b'r', verdict.remaining);
            if let Some(wait) = until_change(verdict) {
                state.parameter(b't', seconds(wait));
            }
            if place == speaker {
                let Verdict { remaining, reset_after, .. } = *verdict;
                let reset_after = seconds(reset_after);
                speaks = Some(Speaker { limit: value, remaining, reset_after });
            }
        }
        Some(Self { policy: policy.value()?, state: state.value()?, speaker: speaks? })
    }
}

/// What is told of a limit whoever asks: made once.
#[derive(Clone)]
struct Told {
    limit: u64,
    /// The limit as a number.
    value: HeaderValue,
    /// Its item in `RateLimit-Policy`.
    item: HeaderValue,
}

impl Told {
    fn new(limit: &RuleLimit) -> Self {
        Self::granting(limit, limit.limit().capacity())
    }

    /// The same for a limit that grants no more than `most`.
    fn granting(limit: &RuleLimit, most: u64) -> Self {
        let mut item = List::new();
        item.item(limit.policy());
        item.parameter(b'q', most);
        if let Some(window) = limit.limit().recovery().and_then(whole_seconds) {
            item.parameter(b'w', window);
        }
        // A list of one is never empty.
        let item = item.value().unwrap_or(HeaderValue::from_static("?0"));
        Self { limit: most, value: Digits::of(most).value(), item }
    }
}

/// A header that is a list of items which are known already.
enum Line {
    None,
    One(HeaderValue),
    Many(Vec<u8>),
}

impl Line {
    fn add(&mut self, item: &HeaderValue) {
        *self = match std::mem::replace(self, Self::None) {
            Self::None => Self::One(item.clone()),
            Self::One(first) => Self::Many([first.as_bytes(), b", ", item.as_bytes()].concat()),
            Self::Many(mut line) => {
                line.extend_from_slice(b", ");
                line.extend_from_slice(item.as_bytes());
                Self::Many(line)
            }
        };
    }

    fn value(self) -> Option<HeaderValue> {
        match self {
            Self::None => None,
            Self::One(value) => Some(value),
            Self::Many(line) => HeaderValue::try_from(line).ok(),
        }
    }
}

fn until_change(verdict: &Verdict) -> Option<Micros> {
    match (verdict.allowed, verdict.retry_after) {
        (true, _) => Some(verdict.reset_after),
        (false, Wait::For(wait)) => Some(wait),
        (false, Wait::Never) => None,
    }
}

const MICROS_PER_SECOND: u64 = 1_000_000;

fn seconds(span: Micros) -> u64 {
    span.get().div_ceil(MICROS_PER_SECOND)
}

fn whole_seconds(span: Micros) -> Option<u64> {
    let whole = span.get().is_multiple_of(MICROS_PER_SECOND);
    whole.then(|| span.get() / MICROS_PER_SECOND)
}

/// A list of named items with parameters, as structured fields (RFC 9651) write it.
struct List {
    /// As much as fits here needs no allocation: two limits with names of some length.
    start: [u8; Self::SHORT],
    len: usize,
    rest: Vec<u8>,
}

impl List {
    const SHORT: usize = 160;
    /// The largest integer of structured fields, 15 digits.
    const MAX_INTEGER: u64 = 999_999_999_999_999;

    fn new() -> Self {
        Self { start: [0; Self::SHORT], len: 0, rest: Vec::new() }
    }

    fn item(&mut self, name: &str) {
        self.push(if self.len == 0 { b"\"" } else { b", \"" });
        // The names of rules need no escapes. Should another come here, it must not break the line.
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        if name.bytes().all(plain) {
            self.push(name.as_bytes());
        } else {
            for c in name.chars() {
                self.push(&[u8::try_from(c).ok().filter(|b| plain(*b)).unwrap_or(b'_')]);
            }
        }
        self.push(b"\"");
    }

    fn parameter(&mut self, name: u8, number: u64) {
        self.push(&[b';', name, b'=']);
        self.push(Digits::of(number.min(Self::MAX_INTEGER)).as_bytes());
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        match self.start.get_mut(self.len..end) {
            Some(place) if self.rest.is_empty() => {
                place.copy_from_slice(bytes);
                self.len = end;
            }
            _ => self.rest.extend_from_slice(bytes),
        }
    }

    /// The value of the header; `None` if the list is empty.
    fn value(mut self) -> Option<HeaderValue> {
        let start = &self.start[..self.len];
        let value = if self.rest.is_empty() {
            HeaderValue::from_bytes(start)
        } else {
            self.rest.splice(..0, start.iter().copied());
            HeaderValue::try_from(self.rest)
        };
        value.ok().filter(|value| !value.is_empty())
    }
}

/// A number as it is written.
struct Digits {
    digits: [u8; Self::MOST],
    start: usize,
}

impl Digits {
    /// How many 2^64 has.
    const MOST: usize = 20;

    fn of(mut number: u64) -> Self {
        let (mut digits, mut start) = ([b'0'; Self::MOST], Self::MOST);
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { digits, start };
            }
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.digits[self.start..]
    }

    /// As a value of its own, in one allocation.
    fn value(&self) -> HeaderValue {
        // Digits are fit for a header.
        HeaderValue::from_bytes(self.as_bytes()).unwrap_or(HeaderValue::from_static("0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::{Rule, Source};

    fn rule(name: &str, limits: &[&str]) -> Rule {
        Rule::new(name, limits.iter().map(|limit| limit.parse().unwrap())).unwrap()
    }

    fn verdict(limit: u64, remaining: u64, reset_after: u64) -> Verdict {
        let reset_after = Micros::new(reset_after);
        let (retry_after, delay) = (Wait::NONE, Micros::ZERO);
        Verdict { allowed: true, retry_after, delay, limit, remaining, reset_after }
    }

    fn denied(limit: u64, retry_after: Wait, reset_after: u64) -> Verdict {
        Verdict { allowed: false, retry_after, ..verdict(limit, 0, reset_after) }
    }

    fn headers(rule: &Rule, verdicts: &[Verdict]) -> RateLimitHeaders {
        let decision = Decision::new(Source::Memory, verdicts.into());
        let limits = rule.limits().iter().map(|limit| &**limit);
        RateLimitHeaders::new(limits.zip(&decision.verdicts), &decision)
    }

    fn written(rule: &Rule, verdicts: &[Verdict]) -> Vec<String> {
        let mut map = HeaderMap::new();
        headers(rule, verdicts).write(&mut map);
        lines(&map)
    }

    fn lines(map: &HeaderMap) -> Vec<String> {
        map.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
    }

    #[test]
    fn an_allowed_request_is_told_what_is_left() {
        let login = rule("login", &["sliding-log 5/1m"]);
        assert_eq!(
            written(&login, &[verdict(5, 4, 12_000_000)]),
            [
                "ratelimit-policy: \"login\";q=5;w=60",
                "ratelimit: \"login\";r=4;t=12",
                "x-ratelimit-limit: 5",
                "x-ratelimit-remaining: 4",
                "x-ratelimit-reset: 12",
            ]
        );
    }

    #[test]
    fn a_denied_request_is_told_when_to_come_back_by_the_limit_that_speaks() {
        let login = rule("login", &["sliding-log 5/1m", "fixed-window 100/1d", "concurrency 3"]);
        let wait = |micros| Wait::For(Micros::new(micros));
        assert_eq!(
            written(
                &login,
                &[
                    denied(5, wait(11_000_001), 59_000_000),
                    verdict(100, 71, 39_999_999_999),
                    denied(3, wait(1), 1),
                ]
            ),
            [
                "ratelimit-policy: \"login.1\";q=5;w=60, \"login.2\";q=100;w=86400, \"login.3\";q=3",
                "ratelimit: \"login.1\";r=0;t=12, \"login.2\";r=71;t=40000, \"login.3\";r=0;t=1",
                "x-ratelimit-limit: 5",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 59",
                "cache-control: no-store",
                "retry-after: 12",
            ]
        );
    }

    #[test]
    fn a_wait_is_at_least_one_second_and_never_is_not_told_as_one() {
        let api = rule("api", &["10/s", "0/s"]);
        let wait = |micros| denied(10, Wait::For(Micros::new(micros)), 0);
        for (micros, told) in [(0, "1"), (1, "1"), (1_000_000, "1"), (1_000_001, "2")] {
            let mut map = HeaderMap::new();
            headers(&api, &[wait(micros)]).write(&mut map);
            assert_eq!(map[RETRY_AFTER], told, "{micros}");
        }
        let mut map = HeaderMap::new();
        map.insert(RETRY_AFTER, 5.into());
        headers(&api, &[wait(1), denied(0, Wait::Never, 0)]).write(&mut map);
        assert_eq!(map.get(RETRY_AFTER), None);
        assert_eq!(map[CACHE_CONTROL], "no-store");
        assert_eq!(map[&RATELIMIT], "\"api.1\";r=0;t=1, \"api.2\";r=0");
        assert_eq!(map[&RATELIMIT_POLICY], "\"api.1\";q=10;w=1, \"api.2\";q=0");
        assert_eq!(map[&X_RATELIMIT_LIMIT], "0");
    }

    #[test]
    fn a_peek_is_not_told_to_come_back() {
        let api = rule("api", &["10/s"]);
        let mut map = HeaderMap::new();
        headers(&api, &[denied(10, Wait::For(Micros::from_secs(2)), 0)]).write_standing(&mut map);
        assert_eq!(map.len(), 5);
        assert!(!map.contains_key(RETRY_AFTER) && !map.contains_key(CACHE_CONTROL));
    }

    #[test]
    fn a_window_is_told_only_if_it_is_whole_seconds() {
        for (limit, policy) in [
            ("100/s", "\"r\";q=100;w=1"),
            ("100/s burst 20", "\"r\";q=20"),
            ("10/s burst 50", "\"r\";q=50;w=5"),
            ("3/s burst 10", "\"r\";q=10"),
            ("fixed-window 9/1500ms", "\"r\";q=9"),
            ("fixed-window 9/w", "\"r\";q=9;w=604800"),
            ("fixed-window 9/month", "\"r\";q=9"),
            ("concurrency 9", "\"r\";q=9"),
        ] {
            let rule = rule("r", &[limit]);
            let capacity = rule.limits()[0].limit().capacity();
            let mut map = HeaderMap::new();
            headers(&rule, &[verdict(capacity, 1, 0)]).write(&mut map);
            assert_eq!(map[&RATELIMIT_POLICY], policy, "{limit}");
        }
    }

    #[test]
    fn integers_of_structured_fields_have_at_most_15_digits() {
        let huge = rule("huge", &["fixed-window 4503599627370495/s"]);
        let most = (1 << 52) - 1;
        let told = written(&huge, &[verdict(most, most - 1, Micros::MAX.get())]);
        assert_eq!(told[0], "ratelimit-policy: \"huge\";q=999999999999999;w=1");
        assert_eq!(told[1], "ratelimit: \"huge\";r=999999999999999;t=9007199255");
        assert_eq!(told[2], "x-ratelimit-limit: 4503599627370495");
    }

    #[test]
    fn headers_that_were_there_are_replaced_and_no_limits_leave_them() {
        let mut map = HeaderMap::new();
        for name in [&RATELIMIT, &RATELIMIT, &X_RATELIMIT_LIMIT] {
            map.append(name, HeaderValue::from_static("old"));
        }
        let before = map.clone();
        let decision = Decision::new(Source::Memory, [verdict(5, 4, 0)].as_slice().into());
        RateLimitHeaders::new([], &decision).write(&mut map);
        assert_eq!(map, before);
        headers(&rule("api", &["10/s"]), &[verdict(10, 4, 0)]).write(&mut map);
        assert_eq!(map.get_all(&RATELIMIT).iter().count(), 1);
        assert!(!lines(&map).iter().any(|line| line.contains("old")));
    }

    #[test]
    fn what_two_layers_say_is_told_together_and_the_tighter_one_speaks() {
        let (wide, tight) = (rule("wide", &["100/s"]), rule("tight", &["10/s"]));
        let orders = [[(&wide, 100, 90), (&tight, 10, 3)], [(&tight, 10, 3), (&wide, 100, 90)]];
        for order in orders {
            let mut map = HeaderMap::new();
            for (rule, limit, remaining) in order {
                headers(rule, &[verdict(limit, remaining, 1)]).add(&mut map);
            }
            assert_eq!(map.get_all(&RATELIMIT).iter().count(), 2);
            assert_eq!(map.get_all(&RATELIMIT_POLICY).iter().count(), 2);
            assert_eq!(
                (&map[&X_RATELIMIT_LIMIT], &map[&X_RATELIMIT_REMAINING]),
                (&HeaderValue::from_static("10"), &HeaderValue::from_static("3"),)
            );
        }
    }

    #[test]
    fn a_long_list_is_told_whole() {
        let limits: Vec<String> = (1..=16).map(|n| format!("{n}/{n}s")).collect();
        let name = "n".repeat(64);
        let long = rule(&name, &limits.iter().map(String::as_str).collect::<Vec<_>>());
        let verdicts: Vec<_> = (1..=16).map(|n| verdict(n, n, 1)).collect();
        let lines = written(&long, &verdicts);
        let expected: Vec<_> = (1..=16).map(|n| format!("\"{name}.{n}\";r={n};t=1")).collect();
        assert_eq!(lines[1], format!("ratelimit: {}", expected.join(", ")));
        let expected: Vec<_> = (1..=16).map(|n| format!("\"{name}.{n}\";q={n};w={n}")).collect();
        assert_eq!(lines[0], format!("ratelimit-policy: {}", expected.join(", ")));
    }

    #[test]
    fn a_limit_that_grants_less_is_told_as_what_it_grants() {
        let login = rule("login", &["10/s"]);
        let policy = |limit| written(&login, &[verdict(limit, 1, 1)])[0].clone();
        assert_eq!(policy(10), "ratelimit-policy: \"login\";q=10;w=1");
        assert_eq!(policy(5), "ratelimit-policy: \"login\";q=5;w=1");
        assert_eq!(policy(10), "ratelimit-policy: \"login\";q=10;w=1");
    }

    #[test]
    fn a_name_from_elsewhere_cannot_break_the_line() {
        let limit: tidegate::Limit = "10/s".parse().unwrap();
        for (name, printed) in [("a\r\nb", "a__b"), ("\"x\\", "_x_"), ("é", "_"), ("", "")] {
            let stored = RuleLimit::stored(name, name, "state", limit.clone());
            let decision = Decision::new(Source::Memory, [verdict(10, 9, 0)].as_slice().into());
            let mut map = HeaderMap::new();
            RateLimitHeaders::new([(&stored, &decision.verdicts[0])], &decision).write(&mut map);
            assert_eq!(map[&RATELIMIT], format!("\"{printed}\";r=9;t=0"));
        }
    }
}
